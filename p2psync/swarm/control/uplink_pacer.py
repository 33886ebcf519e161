"""Limits how fast a node hands out chunks, where the plan nearly fills its uplink. Sans-I/O.

Theory of operation. A plan that counts on most of the measured uplink keeps it busy. Then the node hands out chunks as
fast as the uplink sends them: they wait in user space, where they can be cancelled, and not in the queue before the
link, where they push each other out. The measured rate may be too low. So where chunks waited for the limit, and all
that was handed out was delivered, the limit rises: much if some connection sees no queue, else a little. Once
connections have a backlog, the uplink is full, and the limit returns to what the uplink delivered. It never falls below
about the measured rate, so the queues of other traffic do not lower it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from p2psync.swarm.control.config import EstimatorConfig, UplinkPacerConfig
from p2psync.swarm.control.estimators import DeliveryRateSampler
from p2psync.swarm.control.tcp_sample import TcpSample

_DEFAULTS = UplinkPacerConfig()
_ESTIMATES = EstimatorConfig()
_Key = TypeVar("_Key", bound=Hashable)


class UplinkPacer:
    """The limit of one node. rate: bytes/s that it may hand out; 0: no limit."""

    def __init__(self, config: UplinkPacerConfig = _DEFAULTS) -> None:
        self._config = config
        self.rate = 0.0
        #: What the uplink delivered while chunks waited (bytes/s); 0: unknown.
        self._delivered_rate = 0.0
        self._sampler = DeliveryRateSampler()
        self._last: dict[Hashable, TcpSample] = {}
        self._observed_at = 0.0
        self._was_full = False

    def observe(
        self, samples: Mapping[_Key, TcpSample], now: float, *, known: float, planned: float, has_waited: bool
    ) -> float:
        """Takes the samples of all active connections; returns the limit.

        known: measured bytes/s of the uplink; 0: unknown. planned: bytes/s that the plan has this node send.
        has_waited: whether chunks waited for the limit since the last call.
        """
        config = self._config
        seconds, self._observed_at = now - self._observed_at, now
        changes = [(self._last[key], sample) for key, sample in samples.items() if key in self._last]
        self._last = dict(samples.items())
        if not known or planned < config.binding * known:
            self._sampler = DeliveryRateSampler()
            self.rate = 0.0
            return self.rate
        delivered = sum(max(0, after.delivered - before.delivered) for before, after in changes)
        is_sample = 0 < seconds <= _ESTIMATES.max_interval and delivered >= _ESTIMATES.min_transfer_rate * seconds
        if not is_sample:
            self._sampler = DeliveryRateSampler()
            self.rate = 0.0
        else:
            self._fit(changes, delivered, seconds, has_waited)
        # The measured rate may come from a burst.
        base = max(self._delivered_rate or known, config.surely_known * known)
        self.rate = max(self.rate, config.gain * base)
        return self.rate

    def _fit(self, changes: list[tuple[TcpSample, TcpSample]], delivered: int, seconds: float, waited: bool) -> None:
        config = self._config
        full = sum(after.backlog for after in self._last.values()) > max(
            config.full_bytes, config.full_seconds * self.rate
        )
        rate = 0.0
        if waited or full:
            rate = self._sampler.rate(delivered, seconds, config.sample_seconds) or 0.0
        else:
            self._sampler = DeliveryRateSampler()
        if rate > self._delivered_rate or (rate and full and self._was_full):
            self._delivered_rate = rate
        self._was_full = full
        if full:
            self.rate = 0.0
        elif rate and rate >= config.all_delivered * self.rate:
            self.rate *= self._growth(changes)
            self._sampler = DeliveryRateSampler()

    def _growth(self, changes: list[tuple[TcpSample, TcpSample]]) -> float:
        """Returns the factor by which the limit may rise, by the shortest queue that a busy connection sees."""
        least = self._config.busy_share * _ESTIMATES.min_transfer_rate
        delay = min(
            (after.queueing_delay for before, after in changes if after.sent - before.sent > least), default=0.0
        )
        if delay < self._config.idle_delay:
            return self._config.fast_growth
        return self._config.slow_growth if delay < self._config.busy_delay else 1.0
