"""Whom to probe when, and whose probes to answer: short bursts of junk whose rate the gauges see. Sans-I/O.

Theory of operation. A probe is a request: the asked node sends junk for at most some seconds, and the asker tells it to
stop as soon as the rate is steady. What is seen of it is seen by the gauges of both, as of any transfer; this file only
decides that junk flows. A node is asked by one other at a time, and asks for one purpose at a time:

- *paths*: of each other region, one peer. All nodes order the nodes of a region alike, differently for each pair of
  regions; the first in line probes at once, the next one later, so that they do not measure each other's shares. An
  uplink slower than the link hides it: so each asks another peer every time, first those that say that they have wider
  uplinks than what came so far, and begins where the one before it left off.
- its *downlink*: several peers at a time, near ones first.
- its *uplink*: it offers its junk to several peers, and those that have time ask for it.
- a *way* that the plan counts on and that never carried about so much: of that parent, at a little above the planned
  rate. So the plan hears of it in time, and the connection has found its rate before the first chunk comes.

Unmeasured comes before stale. While chunks flow nobody probes: what flows is measured; and the trainer says when it
begins to make a version, so that no junk is in the way of the first chunks. Both sides count what probes
cost, in a bucket for each direction: a node sends no junk beyond it, whoever asks, and asks for none beyond it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from p2psync.protocol.messages import (
    Message,
    ProbeEnd,
    ProbeInvite,
    ProbePadding,
    ProbeRequest,
    SuppressProbes,
    UplinkRate,
)
from p2psync.swarm.control.probe_budget import ConvergenceDetector, ProbeBudget
from p2psync.swarm.control.config import ProbeConfig
from p2psync.swarm.control.estimators import NEAR, WindowedMax
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.probe_actions import Disconnect, ProbeAction, SendMessage, StartPadding, StopPadding
from p2psync.swarm.control.probe_schedule import Job, Jobs
from p2psync.swarm.control.probe_targets import ProbePeer, ProbePeers

#: Seconds of grace after which an answer will not come any more.
GRACE = 1.0
#: Seconds for which an offer from far away waits for a peer that measures something else just now. Whoever has to
#: offer that far has no others to turn to, and all of a few busy peers are hardly ever free at one moment.
PATIENCE = 2.5
#: By how much faster than planned a way that the plan counts on is tried.
PRESS = 1.25
#: What a way is sent, of the best that it gave, while it is one of several over which an uplink is looked at.
FULL = 1.05
#: Those who can send so many times what came show that it was the downlink that bound.
BOUND = 1.25
#: Seconds for which nobody probes because a version is about to come; as long again whoever says so is not listened to.
SUPPRESSED_SECONDS = 5.0
#: A probe has shown its rate when it was steady, or after this part of its time, or this part of the most bytes.
_ENOUGH, _MUCH = 0.8, 0.5
#: A pump was seen if what is known of the uplink is this part of its rate, over so many seconds if it was shorter.
SEEN, SHORT = 0.5, 0.4
#: An uplink by this factor wider or narrower than it was is told anew.
_OTHER = 1.25
_NEVER = float("inf")


@dataclass(slots=True)
class _Asking:
    """The probe that this node asked for. job: None for one that was offered. peers: of `fan`, who has not ended it.
    enough_at: one that ends before then, for want of bytes, shows too little."""

    job: Job | None
    token: int
    peers: set[str]
    until: float
    steady: ConvergenceDetector
    refused: bool = False
    got: int = 0
    enough_at: float = 0.0
    fan: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Sending:
    """The probe that this node sends. job: of its own offer, None if it was asked. granted: bytes to each peer.

    rate: bytes a second at most, 0: as fast as may be. sent: bytes since `pumped_at`. An own offer waits until all have
    answered, and then pumps to all at once, `pool` bytes in all: how they share in it the network decides, so that no
    way falls silent before the others. pool: 0 for one that was asked for. before: bytes this node had sent by then.
    enough_at: one that ends before then, for want of bytes, shows too little.
    """

    job: Job | None
    token: int
    until: float
    steady: ConvergenceDetector
    offered: set[str] = field(default_factory=set)
    granted: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    rate: float = 0.0
    pumping: bool = False
    pumped_at: float = 0.0
    sent: int = 0
    pool: int = 0
    before: int = 0
    enough_at: float = 0.0


class Prober:
    """The probing of one node."""

    def __init__(
        self, node: str, region: str, config: ProbeConfig, estimates: NodeEstimates, rng: random.Random
    ) -> None:
        self._node = node
        self._config = config
        self._estimates = estimates
        self._rng = rng
        self._around = ProbePeers(node, region, config, estimates, rng)
        self._peers = self._around.peers
        self._jobs = Jobs(config, estimates, rng)
        self._asking: _Asking | None = None
        self._sending: _Sending | None = None
        #: Offers that wait until there is time, by peer: their token, and until when.
        self._held: dict[str, tuple[int, float]] = {}
        self._up_budget = ProbeBudget(config)
        self._down_budget = ProbeBudget(config)
        self._flowing = False
        #: To whom the plan has this node send, and until when it is quiet because a version is about to come.
        self._children: frozenset[str] = frozenset()
        self._suppressed_until = -_NEVER
        self._uplink_told = 0.0
        self._actions: list[ProbeAction] = []

    @property
    def busy(self) -> bool:
        """Whether junk flows, or is about to."""
        return self._asking is not None or self._sending is not None

    @property
    def pending(self) -> bool:
        """Whether there are actions to be done."""
        return bool(self._actions)

    @property
    def down_sure(self) -> bool:
        """Whether two looks at this node's downlink agree, and it was that which bound, not those who sent."""
        return self._jobs.down is not None and self._jobs.down.sure and self._jobs.down.bound

    def members(self, mates: Iterable[str]) -> None:
        """The names of the nodes that have this node's region, connected or not."""
        self._around.mates = [name for name in mates if name != self._node]

    def planned(self, expected: Mapping[str, float], children: Iterable[str], now: float) -> None:
        """There is another plan. expected: bytes a second that it has each parent send to this node."""
        self._jobs.planned(expected, now)
        self._children = frozenset(children)

    def suppress(self, now: float, seconds: float = SUPPRESSED_SECONDS) -> None:
        """A version is about to come: for so long nobody below probes, nor this node."""
        seconds = min(seconds, SUPPRESSED_SECONDS)
        if now < self._suppressed_until + SUPPRESSED_SECONDS:
            return
        self._suppressed_until = now + seconds
        for name in sorted(self._children & self._peers.keys()):
            self._tell(name, SuppressProbes(seconds))
        self._give_way(now)

    def peer_up(self, name: str, region: str, now: float) -> None:
        """A peer is connected; to be said once."""
        self._peers[name] = ProbePeer(region)
        self._jobs.begin(now)
        if self._uplink_told:
            self._tell(name, UplinkRate(self._uplink_told))

    def again(self, name: str, now: float) -> None:
        """The connections to a peer have changed so much that what was measured over them is no more true."""
        peer = self._peers.get(name)
        job = self._jobs.regions.get(self._around.region_of(name)) if peer is not None else None
        if job is not None and peer is not None and peer.asked:
            job.due = min(job.due, now + self._config.pause)
            job.shown = {*self._around.in_line(self._around.region_of(name))} - {name}

    def peer_down(self, name: str, now: float) -> None:
        """A peer is gone."""
        self._peers.pop(name, None)
        self._held.pop(name, None)
        if self._asking is not None:
            self._answered(self._asking, name, refused=False, now=now)
        if self._sending is not None:
            self._refused(self._sending, name, now)
            self._sent(name, 0, now)

    def receive(self, name: str, message: Message, now: float) -> None:
        """A message of a connected peer."""
        peer = self._peers.get(name)
        if peer is None:
            return
        match message:
            case ProbeRequest():
                self._on_probe(name, peer, message, now)
            case ProbePadding():
                self._on_padding(name, peer, len(message.data))
            case ProbeInvite():
                self._on_offer(name, message.token, now)
            case ProbeEnd():
                self._on_end(name, message, now)
            case UplinkRate():
                peer.uplink = message.rate
            case SuppressProbes():
                if name in self._jobs.expected:
                    self.suppress(now, message.seconds)
            case _:
                pass

    def padding_ended(self, name: str, sent: int, now: float) -> None:
        """A pump has ended, for whatever reason, after so many bytes."""
        sending = self._sending
        if sending is not None and name in sending.granted:
            self._tell(name, ProbeEnd(sending.token, sent))
            self._sent(name, sent, now)

    def poll(self, flowing: bool, now: float) -> None:
        """Do what is due. flowing: whether chunks flow, or did a moment ago."""
        self._flowing = flowing or now < self._suppressed_until
        if self._flowing:
            self._give_way(now)
            return
        if self._asking is not None:
            self._watch_asking(self._asking, now)
        if self._sending is not None:
            self._watch_sending(self._sending, now)
        if self._asking is None:
            self._take_held(now)
        if self._asking is None:
            self._ask_due(now)
        if self._sending is None:
            self._offer_due(now)
        self._tell_uplink()

    def actions(self) -> list[ProbeAction]:
        """What is to be done now, in order; empties the list."""
        done, self._actions = self._actions, []
        return done

    # ---- asking ----------------------------------------------------------------------------------------------------

    def _ask_due(self, now: float) -> None:
        self._plan_regions(now)
        jobs = self._jobs
        due = [(job, region) for region, job in jobs.regions.items() if job.due <= now]
        # Plans do without, so to be sure of it comes last.
        if jobs.down is not None and jobs.down.due <= now and jobs.paths_known(now, sure=jobs.down.done):
            if jobs.down_ample:
                jobs.leave(jobs.down, now)
            else:
                due.append((jobs.down, ""))
        if not due:
            self._try_ways(now)
            return
        job, region = min(due, key=lambda one: (one[0].tries, one[0].due))
        if job is jobs.down:
            self._ask(job, self._around.fan(job, self._config.down_fan, down=True), now)
        else:
            self._ask(job, [self._around.next_in_line(region, job)], now)

    def _try_ways(self, now: float) -> None:
        """Once this node's part of the network is measured, and so the plan is no guess."""
        jobs = self._jobs
        if not jobs.measured(now):
            return
        due = [name for name, job in jobs.ways.items() if job.due <= now and name in self._peers and jobs.lacking(name)]
        if due:
            name = min(due, key=lambda name: (jobs.ways[name].tries, jobs.ways[name].due))
            self._ask(jobs.ways[name], [name], now, PRESS * jobs.expected[name])

    def _ask(self, job: Job, peers: list[str], now: float, rate: float = 0.0) -> None:
        """rate: bytes a second that are to come at most, 0: as fast as may be."""
        left = self._left(self._down_budget, self._estimates.down, self._jobs.down, now)
        if job is self._jobs.down:
            left = int(left * self._config.own)
        size = min(self._config.most, left // max(1, len(peers)))
        seconds = self._around.seconds(peers)
        if rate:
            size = min(size, max(self._config.least, int(rate * seconds)))
        if not peers or size < self._config.least:
            self._jobs.put_off(job, now, self._config.tired)
            return
        asking = _Asking(job, self._rng.getrandbits(32), set(peers), now + seconds + GRACE, self._around.steady(peers))
        asking.enough_at, asking.fan = now + _ENOUGH * seconds, frozenset(peers)
        job.tries += 1
        self._await(asking, size, seconds, rate)

    def _await(self, asking: _Asking, size: int, seconds: float, rate: float = 0.0) -> None:
        self._asking = asking
        for name in sorted(asking.peers):
            self._peers[name].owed += size
            self._peers[name].asked = True
            self._tell(name, ProbeRequest(asking.token, size, seconds, rate))

    def _watch_asking(self, asking: _Asking, now: float) -> None:
        # Whether an uplink is known is for the one who offered it to see.
        if asking.job is not None and asking.steady.reached(asking.got, now):
            asking.enough_at = now
            self._end_asking(asking, now)
        elif now >= asking.until:
            self._end_asking(asking, now)

    def _end_asking(self, asking: _Asking, now: float) -> None:
        for name in sorted(asking.peers):
            self._tell(name, ProbeRequest(asking.token, 0, 0.0))
        self._asking = None
        job = asking.job
        if job is None:
            return
        came = asking.got >= self._config.least and not asking.refused
        if came and now < asking.enough_at and asking.got < _MUCH * self._config.most:
            self._jobs.put_off(job, now, self._config.tired)
        else:
            if came and job.asked:
                job.shown.add(job.asked)
            # What came at best: from a region, where a job measures one, or at all.
            if job is self._jobs.down:
                best = self._estimates.down.value
                job.bound = self._around.wide(asking.fan) > BOUND * best
                self._jobs.judge(job, came, now, best, hidden=self._around.narrow(asking.fan, best))
                return
            mates = self._around.in_line(self._around.region_of(job.asked)) if job.asked in self._peers else []
            best = self._around.came_from(mates)
            self._jobs.judge(job, came, now, best, hidden=self._around.hidden(mates, job.shown, best))

    def _answered(self, asking: _Asking, name: str, *, refused: bool, now: float) -> None:
        if name in asking.peers:
            asking.peers.discard(name)
            asking.refused = asking.refused or refused
            if not asking.peers or asking.refused:
                self._end_asking(asking, now)

    def _on_padding(self, name: str, peer: ProbePeer, size: int) -> None:
        peer.owed -= size
        self._down_budget.spend(size)
        if peer.owed < 0:
            self._actions.append(Disconnect(name, "it sends junk that nobody asked it for"))
        if self._asking is not None and name in self._asking.peers:
            self._asking.got += size

    def _on_end(self, name: str, end: ProbeEnd, now: float) -> None:
        if self._asking is not None and end.token == self._asking.token:
            self._answered(self._asking, name, refused=end.sent == 0, now=now)
        elif self._sending is not None and end.token == self._sending.token:
            self._refused(self._sending, name, now)
        elif self._held.get(name, (None, 0.0))[0] == end.token:
            del self._held[name]

    def _on_offer(self, name: str, token: int, now: float) -> None:
        left = self._left(self._down_budget, self._estimates.down, self._jobs.down, now)
        size = min(self._config.most, int(left * self._config.own))
        # Whoever waits with an offer serves nobody: one whose ways are not known yet may have to ask just that one.
        if self._flowing or size < self._config.least or not self._jobs.paths_known(now):
            self._tell(name, ProbeEnd(token, 0))
            return
        if self._asking is not None:
            self._held[name] = token, now + PATIENCE
            return
        seconds = self._around.seconds([name])
        until = now + seconds + GRACE + PATIENCE
        self._await(_Asking(None, token, {name}, until, self._around.steady([name])), size, seconds)

    def _take_held(self, now: float) -> None:
        """The oldest offer that waits and is not too old: its peer has given up the others."""
        while self._held and self._asking is None:
            name = next(iter(self._held))
            token, until = self._held.pop(name)
            if now < until:
                self._on_offer(name, token, now)

    # ---- sending ---------------------------------------------------------------------------------------------------

    def _on_probe(self, name: str, peer: ProbePeer, probe: ProbeRequest, now: float) -> None:
        sending = self._sending
        if probe.size == 0:
            if sending is not None and sending.token == probe.token and name in sending.granted:
                self._stop(sending, name, now)
            return
        mine = sending is not None and sending.token == probe.token and name in sending.offered
        size = self._grant(probe.size, name, mine, now)
        if not size:
            self._tell(name, ProbeEnd(probe.token, 0))
            return
        seconds = min(probe.seconds, self._config.longest)
        if sending is None:
            sending = self._sending = _Sending(None, probe.token, now + seconds, self._around.steady([name]))
        sending.offered.discard(name)
        sending.granted[name] = size
        sending.seconds, sending.rate = max(sending.seconds, seconds), probe.rate
        peer.served_at = now
        if not mine:
            self._up_budget.spend(size)
        if not sending.offered:
            self._start_padding(sending, now)

    def _start_padding(self, sending: _Sending, now: float) -> None:
        """All have answered, or had time to."""
        sending.pumping = True
        sending.pumped_at = now
        sending.offered.clear()
        sending.until = now + sending.seconds
        sending.enough_at, sending.before = now + _ENOUGH * sending.seconds, self._estimates.delivered
        sending.steady = self._around.steady(sending.granted)
        for name, size in sorted(sending.granted.items()):
            self._actions.append(StartPadding(name, size, sending.until, sending.rate or self._most_to(name, sending)))

    def _most_to(self, name: str, sending: _Sending) -> float:
        """Bytes a second for one of several ways over which the own uplink is looked at; 0: as fast as may be.

        What a way is sent beyond what it gives is lost behind the uplink, where it takes the room of the others.
        """
        path = self._estimates.paths.get(name)
        if not sending.pool or len(sending.granted) == 1 or path is None or path.rtt <= NEAR:
            return 0.0
        return FULL * path.sent.value

    def _stop(self, sending: _Sending, name: str, now: float) -> None:
        """A peer wants no more."""
        if sending.pumping:
            self._actions.append(StopPadding(name))
            return
        self._sent(name, 0, now)

    def _grant(self, wished: int, name: str, mine: bool, now: float) -> int:
        """Bytes that a peer may have; 0: none now. mine: it takes up this node's own offer."""
        peer = self._peers[name]
        free = self._sending is None and now - peer.served_at >= self._config.cooling
        if self._flowing or not (mine or free):
            return 0
        if mine and self._sending is not None:
            left = self._sending.pool
        else:
            left = self._left(self._up_budget, self._estimates.up, self._jobs.up, now) - self._reserve(now)
            if peer.region == self._around.region:
                left = int(left * self._config.own)
        size = min(wished, left, self._config.most)
        return size if size >= min(wished, self._config.least) else 0

    def _reserve(self, now: float) -> int:
        """Bytes that are kept for the first look at this node's own uplink, however many ask before it: what fills up
        later is too little for a wide one."""
        return int(self._config.own * self._config.allowance) if self._jobs.up_awaited(now) else 0

    def _sent(self, name: str, sent: int, now: float) -> None:
        """What was granted to a peer is used up, or will not be used."""
        sending = self._sending
        if sending is None:
            return
        granted = sending.granted.pop(name, None)
        if granted is not None:
            self._up_budget.spend(sent if sending.pool else sent - granted)
            sending.sent += sent
        if not sending.granted and not sending.offered:
            self._end_sending(sending, now)

    def _refused(self, sending: _Sending, name: str, now: float) -> None:
        """An offer does not suit a peer: with all or with none."""
        if name in sending.offered:
            if sending.job is not None:
                sending.job.busy[name] = now
            sending.offered.discard(name)
            self._call_off(sending, now)

    def _call_off(self, sending: _Sending, now: float) -> None:
        """Before anything was pumped."""
        for name in sorted({*sending.granted, *sending.offered}):
            self._tell(name, ProbeEnd(sending.token, 0))
        sending.granted.clear()
        sending.offered.clear()
        self._end_sending(sending, now)

    def _end_sending(self, sending: _Sending, now: float) -> None:
        self._sending = None
        if sending.job is None:
            return
        if sending.pumping and now < sending.enough_at and sending.sent < _MUCH * self._config.most:
            self._jobs.put_off(sending.job, now, self._config.tired)
            return
        self._jobs.judge(sending.job, sending.pumping and self._was_seen(sending, now), now, self._estimates.up.value)

    def _was_seen(self, sending: _Sending, now: float) -> bool:
        """Whether a pump showed in what is known of the uplink: it may be too short for that over a fast one."""
        rate = sending.sent / max(SHORT, now - sending.pumped_at)
        return not self._estimates.up.value or self._estimates.up.value >= SEEN * rate

    def _tell_uplink(self) -> None:
        """To all peers, once this node's uplink is known, and when it clearly is another."""
        known, told = self._estimates.up.value, self._uplink_told
        if self._jobs.up is None or not self._jobs.up.done or (told and told / _OTHER < known < told * _OTHER):
            return
        self._uplink_told = known
        for name in sorted(self._peers) if known else ():
            self._tell(name, UplinkRate(known))

    def _watch_sending(self, sending: _Sending, now: float) -> None:
        if not sending.pumping:
            if now < sending.until:
                return
            # Who has not answered by now will not.
            self._call_off(sending, now)
            return
        steady = sending.job is not None and sending.steady.reached(self._estimates.delivered, now)
        if steady:
            sending.enough_at = now
        spent = sending.pool and self._estimates.delivered - sending.before >= sending.pool
        if steady or spent or now >= sending.until + GRACE:
            self._actions += [StopPadding(name) for name in sorted(sending.granted)]

    def _offer_due(self, now: float) -> None:
        job = self._jobs.up
        if job is None or job.due > now or not self._jobs.paths_known(now):
            return
        peers = self._around.fan(job, self._config.up_fan)
        left = self._left(self._up_budget, self._estimates.up, self._jobs.up, now)
        pool = max(int(self._config.own * left), min(left, self._reserve(now)))
        if not peers or pool < self._config.least:
            self._jobs.put_off(job, now, self._config.tired)
            return
        token = self._rng.getrandbits(32)
        until = now + GRACE + PATIENCE
        self._sending = _Sending(job, token, until, self._around.steady(peers), offered=set(peers), pool=pool)
        job.tries += 1
        for name in peers:
            self._tell(name, ProbeInvite(token))

    # ---- what, and when --------------------------------------------------------------------------------------------

    def _give_way(self, now: float) -> None:
        """Chunks flow: what is under way ends, and what was due waits."""
        for name, (token, _) in self._held.items():
            self._tell(name, ProbeEnd(token, 0))
        self._held.clear()
        if self._asking is not None:
            job, self._asking.job = self._asking.job, None
            self._end_asking(self._asking, now)
            if job is not None:
                self._jobs.put_off(job, now, self._config.pause)
        if self._sending is not None:
            job, self._sending.job = self._sending.job, None
            if job is not None:
                self._jobs.put_off(job, now, self._config.pause)
            if self._sending.pumping:
                self._actions += [StopPadding(name) for name in sorted(self._sending.granted)]
            else:
                self._call_off(self._sending, now)

    def _left(self, budget: ProbeBudget, best: WindowedMax, job: Job | None, now: float) -> int:
        return budget.left(best.value, now, known=job is not None and job.done)

    def _plan_regions(self, now: float) -> None:
        """A job for each region that a peer is in, later the later this node is in line for it."""
        regions = {self._around.region_of(name) for name in self._peers} - {self._around.region}
        jobs = self._jobs.regions
        for region in [region for region in jobs if region not in regions]:
            del jobs[region]
        for region in sorted(regions - jobs.keys()):
            jobs[region] = self._jobs.new(now + self._around.rank(region) * self._config.rank_wait)

    def _tell(self, name: str, message: ProbeRequest | ProbeEnd | ProbeInvite | UplinkRate | SuppressProbes) -> None:
        self._actions.append(SendMessage(name, message))
