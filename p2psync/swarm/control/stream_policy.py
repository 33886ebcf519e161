"""Decides how many parallel connections carry what this node sends to a peer. Sans-I/O.

A congestion control that takes each loss for a full queue gets about 1.22 · MSS / (RTT · √loss) on one connection
(Mathis et al., 1997), whatever the path could carry. BBR does not, and keeps its first number of connections. Without
it a peer beyond `LOW_RTT` gets as many as its planned rate needs, before anything is sent: with fewer the path would
pass for a degraded one. A saturated path with losses gets more in a trial, which is kept if the rate rises by a tenth,
and repeated after growing pauses if not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from p2psync.protocol.messages import MAX_STREAMS
from p2psync.swarm.control.config import StreamPolicyConfig
from p2psync.swarm.control.estimators import LOW_RTT, WindowedMax
from p2psync.swarm.control.path_estimates import PathEstimates

#: Congestion controls that keep their rate despite occasional losses.
TOLERANT = frozenset({"bbr", "bbr2", "bbr3"})
_DEFAULTS = StreamPolicyConfig()
#: Bytes of a full segment over IPv4 with timestamps; the constant of Mathis et al. (1997).
_MSS, _MATHIS = 1448, 1.22


@dataclass(slots=True)
class _Peer:
    """The number of connections to one peer.

    least: connections that the plan needs. wanted: the current number. before: the number and rate before a trial; None
    outside of trials.
    """

    least: int
    wanted: int
    pause: float
    before: tuple[int, float] | None = None
    best: WindowedMax = field(default_factory=WindowedMax)
    watched: float = 0.0
    paused_until: float = 0.0


class StreamPolicy:
    """The numbers of connections that one node wants, by peer."""

    def __init__(self, congestion: str, first: int = 2, config: StreamPolicyConfig = _DEFAULTS) -> None:
        """first: connections to a peer until measurements say otherwise."""
        self.is_tolerant = congestion in TOLERANT
        self._config = config
        self._first = max(1, min(first, MAX_STREAMS))
        self._peers: dict[str, _Peer] = {}

    def wanted(self, name: str) -> int:
        """Returns the number of connections to a peer."""
        peer = self._peers.get(name)
        return peer.wanted if peer is not None else self._first

    def expect(self, name: str, path: PathEstimates, rate: float) -> None:
        """Takes the planned rate to a peer (bytes/s); 0: none. Raises the number to what that rate needs; lowers it
        while the path is idle.
        """
        if self.is_tolerant or path.rtt <= LOW_RTT:
            return
        # More flows that fill a queue lose more, so the measured loss has a bound.
        loss = min(self._config.assumed_loss, path.loss) if path.losses.is_known else self._config.assumed_loss
        needed = self._needed(rate, path.rtt, loss) if rate else self._config.unplanned
        least = max(self._first, min(MAX_STREAMS, needed))
        peer = self._peer(name)
        is_idle = path.network_limited_since is None and peer.before is None
        # The number for a whole path is too large for a share of it.
        is_many = peer.wanted > self._config.slack * least and (rate > 0 or peer.wanted == peer.least)
        if peer.wanted < least or (is_idle and is_many):
            self._watch(peer, least, None)
            peer.least = least

    def forget(self, name: str) -> None:
        """Forgets a disconnected peer."""
        self._peers.pop(name, None)

    def observe(self, name: str, streams: int, path: PathEstimates, seconds: float, now: float) -> int:
        """Takes an interval in which so many connections carried what was sent to a peer; returns `wanted`."""
        if self.is_tolerant:
            return self._first
        peer = self._peer(name)
        if path.network_limited_since is None or seconds <= 0:
            peer.best.restart()
            return peer.wanted
        # While connections open or close, the rate is not that of the wanted number.
        if streams == peer.wanted or (peer.before is None and streams > peer.wanted):
            peer.best.add(int(path.sending * seconds), seconds)
            peer.watched += seconds
        if peer.watched >= self._config.watch_seconds and peer.best.value:
            self._judge(peer, path, now)
        return peer.wanted

    def _peer(self, name: str) -> _Peer:
        return self._peers.setdefault(name, _Peer(self._first, self._first, self._config.pause_seconds))

    def _judge(self, peer: _Peer, path: PathEstimates, now: float) -> None:
        """Ends a trial, or changes the number: to what loss and rate explain if it is far more, to a trial of more if
        the path loses bytes.
        """
        rate, config = peer.best.value, self._config
        if peer.before is not None:
            count, old = peer.before
            peer.before = None
            if rate < config.gain * old:
                self._watch(peer, count, None)
                peer.paused_until, peer.pause = now + peer.pause, min(config.max_pause_seconds, 2 * peer.pause)
                return
            peer.pause = config.pause_seconds
        needed = max(self._first, self._needed(rate, path.rtt, path.loss))
        most = min(MAX_STREAMS, max(self._first, int(rate * path.rtt / (config.min_window * _MSS))))
        if min(needed * config.slack, most) < peer.wanted and peer.wanted > peer.least:
            self._watch(peer, max(peer.least, min(needed, most)), None)
        elif path.loss >= config.lossy and peer.wanted < most and now >= peer.paused_until:
            self._watch(peer, min(most, config.growth * peer.wanted), (peer.wanted, rate))
        elif peer.watched > config.forget_seconds:
            self._watch(peer, peer.wanted, None)

    def _watch(self, peer: _Peer, wanted: int, before: tuple[int, float] | None) -> None:
        peer.wanted, peer.before = wanted, before
        peer.best, peer.watched = WindowedMax(), 0.0

    def _needed(self, rate: float, rtt: float, loss: float) -> int:
        """Returns the connections that reach a rate (bytes/s) together, by loss (a share) and round trip (seconds)."""
        if rtt <= 0 or loss <= 0:
            return 1
        each = _MATHIS * _MSS / (rtt * math.sqrt(loss))
        return max(1, math.ceil(self._config.spare * rate / each))
