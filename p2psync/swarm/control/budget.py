"""What probing may cost a link, and when a probe has shown what it can. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from p2psync.swarm.control.best import LASTING, lasting

#: Bytes from which on something flows.
_BEGUN = 32 << 10


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """Settings of probing. Bytes and seconds.

    share: of a link that probing may take in the long run, counted over `window`. allowance: what it may take besides
    in this node's life, so that a newcomer can measure at once; no more than `allowance_seconds` of what the link is
    known to give. own: the part of what is left that one measuring of a node's own links may take at each end: on fast
    links nothing would be left for the paths between regions, which bind plans more often. assumed: bytes a second of a
    link that nobody measured. most, least: bytes asked of one peer in one probe. shortest, longest: how long a probe
    may take, and by how many round trips it is longer than the shortest. up_fan, down_fan: peers that a node's whole
    uplink or downlink is measured with; one less after each `tries` in which not all had time. settle: a newcomer
    probes the paths to other regions first, and its own links after so long. rank_wait: by how much each node of a
    region comes after the one before it. spread: how far first probes are spread at random. stale: after which a figure
    is measured again; again: after which it is the first time, or where it was found with fewer peers. pause: after a
    probe that came to nothing, about. tired: when there is nothing left to spend. cooling: for which a peer is not
    served again. quiet: for which no chunk may have flowed. courtesy: for how long after its last chunk a node waits
    for others who still fetch what it has.
    """

    share: float = 0.01
    window: float = 60.0
    allowance: int = 256 << 20
    allowance_seconds: float = 10.0
    own: float = 0.35
    assumed: float = 2.5e6
    most: int = 64 << 20
    least: int = 64 << 10
    shortest: float = 1.6
    longest: float = 20.0
    trips: float = 14.0
    up_fan: int = 2
    down_fan: int = 3
    tries: int = 3
    settle: float = 4.0
    rank_wait: float = 30.0
    spread: float = 1.0
    stale: float = 600.0
    again: float = 10.0
    pause: float = 1.0
    tired: float = 30.0
    cooling: float = 1.0
    quiet: float = 1.0
    courtesy: float = 10.0


class Budget:
    """A token bucket, in bytes, for one direction of a node's link."""

    def __init__(self, config: ProbeConfig) -> None:
        self._config = config
        self._tokens = float(config.allowance)
        self._filled_at: float | None = None

    def left(self, rate: float, now: float, *, known: bool) -> int:
        """Bytes that may be spent now. rate: bytes a second that the link gave at best; known: that it can give."""
        config = self._config
        refill = config.share * (rate if known else max(rate, config.assumed))
        if known:
            self._tokens = min(self._tokens, max(config.allowance_seconds * rate, refill * config.window))
        if self._filled_at is not None and self._tokens < refill * config.window:
            self._tokens = min(refill * config.window, self._tokens + refill * max(0.0, now - self._filled_at))
        self._filled_at = now
        return max(0, int(self._tokens))

    def spend(self, nbytes: int) -> None:
        """So many bytes were used; fewer than none: given back."""
        self._tokens -= nbytes


class Steady:
    """Whether a flow has found its rate: it gives no more in the last while than in the one before."""

    def __init__(self, round_trip: float) -> None:
        self._while = lasting(round_trip)
        # A rate that doubles each round trip has come a long way by then.
        self._least = 0.8 + 10 * round_trip if self._while >= LASTING else 0.0
        self._seen: deque[tuple[float, int]] = deque()
        self._begun: float | None = None

    def reached(self, total: int, now: float) -> bool:
        """total: bytes so far, counted from anywhere."""
        if self._seen and self._begun is None and total - self._seen[0][1] >= _BEGUN:
            self._begun = now
        self._seen.append((now, total))
        while len(self._seen) > 2 and self._seen[1][0] <= now - 2 * self._while:
            self._seen.popleft()
        if self._begun is None or now - self._begun < max(self._least, 2 * self._while):
            return False
        # Between the two whiles, at the nearest look.
        middle = min(self._seen, key=lambda look: abs(look[0] - (now - self._while)))
        earlier = (middle[1] - self._seen[0][1]) / max(1e-9, middle[0] - self._seen[0][0])
        later = (total - middle[1]) / max(1e-9, now - middle[0])
        return earlier > 0 and 0.85 * earlier < later < 1.1 * earlier
