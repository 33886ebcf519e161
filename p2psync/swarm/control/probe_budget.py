"""How many bytes probes may cost a link, and when the rate of a probe has converged. Pure."""

from __future__ import annotations

from collections import deque

from p2psync.swarm.control.config import ProbeConfig
from p2psync.swarm.control.estimators import LASTING, lasting

_DEFAULTS = ProbeConfig()


class ProbeBudget:
    """A token bucket, in bytes, for one direction of a node's link."""

    def __init__(self, config: ProbeConfig) -> None:
        self._config = config
        self._tokens = float(config.initial_bytes)
        self._filled_at: float | None = None

    def available(self, rate: float, now: float, *, is_measured: bool) -> int:
        """Returns the bytes that may be spent now. rate: bytes a second of the link, if is_measured, else at least.

        The bucket starts with `initial_bytes`, and keeps of them what the link carries in `initial_seconds` once that
        is measured. It refills with `link_share` of the rate, up to what comes in `budget_window`.
        """
        config = self._config
        refill = config.link_share * (rate if is_measured else max(rate, config.assumed_rate))
        most = refill * config.budget_window
        if is_measured:
            self._tokens = min(self._tokens, max(config.initial_seconds * rate, most))
        if self._filled_at is not None and self._tokens < most:
            self._tokens = min(most, self._tokens + refill * max(0.0, now - self._filled_at))
        self._filled_at = now
        return max(0, int(self._tokens))

    def spend(self, nbytes: int) -> None:
        """Takes so many bytes, or gives them back if negative."""
        self._tokens -= nbytes


class ConvergenceDetector:
    """Notices when a flow has found its rate: the last interval gave about as much as the one before.

    Each interval is as long as a rate must last (`lasting`). Beyond `LOW_RTT`, startup gets its time first.
    """

    def __init__(self, rtt: float, config: ProbeConfig = _DEFAULTS) -> None:
        """rtt: of the farthest peer (seconds)."""
        self._config = config
        self._interval = lasting(rtt)
        startup_seconds = config.converged_seconds + config.converged_round_trips * rtt
        self._least = startup_seconds if self._interval >= LASTING else 0.0
        self._seen: deque[tuple[float, int]] = deque()
        self._started_at: float | None = None

    def has_converged(self, total: int, now: float) -> bool:
        """Takes the bytes that moved so far, counted from anywhere; returns whether the rate has converged."""
        if self._seen and self._started_at is None and total - self._seen[0][1] >= self._config.started_bytes:
            self._started_at = now
        self._seen.append((now, total))
        while len(self._seen) > 2 and self._seen[1][0] <= now - 2 * self._interval:
            self._seen.popleft()
        if self._started_at is None or now - self._started_at < max(self._least, 2 * self._interval):
            return False
        middle = min(self._seen, key=lambda seen: abs(seen[0] - (now - self._interval)))
        earlier = (middle[1] - self._seen[0][1]) / max(1e-9, middle[0] - self._seen[0][0])
        later = (total - middle[1]) / max(1e-9, now - middle[0])
        return earlier > 0 and self._config.converged_least * earlier < later < self._config.converged_most * earlier
