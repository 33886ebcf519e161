"""What probing may cost a link, and when a probe has shown what it can. Pure."""

from __future__ import annotations

from collections import deque

from p2psync.swarm.control.config import ProbeConfig
from p2psync.swarm.control.estimators import LASTING, lasting

#: Bytes from which on something flows.
_BEGUN = 32 << 10


class ProbeBudget:
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


class ConvergenceDetector:
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
