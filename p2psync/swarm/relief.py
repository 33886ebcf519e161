"""What others still owe a child is pushed to it by whoever has pushed its own part. A part of the swarm's core.

Ways into a region never end at the same moment: shares were reckoned from measures, and losses are luck. A parent that
holds everything, and has handed out all that went down its trees, need not stand idle until its children have noticed
and asked: it goes on with chunks that a child does not say to hold, and that have been around for a while. They come
from the far end of what others have queued, so that the two meet; which of these, each parent draws for itself, so that
several bring different ones. Such a chunk goes on below the child as any other of the tree in which it is a child.

The root knows more: when each chunk should be with each receiver (`arrivals`). What would be somewhere last it brings
at once, whoever lacks it, and it goes on below in its own tree, as if it had come down there. Where it is the root's
uplink that binds, to those who are not its children as well: else they, whom others feed alone, are last.

Of what comes twice then, nobody had a better use for the way. Where the plan fills an uplink, all pushes go first.
"""

from __future__ import annotations

import math
from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from p2psync.swarm.actions import Widen
from p2psync.swarm.ground import Ground
from p2psync.swarm.peer import Peer
from p2psync.swarm.serving import Serving
from p2psync.swarm.transfer import Transfer
from p2psync.swarm.trees import tag_of

_NEVER = float("inf")
#: For how long somebody must hold what is brought (seconds); how often is looked for what has been around so long.
HELD, _LOOK_EVERY = 0.6, 0.1
#: What may be on its way to a peer: what the plan sends it in so many seconds, at least so many chunks.
WAY_SECONDS, WAY_LEAST = 0.3, 2
#: Of what a child lacks, the last part that this is drawn from.
FAR = 0.5
#: The root brings what would else be there only so much later, and looks for it no more often than this (seconds).
LATER, _LATEST_EVERY = 0.25, 0.01
#: And so much later where the plan has it send every chunk more than so many times: a few more are no matter there.
LATER_OF_MANY, MANY = 0.1, 2.0
#: Ways on which less than this part is planned of what they carry at the end are tried with so many chunks before it,
#: all together with no more than what the uplink brings in so many seconds.
HARDLY, TRIED, TRIED_SECONDS = 0.5, 10, 0.1


