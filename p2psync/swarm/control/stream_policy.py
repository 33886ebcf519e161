"""How many parallel connections carry what this node sends to a peer. Pure.

One connection whose congestion control takes each loss for a full queue gets about 1.22 · MSS / (RTT · √loss), whatever
the path could carry; more of them get more. BBR does not need that. So with BBR there are as many as at first. With
others a far peer is given as many as what the plan sends to it may take, before it is sent: a way that has too few
would pass for one that has fallen. Beyond that one to which everything is pressed, and on whose way packets are lost,
is given more in a trial: kept if the rate rose by a tenth, taken back if not, and then tried again only after growing
pauses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from p2psync.protocol.messages import MAX_STREAMS
from p2psync.swarm.control.estimators import NEAR, WindowedMax
from p2psync.swarm.control.path_estimates import PathEstimates

#: Congestion controls that keep their rate where packets are lost now and then.
TOLERANT = frozenset({"bbr", "bbr2", "bbr3"})
#: Share of lost bytes from which on more connections may help.
LOSSY = 2e-4
#: By how much a trial multiplies connections, and by how much it must raise the rate.
GROWTH, GAIN = 3, 1.1
#: Pressed seconds for which each number is watched.
WATCH = 1.0
#: Seconds until a trial that failed is repeated: at first, and at most.
REST, REST_MOST = 60.0, 960.0
#: Packets that a connection has on its way at least: with fewer it finds out about a lost one by waiting only.
LEAST_WINDOW = 5
#: More connections than this times what the loss explains are too many.
SLACK = 1.5
#: What a way is taken to lose until more is known, and at most: where flows fill a queue they lose the more, the more
#: there are.
ASSUMED = 0.01
#: Connections to a far peer to which no plan sends anything, for what may yet be measured over them.
FAR = 6
_MSS = 1448


@dataclass(slots=True)
class _Peer:
    """least: what the plan takes. wanted: the number that is watched. before: the number and rate it is compared with,
    None outside of trials."""

    least: int
    wanted: int
    before: tuple[int, float] | None = None
    best: WindowedMax = field(default_factory=WindowedMax)
    watched: float = 0.0
    rest_until: float = 0.0
    rest: float = REST


class StreamPolicy:
    """What one node wishes, for each peer. first: connections at the beginning."""

    def __init__(self, congestion: str, first: int = 2, most: int = MAX_STREAMS) -> None:
        self._tolerant = congestion in TOLERANT
        self._most = max(1, min(most, MAX_STREAMS))
        self._first = max(1, min(first, self._most))
        self._peers: dict[str, _Peer] = {}

    def wanted(self, name: str) -> int:
        """Connections that suit what is sent to a peer."""
        peer = self._peers.get(name)
        return peer.wanted if peer is not None else self._first

    def expect(self, name: str, path: PathEstimates, rate: float) -> None:
        """The plan sends so much to a peer (bytes a second)."""
        if self._tolerant or path.rtt <= NEAR:
            return
        loss = min(ASSUMED, path.loss) if path.losses.known else ASSUMED
        least = max(self._first, min(self._most, _needed(rate, path.rtt, loss) if rate else FAR))
        peer = self._peer(name)
        idle = path.pressed_since is None and peer.before is None
        # What was found while the whole path was free is too many for a part of it.
        many = peer.wanted > SLACK * least and (rate > 0 or peer.wanted == peer.least)
        if peer.wanted < least or (idle and many):
            self._turn(peer, least, None)
            peer.least = least

    def forget(self, name: str) -> None:
        """A peer is gone."""
        self._peers.pop(name, None)

    def seen(self, name: str, streams: int, path: PathEstimates, seconds: float, now: float) -> int:
        """What was sent to a peer in an interval of so many seconds, over so many connections; returns `wanted`."""
        if self._tolerant:
            return self._first
        peer = self._peer(name)
        if path.pressed_since is None or seconds <= 0:
            peer.best.pause()
            return peer.wanted
        # While others are opened or closed, what flows says nothing of the number that is watched.
        if streams == peer.wanted or (peer.before is None and streams > peer.wanted):
            peer.best.add(int(path.sending * seconds), seconds)
            peer.watched += seconds
        if peer.watched >= WATCH and peer.best.value:
            self._judge(peer, path, now)
        return peer.wanted

    def _peer(self, name: str) -> _Peer:
        return self._peers.setdefault(name, _Peer(self._first, self._first))

    def _judge(self, peer: _Peer, path: PathEstimates, now: float) -> None:
        rate = peer.best.value
        if peer.before is not None:
            before, old = peer.before
            peer.before = None
            if rate < GAIN * old:
                self._turn(peer, before, None)
                peer.rest_until, peer.rest = now + peer.rest, min(REST_MOST, 2 * peer.rest)
                return
            peer.rest = REST
        needed = max(self._first, _needed(rate, path.rtt, path.loss))
        most = min(self._most, max(self._first, int(rate * path.rtt / (LEAST_WINDOW * _MSS))))
        if min(needed * SLACK, most) < peer.wanted and peer.wanted > peer.least:
            self._turn(peer, max(peer.least, min(needed, most)), None)
        elif path.loss >= LOSSY and peer.wanted < most and now >= peer.rest_until:
            self._turn(peer, min(most, GROWTH * peer.wanted), (peer.wanted, rate))
        elif peer.watched > 60:
            self._turn(peer, peer.wanted, None)

    def _turn(self, peer: _Peer, wanted: int, before: tuple[int, float] | None) -> None:
        peer.wanted, peer.before = wanted, before
        peer.best, peer.watched = WindowedMax(), 0.0


def _needed(rate: float, rtt: float, loss: float) -> int:
    """Connections that together reach a rate (bytes a second), by the loss (a share) and round trip (seconds)."""
    if rtt <= 0 or loss <= 0:
        return 1
    each = 1.22 * _MSS / (rtt * math.sqrt(loss))
    return max(1, math.ceil(1.3 * rate / each))
