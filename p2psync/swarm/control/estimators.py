"""Estimates rates and losses from bytes that move in successive intervals. Sans-I/O.

A rate counts once it has lasted for some round trips: a filled hole in the sequence releases bytes at once, which is no
rate. The best rate is kept for a minute of conclusive intervals, as BBR keeps its bottleneck bandwidth.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from p2psync.swarm.control.config import EstimatorConfig

_DEFAULTS = EstimatorConfig()
#: Seconds for which a rate must last, where no round trip is known.
LASTING = _DEFAULTS.min_seconds
#: Round trips (seconds) up to which a hole in the sequence is filled at once: see `EstimatorConfig.low_rtt`.
LOW_RTT = _DEFAULTS.low_rtt


def lasting(rtt: float) -> float:
    """Returns for how long (seconds) a rate must last to count, by the round trip (0: unknown): `round_trips` of them,
    within bounds; up to `LOW_RTT` a shorter time.
    """
    if 0 < rtt <= LOW_RTT:
        return _DEFAULTS.low_rtt_seconds
    return min(_DEFAULTS.max_seconds, max(LASTING, _DEFAULTS.round_trips * rtt))


class DeliveryRateSampler:
    """Samples the rate of a flow from successive intervals."""

    def __init__(self) -> None:
        #: Time, bytes delivered and bytes sent so far at the end of each interval.
        self._points: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])

    def rate(self, delivered: int, seconds: float, min_seconds: float, sent: int | None = None) -> float | None:
        """Appends an interval; returns the rate (bytes/s), or None while the intervals are shorter than `min_seconds`.

        The rate is the least of those since each time between once and `sample_span` times `min_seconds` ago, so
        neither holes in the sequence nor queued acknowledgements raise it. sent: bytes sent for the first time; where
        acknowledgements wait for longer, more seems to be delivered than was sent, and the lower rate counts, as in
        BBR's samples (draft-ietf-ccwg-bbr, delivery rate).
        """
        at, all_delivered, all_sent = self._points[-1]
        now, all_delivered = at + seconds, all_delivered + delivered
        all_sent += delivered if sent is None else sent
        self._points.append((now, all_delivered, all_sent))
        while now - self._points[0][0] > _DEFAULTS.sample_span * min_seconds + _DEFAULTS.timer_slack:
            self._points.popleft()
        rates = [
            min(all_delivered - delivered, all_sent - sent) / (now - at)
            for at, delivered, sent in self._points
            if now - at >= min_seconds - _DEFAULTS.timer_slack
        ]
        return min(rates, default=None)


class WindowedMax:
    """The highest rate (bytes/s) that lasted, over a window of conclusive intervals."""

    def __init__(self, config: EstimatorConfig = _DEFAULTS) -> None:
        self._bucket_seconds = config.window_seconds / config.buckets
        self._sampler = DeliveryRateSampler()
        self._skipped_seconds = 0.0
        #: Conclusive seconds and the highest rate of each bucket of the window.
        self._buckets: deque[list[float]] = deque(maxlen=config.buckets)
        #: A lower bound that counts once there is a sample.
        self._floor = 0.0

    @property
    def value(self) -> float:
        """The highest rate of the window; 0 before the first sample."""
        return max((rate for _, rate in self._buckets), default=0.0)

    def add(
        self,
        delivered: int,
        seconds: float,
        *,
        min_seconds: float = LASTING,
        conclusive: bool = True,
        sent: int | None = None,
    ) -> float | None:
        """Appends an interval; returns its rate once that has lasted for `min_seconds`.

        conclusive: False if something else may have limited the rate; then it raises the maximum, and does not age it.
        sent: see `DeliveryRateSampler.rate`.
        """
        self._skipped_seconds = 0.0
        rate = self._sampler.rate(delivered, seconds, min_seconds, sent)
        if rate is None:
            return None
        if conclusive and self._buckets and self._buckets[-1][0] >= self._bucket_seconds:
            self._buckets.append([0.0, 0.0])
        self.raise_to(rate)
        if conclusive:
            self._buckets[-1][0] += seconds
        return rate

    def skip(self, delivered: int, seconds: float, min_seconds: float, sent: int | None = None) -> None:
        """Appends an interval that is no sample; after `min_seconds` of them samples start over."""
        self._skipped_seconds += seconds
        if self._skipped_seconds >= min_seconds:
            self.restart()
        else:
            self._sampler.rate(delivered, seconds, min_seconds, sent)

    def restart(self) -> None:
        """Starts samples over: the next interval does not follow the last one."""
        self._sampler = DeliveryRateSampler()

    def raise_to(self, rate: float) -> None:
        """Raises the maximum to a rate that lasted."""
        if not self._buckets:
            self._buckets.append([0.0, self._floor])
        self._buckets[-1][1] = max(self._buckets[-1][1], rate)

    def raise_floor(self, rate: float) -> None:
        """Sets a lower bound of the maximum, which counts once there is a sample. A fast link gives no sample; this
        bound keeps a slow path's rate from becoming the uplink's.
        """
        if not self._buckets:
            self._floor = max(self._floor, rate)
        elif self.value < rate:
            self._buckets[-1][1] = rate

    def replace(self, rate: float) -> None:
        """Forgets the window; `rate` is the new maximum."""
        self._buckets.clear()
        self._buckets.append([0.0, rate])


class LossEstimator:
    """The share of bytes that are retransmitted; older bytes count less."""

    def __init__(self, config: EstimatorConfig = _DEFAULTS) -> None:
        self._config = config
        self.sent = self.retransmitted = 0.0

    def add(self, sent: int, retransmitted: int) -> None:
        """Appends an interval."""
        if self.sent > self._config.loss_memory_bytes:
            self.sent, self.retransmitted = self.sent / 2, self.retransmitted / 2
        self.sent += sent
        self.retransmitted += retransmitted

    @property
    def is_known(self) -> bool:
        """Whether enough was sent for a share."""
        return self.sent >= self._config.loss_min_bytes

    @property
    def share(self) -> float:
        """The share; 0 while it is not known."""
        return min(1.0, self.retransmitted / self.sent) if self.is_known else 0.0


class FlowClock:
    """The time since which a flow runs without a longer pause."""

    def __init__(self, config: EstimatorConfig = _DEFAULTS) -> None:
        self._pause_seconds = config.pause_seconds
        self._last = float("-inf")
        self.started_at = float("-inf")

    def starts(self, now: float) -> bool:
        """Notes that the flow runs; returns whether it starts now."""
        starts = now - self._last > self._pause_seconds
        self._last = now
        if starts:
            self.started_at = now
        return starts


@dataclass(frozen=True, slots=True)
class Degradation:
    """A path or uplink that delivers far less than before. share: of its former rate. rate: bytes/s now."""

    share: float
    rate: float


class DegradationDetector:
    """Detects that a path or an uplink delivers far less than the plan expects of it."""

    def __init__(self, config: EstimatorConfig = _DEFAULTS) -> None:
        self._config = config
        #: Conclusive seconds that must be slow.
        self.settle_seconds = config.settle_seconds
        self._recent: deque[tuple[float, float]] = deque()
        self._recent_seconds = 0.0

    def add(self, rate: float, seconds: float) -> None:
        """Appends the rate of a conclusive interval."""
        self._recent.append((rate, seconds))
        self._recent_seconds += seconds
        while self._recent_seconds - self._recent[0][1] >= self.settle_seconds:
            self._recent_seconds -= self._recent.popleft()[1]

    def reset(self) -> None:
        """Forgets the recent rates."""
        self._recent.clear()
        self._recent_seconds = 0.0

    def detect(self, best: float, expected: float) -> Degradation | None:
        """Compares the recent rates with the best or the expected one (bytes/s), the lower; None: no degradation.

        The highest rate of the last `settle_seconds` must be below `degraded` times that. A path whose best rate is so
        far below the expected one was degraded before its first sample, and is compared with the expected one.
        """
        if best and best < self._config.degraded * expected:
            best = expected
        normal = min(best, expected)
        if self._recent_seconds < self.settle_seconds or not normal:
            return None
        if max(rate for rate, _ in self._recent) >= self._config.degraded * normal:
            return None
        # The highest recent rate is just below the threshold when that is noticed; the newest one is what remains.
        share = max(self._config.min_share, self._recent[-1][0] / normal)
        return Degradation(share, best * share)
