"""Detects a path whose congestion control uses far less than its planned rate, and should restart. Sans-I/O.

Theory of operation. BBR keeps the bandwidth that it measured last: after a pause that of a few small messages, or the
rate beside other flows. From there it grows by a quarter in eight round trips. A path of 100 ms that starts at a fifth
of its planned rate takes six seconds to reach it. After a restart BBR doubles its rate in each round trip. So a path
restarts that always has data to send, loses little, delivers far less than expected and does not grow. If restarts do
not help, the plan is wrong, and the path is left to TCP until the next plan.
"""

from __future__ import annotations

import math

from p2psync.swarm.control.config import SlowPathConfig
from p2psync.swarm.control.interval import Interval

_DEFAULTS = SlowPathConfig()


class SlowPathDetector:
    """Compares what one path delivers with what the plan expects of it."""

    def __init__(self, config: SlowPathConfig = _DEFAULTS) -> None:
        self._config = config
        self._planned = 0.0
        self._failed_restarts = 0
        #: Delivery rate before the last restart, and the backlogged seconds since.
        self._rate_before, self._since = 0.0, config.grace_seconds
        self._slow_samples = 0
        self._last_rate = math.inf
        self._sample = Interval()

    def set_planned(self, rate: float) -> None:
        """Sets the planned rate (bytes/s); another rate allows restarts again."""
        if rate != self._planned:
            self._planned, self._failed_restarts = rate, 0

    def skip(self) -> None:
        """Starts the sample over: data did not wait all the time."""
        self._sample = Interval()
        self._last_rate = math.inf

    def observe(self, interval: Interval, pacing_rate: float) -> bool:
        """Returns whether the path should restart. pacing_rate: its limit (bytes/s); 0: none.

        It should after `slow_samples` slow samples in a row, no sooner than `grace_seconds` after the last restart, and
        unless the last restarts did not help.
        """
        self._sample.add(interval)
        if self._sample.seconds < self._config.sample_seconds:
            return False
        sample, self._sample = self._sample, Interval()
        rate = sample.delivery_rate
        self._since += sample.seconds
        expected = min(self._planned, pacing_rate or math.inf)
        grows, self._last_rate = rate >= self._config.growing * self._last_rate, rate
        slow = rate < self._config.slow * expected and sample.loss < self._config.max_loss and not grows
        self._slow_samples = self._slow_samples + 1 if slow else 0
        if self._slow_samples < self._config.slow_samples or self._since < self._config.grace_seconds:
            return False
        return self._try_restart(rate)

    def _try_restart(self, rate: float) -> bool:
        if self._failed_restarts >= self._config.max_failed:
            return False
        self._failed_restarts = self._failed_restarts + 1 if rate < self._config.helped * self._rate_before else 0
        if self._failed_restarts >= self._config.max_failed:
            return False
        self._rate_before, self._since, self._slow_samples = rate, 0.0, 0
        return True
