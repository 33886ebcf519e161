"""Measures the network of one node: reads its connections' counters, probes where nothing is known, sets their number.

Joins `NodeEstimates`, `Prober`, `StreamPolicy`, `PathControllers` and `UplinkPacer` to a node's connections: a timer
that ticks faster while padding flows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

from p2psync.membership.records import NodeInfo, NodeStatistics
from p2psync.protocol.messages import (
    MAX_STREAMS,
    Message,
    ProbeEnd,
    ProbeInvite,
    ProbePadding,
    ProbeRequest,
    RequestStreams,
    SuppressProbes,
    UplinkRate,
)
from p2psync.protocol.plan import NodePlan
from p2psync.swarm.control.config import INITIAL_STREAMS, NEAR_RTT_SECONDS, MeasureConfig
from p2psync.swarm.control.connections import Connection, Connections, Scheduler, TimerHandle
from p2psync.swarm.control.node_estimates import MBIT, NodeEstimates
from p2psync.swarm.control.path_controllers import PathControllers
from p2psync.swarm.control.path_estimates import PathEstimates
from p2psync.swarm.control.probe_actions import Disconnect, SendMessage, StartPadding, StopPadding
from p2psync.swarm.control.probe_sender import ProbeSender
from p2psync.swarm.control.prober import Prober
from p2psync.swarm.control.report_selection import most_paths
from p2psync.swarm.control.stream_policy import TOLERANT, StreamPolicy
from p2psync.swarm.control.tcp_sample import TcpSample
from p2psync.swarm.control.uplink_pacer import UplinkPacer

#: Seconds between looks at all connections: while junk flows, and otherwise.
TICK_PROBING, TICK = 0.1, 0.25
#: For how long after its last bytes a connection is still read, and how often an idle one is (seconds).
LINGER, IDLE_EVERY = 1.0, 5.0
#: A transfer of so many bytes takes longer than finding out what paths give; seconds without a chunk after which what
#: flows know of that is old.
LARGE, QUIET = 4 << 20, 1.0
_UNKNOWN = PathEstimates()
#: How often the number of connections to each peer is brought in line, and measures are looked at (seconds).
TEND_EVERY = 1.0


class NetworkMonitor:
    """Measures and controls the connections of one node."""

    def __init__(
        self,
        info: NodeInfo,
        peers: Connections,
        rng: random.Random,
        config: MeasureConfig,
        loop: Scheduler,
        *,
        streams: int,
        congestion: str,
        on_measures: Callable[[NodeStatistics], None] = lambda statistics: None,
        on_connections: Callable[[str, int], None] = lambda peer, count: None,
        on_pace: Callable[[float], bool] = lambda rate: False,
        others_fetch: Callable[[], bool] = lambda: False,
    ) -> None:
        """streams: connections to each peer, 0: as measurements say. congestion: their algorithm, "" for the kernel's.

        on_measures: told when something has really moved. on_connections: how many a peer has, now and then. on_pace:
        bytes a second to hand out, 0: any number; answers whether anything had to wait for that.
        others_fetch: whether peers still get what is here, over links that probes would take from them.
        """
        self._node, self._region = info.node, info.region
        self._peers = peers
        self._config = config
        self._on_measures = on_measures
        self._on_connections = on_connections
        self._on_pace = on_pace
        self._others_fetch = others_fetch
        self.estimates = NodeEstimates()
        self._prober = Prober(info.node, info.region, config.probing, self.estimates, rng)
        self._adapt = streams == 0
        self._policy = StreamPolicy(congestion, streams or INITIAL_STREAMS)
        # Two flows of BBR overflow a short queue together, and one fills a path: probes show the same over any number.
        self._one_fills = congestion in TOLERANT
        self._probe_sender = ProbeSender(peers, 1 if self._one_fills else MAX_STREAMS, self._pumped, loop)
        self._wished: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._up: set[str] = set()
        self._fresh: dict[str, str] = {}
        self._seen: dict[Connection, tuple[int, float, float]] = {}
        self._path_controllers = PathControllers(peers, probes_rtt=congestion in ("", *TOLERANT), config=config.paths)
        self._uplink_pace = UplinkPacer()
        #: Bytes of junk so far.
        self.padding_received = 0
        self._statistics = NodeStatistics()
        #: Bytes a second that the plan has this node send to each child; None: no plan.
        self._planned: dict[str, float] | None = None
        self._ticked_at = self._tended_at = 0.0
        #: Whether chunks had flowed of late when it was looked last, and when a transfer began last.
        self._flowed = False
        self._began_at = float("-inf")
        self._timer: TimerHandle | None = None
        self._loop = loop

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look at the connections."""
        self._ticked_at = self._tended_at = self._loop.time()
        self._timer = self._loop.call_later(TICK, self._tick)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._probe_sender.close()

    @property
    def padding_sent(self) -> int:
        """Bytes of junk so far."""
        return self._probe_sender.sent

    # ---- told ------------------------------------------------------------------------------------------------------

    def members(self, infos: Iterable[NodeInfo]) -> None:
        """All members of the swarm."""
        known = list(infos)
        self.estimates.keep(info.node for info in known)
        self.estimates.most_told = most_paths(len(known))
        self._prober.members(info.node for info in known if info.region == self._region)

    def planned(self, plan: NodePlan) -> None:
        """This is the plan now."""
        self.estimates.planned = frozenset(plan.peers)
        self._planned = {name: rate / MBIT for name, rate in plan.rates_to().items()}
        for name in sorted(self._up.intersection(self._planned)):
            self._tend_streams(name)
        self._expect()
        self._path_controllers.set_plan(plan)
        from_parents = {name: rate / MBIT for name, rate in plan.rates_from().items()}
        self._prober.planned(from_parents, plan.rates_to(), self._loop.time())

    def version_comes(self) -> None:
        """A version is being made here: its first chunks should not meet junk."""
        if self._config.probe:
            self._prober.suppress(self._loop.time())
            self._act()

    def transfer_begins(self, nbytes: int) -> None:
        """So many bytes are about to be fetched or pushed here. To be said before anything is sent of it, its manifest
        too: a connection that was idle for ten seconds is stopped as soon as something is acknowledged."""
        now = self._loop.time()
        # Its manifest goes ahead, and the first chunks may be quicker than whoever looks at that.
        if self._flowed or now - self._began_at < QUIET or (nbytes <= LARGE and not self._path_controllers.probes_rtt):
            return
        self._began_at = now
        far = [name for name in self._up if self.estimates.paths.get(name, _UNKNOWN).rtt > NEAR_RTT_SECONDS]
        self._path_controllers.start_transfer(set(far).difference(self._probe_sender.peers), now, nbytes)

    def peer_up(self, name: str, region: str) -> None:
        """A peer is connected, or has one more connection."""
        if name not in self._up:
            self._up.add(name)
            self._fresh[name] = region
            if region and self._region and region != self._region:
                self.estimates.regions[name] = region

    def peer_down(self, name: str) -> None:
        """A peer is gone."""
        self._up.discard(name)
        self._fresh.pop(name, None)
        self._probe_sender.stop(name)
        self._prober.peer_down(name, self._loop.time())
        self._policy.forget(name)
        self.estimates.regions.pop(name, None)
        for table in (self._wished, self._told, self._counts):
            table.pop(name, None)
        self._act()

    def dial_failed(self, name: str) -> None:
        """A member could not be reached."""
        self.estimates.failed(name)

    def message(self, name: str, message: Message) -> bool:
        """Whether a message was about measuring."""
        if isinstance(message, RequestStreams):
            self._wished[name] = message.count
            if name in self._up:
                self._tend_streams(name)
            return True
        if not isinstance(message, ProbeRequest | ProbePadding | ProbeEnd | ProbeInvite | UplinkRate | SuppressProbes):
            return False
        self._meet(name)
        if isinstance(message, ProbePadding):
            self.padding_received += len(message.data)
        self._prober.receive(name, message, self._loop.time())
        if self._prober.pending:
            self._act()
            self._hurry()
        return True

    # ---- ticking ---------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        try:
            self._look(self._loop.time())
        finally:
            self._timer = self._loop.call_later(TICK_PROBING if self._prober.busy else TICK, self._tick)

    def _look(self, now: float) -> None:
        self._read(now)
        span, self._ticked_at = now - self._ticked_at, now
        silent = now - self._peers.chunk_at
        self._flowed = silent < QUIET
        flowing = silent < self._config.probing.quiet
        flowing = flowing or (silent < self._config.probing.courtesy and self._others_fetch())
        for name in list(self._fresh):
            self._meet(name)
        if self._config.probe:
            self._prober.poll(flowing, now)
            self._act()
        self._watch_streams(span, now)
        if now - self._tended_at >= TEND_EVERY:
            self._tended_at = now
            self._tend()
            self._path_controllers.restart_idle(now)
        elif self.estimates.fell:
            self._tell()

    def _meet(self, name: str) -> None:
        """Tell the prober of a peer, once its first connection is there to show whether it is on this machine."""
        streams = self._peers.streams(name)
        region = self._fresh.pop(name, None) if streams else None
        if region is not None and (self._config.loopback or not streams[0].local):
            self._prober.peer_up(name, region, self._loop.time())

    def _hurry(self) -> None:
        """Junk is about to flow: look soon."""
        if self._timer is not None and self._timer.when() > self._loop.time() + TICK_PROBING:
            self._timer.cancel()
            self._timer = self._loop.call_later(TICK_PROBING, self._tick)

    def _read(self, now: float) -> None:
        """Read what moves; look at the rest now and then."""
        seen: dict[Connection, tuple[int, float, float]] = {}
        samples: dict[Connection, TcpSample] = {}
        for stream in self._peers.all_streams():
            moved = stream.written + stream.got
            before, moved_at, read_at = self._seen.pop(stream, (0, now, float("-inf")))
            if moved != before or stream.backlog:
                moved_at = now
            if now - moved_at < LINGER or now - read_at > IDLE_EVERY:
                samples[stream] = stream.sample()
                read_at = now
            seen[stream] = (moved, moved_at, read_at)
        for stream in self._seen:
            self.estimates.closed(stream)
        self._seen = seen
        self._path_controllers.observe(samples, now, self._probe_sender.peers)
        self.estimates.read(samples, now, self._probe_sender.leaving)
        self._pace_uplink(samples, now)

    def _pace_uplink(self, samples: Mapping[Connection, TcpSample], now: float) -> None:
        """Have chunks handed out no faster than the uplink takes them, where the plan fills it."""
        pace = self._uplink_pace
        held = self._on_pace(pace.rate)
        planned = sum(self._planned.values()) if self._planned else 0.0
        self._on_pace(pace.read(samples, now, known=self.estimates.up.value, planned=planned, held=held))

    def _watch_streams(self, span: float, now: float) -> None:
        # A flow that is limited to a rate does not show how many connections the path needs.
        for name in self._up.difference(self._probe_sender.held, self._path_controllers.paced):
            path = self.estimates.paths.get(name)
            if path is not None and (path.pressed_since is not None or path.sending):
                self._policy.seen(name, len(self._peers.streams(name)), path, span, now)

    def _tend(self) -> None:
        """Bring numbers of connections in line, and tell what has moved."""
        for name in sorted(self._up):
            self._tend_streams(name)
            if self._peers.dialled(name):
                self.estimates.failed(name, False)
        self._expect()
        self.estimates.turn(self._loop.time())
        self._tell()

    def _tell(self) -> None:
        statistics = self.estimates.statistics(down_sure=not self._config.probe or self._prober.down_sure)
        if statistics is not self._statistics:
            self._statistics = statistics
            self._on_measures(statistics)

    def _expect(self) -> None:
        """A way on which connections are still lacking gives as much less than the plan has for it."""
        if self._planned is not None:
            self.estimates.expected = {name: rate * self._share_open(name) for name, rate in self._planned.items()}

    def _share_open(self, name: str) -> float:
        if self._one_fills or not self._adapt:
            return 1.0
        return min(1.0, len(self._peers.streams(name)) / self._policy.wanted(name))

    def _tend_streams(self, name: str) -> None:
        count = len(self._peers.streams(name))
        self._on_connections(name, count)
        before = self._counts.setdefault(name, count)
        if not self._one_fills and (2 * count <= before or count >= 2 * before):
            self._counts[name] = count
            self._prober.again(name, self._loop.time())
        if not self._adapt:
            return
        if (path := self.estimates.paths.get(name)) is not None:
            self._policy.expect(name, path, (self._planned or {}).get(name, 0.0))
        wanted = self._policy.wanted(name)
        if self._peers.dialled(name):
            self._peers.set_streams(name, max(wanted, self._wished.get(name, 1)))
        elif self._told.get(name, count) != wanted:
            self._told[name] = wanted
            self._peers.send(name, RequestStreams(wanted))

    # ---- probing ---------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        while actions := self._prober.actions():
            for action in actions:
                match action:
                    case SendMessage():
                        self._peers.send(action.peer, action.message)
                    case StartPadding():
                        self._probe_sender.start(action.peer, action.size, action.until, action.rate)
                    case StopPadding():
                        self._probe_sender.stop(action.peer)
                    case Disconnect():
                        self._peers.hang_up(action.peer, action.reason)

    def _pumped(self, name: str, sent: int) -> None:
        self._prober.padding_ended(name, sent, self._loop.time())
        # From within an action the loop in `_act` goes on with what this adds; after a timer it must begin.
        self._loop.call_later(0, self._act)