class Relief:
    """The relief that one node gives its children. `poll` is due at `next_wake`."""

    def __init__(self, ground: Ground, serving: Serving) -> None:
        self._ground = ground
        self._serving = serving
        self.next_wake = _NEVER
        #: Of each manifest, when it was last looked for what would be somewhere last.
        self._looked_at: dict[bytes, float] = {}
        #: Of each manifest, the ways that were made ready for more than was planned, and when some may be tried first.
        self._widened: dict[bytes, set[str]] = {}
        self._tries_at: dict[bytes, float] = {}

    def begin(self, transfer: Transfer, now: float) -> None:
        """All of a manifest came here along trees."""
        transfer.relieves = bool(transfer.held.all())
        if transfer.relieves:
            self.next_wake = now

    def flushed(self, peer: Peer, now: float) -> None:
        """Something has left for this peer."""
        for short, transfer in self._ground.transfers.items():
            if transfer.ends and transfer.arrivals is not None and now >= self._tries_at.get(short, -_NEVER):
                self._try_ways(short, transfer, now)
        if not peer.queue and not peer.pushes:
            for short, transfer in self._ready():
                self._relieve(short, transfer, [peer], now)

    def poll(self, now: float) -> None:
        """Do what time has made due."""
        if now < self.next_wake:
            return
        self.next_wake = _NEVER
        for short, transfer in self._ready():
            self._relieve(short, transfer, self._relieved(transfer), now)

    def _relieve(self, short: bytes, transfer: Transfer, peers: list[Peer], now: float) -> None:
        """Bring what would be somewhere last, and then to those of these peers who are children what they lack."""
        self._bring_latest(short, transfer, now)
        every = _LOOK_EVERY if transfer.arrivals is None else _LATEST_EVERY
        for peer in peers:
            if self._lacks(peer, short, transfer).any():
                if peer.name in self._ground.trees.first_hops:
                    self._give(peer, short, transfer, now)
                self.next_wake = min(self.next_wake, now + every)

    def _relieved(self, transfer: Transfer) -> list[Peer]:
        """Whom this node may bring something: its children, and where a root's uplink binds everybody, since then it is
        not the ways to them that do."""
        peers = self._ground.peers
        everybody = transfer.arrivals is not None and self._serving.outflow.rate
        return [peers[name] for name in sorted(peers if everybody else self._ground.trees.first_hops & peers.keys())]

    def _ready(self) -> list[tuple[bytes, Transfer]]:
        """What is all here, and out. Of small manifests all is on its way at once."""
        transfers, small = self._ground.transfers.items(), self._ground.config.flight_least
        return [(short, transfer) for short, transfer in transfers if transfer.relieves and transfer.size > small]

    def _bring_latest(self, short: bytes, transfer: Transfer, now: float) -> None:
        """Where it is known what would be somewhere last: bring that, and then what would be last of the rest."""
        if transfer.arrivals is None or now < self._looked_at.get(short, -_NEVER) + _LATEST_EVERY:
            return
        self._looked_at = {short: at for short, at in self._looked_at.items() if short in self._ground.transfers}
        self._widened = {short: names for short, names in self._widened.items() if short in self._ground.transfers}
        self._looked_at[short] = now
        late = self._late(short, transfer, now)
        self._widen(short, late.keys(), self._part(len(late)))
        brought: dict[str, list[tuple[float, int]]] = {}
        for name, (times, chunks) in late.items():
            room = self._room(self._ground.peers[name], short, transfer, len(late))
            last = np.argsort(times)[max(0, len(times) - room) :]
            brought[name] = list(zip(times[last].tolist(), chunks[last].tolist(), strict=True))
        while (left := {name: ranked for name, ranked in brought.items() if ranked}) and self._serving.is_idle(now):
            name = max(left, key=lambda name: left[name][-1])
            if not self._may_push(self._ground.peers[name], transfer):
                del brought[name]
                continue
            _, index = brought[name].pop()
            self._serving.push(name, transfer, short, index, now)

    def _late(
        self, short: bytes, transfer: Transfer, now: float
    ) -> dict[str, tuple[NDArray[np.float64], NDArray[np.intp]]]:
        """Of each peer what it should have clearly later: when (seconds), and which chunks."""
        assert transfer.arrivals is not None
        late, least = {}, self._later()
        for peer in self._relieved(transfer):
            lacked = np.flatnonzero(self._lacks(peer, short, transfer))
            times = transfer.arrivals.expected(peer.name, lacked)
            later = times >= now + least
            if later.any():
                late[peer.name] = (times[later], lacked[later])
        return late

    def _later(self) -> float:
        plan = self._ground.trees.plan
        assert plan is not None
        rate = sum(place.rate for place in plan.positions)
        return LATER_OF_MANY if sum(plan.rates_to().values()) > MANY * rate else LATER

    def _widen(self, short: bytes, names: Set[str], part: float) -> None:
        """The ways to those who get more now than was planned, so many bytes a second each, are made ready for it, once
        for each manifest.

        Congestion control knows of such a way what little went there, and would take most of a second to find more.
        """
        widened = self._widened.setdefault(short, set())
        for name in sorted(self._below(names, part) - widened):
            self._ground.actions.append(Widen(name, part))
            widened.add(name)

    def _part(self, among: int) -> float:
        """Bytes a second of the uplink for each of so many."""
        return self._serving.outflow.rate / max(1, among)

    def _below(self, names: Set[str], rate: float) -> set[str]:
        """Those of these to whom less than so many bytes a second was planned."""
        plan = self._ground.trees.plan
        assert plan is not None
        planned = plan.rates_to()
        return {name for name in names if planned.get(name, 0.0) * 125_000 < rate}

    def _try_ways(self, short: bytes, transfer: Transfer, now: float) -> None:
        """Soon all is put in: ways that carry hardly anything as planned, and much from then on, are tried with a few
        of the chunks that will be late there. Else the first ones take as long as all others together."""
        # Where it sends every chunk about once, its uplink has nothing to spare before all is put in.
        late = self._late(short, transfer, now) if self._later() < LATER else {}
        self._tries_at = {short: at for short, at in self._tries_at.items() if short in self._ground.transfers}
        self._tries_at[short] = _NEVER if late else now + _LOOK_EVERY
        part = self._part(len(late))
        hardly = self._below(late.keys(), HARDLY * part)
        self._widen(short, hardly, part)
        room = self._serving.outflow.rate * TRIED_SECONDS / transfer.typical
        each = min(TRIED, int(room / max(1, len(hardly))))
        for name in sorted(hardly) if each else ():
            times, chunks = late[name]
            for index in chunks[np.argsort(times)[-each:]].tolist():
                self._serving.push(name, transfer, short, index, now)

    def _give(self, peer: Peer, short: bytes, transfer: Transfer, now: float) -> None:
        """Fill what room there is to this child."""
        among = len(self._ground.trees.first_hops)
        while not self._is_busy and self._room(peer, short, transfer, among):
            lacked = np.flatnonzero(self._lacks(peer, short, transfer) & (transfer.heard <= now - HELD))
            if not len(lacked):
                return
            index = self._draw(lacked, transfer.heard[lacked])
            if not self._serving.push(peer.name, transfer, short, index, now, tag=self._tag(peer.name)):
                return

    def _draw(self, lacked: NDArray[np.intp], heard: NDArray[np.float64]) -> int:
        """One of those heard of last."""
        far = max(1, round(FAR * len(lacked)))
        last = lacked[np.argpartition(-heard, far - 1)[:far]]
        return int(last[self._ground.rng.randrange(far)])

    def _lacks(self, peer: Peer, short: bytes, transfer: Transfer) -> NDArray[np.bool_]:
        """What a peer wants and was not given from here, as far as is known."""
        if not peer.takes(short):
            return np.zeros(len(transfer.held), np.bool_)
        theirs, given = peer.holds.get(short), peer.given.get(short)
        lacked = np.ones(len(transfer.held), np.bool_) if theirs is None else ~theirs
        return lacked if given is None else lacked & ~given

    @property
    def _is_busy(self) -> bool:
        """Whether the plan fills this uplink, and something is still to be pushed."""
        peers = self._ground.peers.values()
        return bool(self._serving.outflow.rate) and any(peer.queue or peer.pushes for peer in peers)

    def _room(self, peer: Peer, short: bytes, transfer: Transfer, among: int) -> int:
        """How many chunks may be pushed to a peer now. among: how many share the uplink."""
        if not self._may_push(peer, transfer):
            return 0
        return max(0, math.ceil(self._most_on_way(peer.name, transfer, among)) - self._on_way(peer, short))

    def _may_push(self, peer: Peer, transfer: Transfer) -> bool:
        """Whether nothing waits for a peer."""
        return not peer.queue and not peer.pushes and self._serving.may_hand_out(peer, transfer)

    def _on_way(self, peer: Peer, short: bytes) -> int:
        """Chunks that were pushed to a peer and that it does not say to hold."""
        theirs, given = peer.holds.get(short), peer.given.get(short)
        if given is None:
            return 0
        return int(np.count_nonzero(given if theirs is None else given & ~theirs))

    def _most_on_way(self, name: str, transfer: Transfer, among: int) -> float:
        plan = self._ground.trees.plan
        assert plan is not None
        # Where it is the uplink that binds, there is an equal part of it for each, whatever was planned.
        rate = max(plan.rates_to().get(name, 0.0) * 125_000, self._serving.outflow.rate / max(1, among))
        return max(WAY_LEAST, rate * WAY_SECONDS / transfer.typical)

    def _tag(self, name: str) -> int:
        """Of the widest tree in which this is a child."""
        trees, plan = self._ground.trees, self._ground.trees.plan
        assert plan is not None
        below = [tree for tree, children in enumerate(trees.children) if name in children]
        return tag_of(plan.revision, max(below, key=lambda tree: plan.shares[tree]))
