"""How many parallel connections carry what this node sends to a peer. Pure.

One connection whose congestion control takes each loss for a full queue gets about 1.22 · MSS / (RTT · √loss), whatever
the path could carry; more of them get more. BBR does not need that. So with BBR there are as many as at first; with
others a peer to which everything is pressed, and on whose way packets are lost, is given more in a trial: kept if the
rate rose by a tenth, taken back if not, and then tried again only after growing pauses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from p2psync.protocol.messages import MAX_STREAMS
from p2psync.swarm.gauges import Best, Gauge

#: Congestion controls that keep their rate where packets are lost now and then.
TOLERANT = frozenset({"bbr", "bbr2", "bbr3"})
#: Share of lost bytes from which on more connections may help.
LOSSY = 2e-4
#: Share from which on flows of BBR drown each other.
DROWNING = 0.05
#: By how much a trial multiplies connections, and by how much it must raise the rate.
GROWTH, GAIN = 3, 1.1
#: Pressed seconds for which each number is watched.
WATCH = 1.0
#: Seconds until a trial that failed is repeated: at first, and at most.
REST, REST_MOST = 60.0, 960.0
#: More connections than this times what the loss explains are too many.
SLACK = 1.5
_MSS = 1448


@dataclass(slots=True)
class _Peer:
    """wanted: the number that is watched. before: the number and rate it is compared with, None outside of trials."""

    wanted: int
    before: tuple[int, float] | None = None
    best: Best = field(default_factory=Best)
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

    def forget(self, name: str) -> None:
        """A peer is gone."""
        self._peers.pop(name, None)

    def seen(self, name: str, streams: int, gauge: Gauge, seconds: float, now: float) -> int:
        """What was sent to a peer in an interval of so many seconds, over so many connections; returns `wanted`."""
        peer = self._peers.setdefault(name, _Peer(self._first))
        if gauge.pressed_since is None or seconds <= 0:
            peer.best.pause()
            return peer.wanted
        # While others are opened or closed, what flows says nothing of the number that is watched.
        if streams == peer.wanted or (peer.before is None and streams > peer.wanted):
            peer.best.add(int(gauge.sending * seconds), seconds)
            peer.watched += seconds
        if peer.watched >= WATCH and peer.best.value:
            self._judge(peer, gauge, now)
        return peer.wanted

    def _judge(self, peer: _Peer, gauge: Gauge, now: float) -> None:
        rate = peer.best.value
        if self._tolerant:
            self._judge_tolerant(peer, gauge, rate, now)
            return
        if peer.before is not None:
            before, old = peer.before
            peer.before = None
            if rate < GAIN * old:
                self._turn(peer, before, None)
                peer.rest_until, peer.rest = now + peer.rest, min(REST_MOST, 2 * peer.rest)
                return
            peer.rest = REST
        needed = _needed(rate, gauge)
        if peer.wanted > self._first and needed * SLACK < peer.wanted:
            self._turn(peer, max(self._first, needed), None)
        elif gauge.loss >= LOSSY and peer.wanted < self._most and now >= peer.rest_until:
            self._turn(peer, min(self._most, GROWTH * peer.wanted), (peer.wanted, rate))
        elif peer.watched > 60:
            self._turn(peer, peer.wanted, None)

    def _judge_tolerant(self, peer: _Peer, gauge: Gauge, rate: float, now: float) -> None:
        if peer.before is not None and rate * GAIN < peer.before[1]:
            self._turn(peer, self._first, None)
            peer.rest_until, peer.rest = now + peer.rest, min(REST_MOST, 2 * peer.rest)
        elif peer.wanted > 1 and gauge.loss >= DROWNING and now >= peer.rest_until:
            self._turn(peer, 1, (peer.wanted, rate))
        elif peer.watched > WATCH:
            peer.before = None

    def _turn(self, peer: _Peer, wanted: int, before: tuple[int, float] | None) -> None:
        peer.wanted, peer.before = wanted, before
        peer.best, peer.watched = Best(), 0.0


def _needed(rate: float, gauge: Gauge) -> int:
    """Connections that together reach a rate (bytes a second), by the loss and round trip that were measured."""
    if gauge.rtt <= 0 or gauge.loss <= 0:
        return 1
    each = 1.22 * _MSS / (gauge.rtt * math.sqrt(gauge.loss))
    return max(1, math.ceil(1.2 * rate / each))
