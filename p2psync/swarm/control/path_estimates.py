"""Estimates what the path to one peer carries: round trip, best rates, loss, and degradation. Sans-I/O."""

from __future__ import annotations

from dataclasses import dataclass

from p2psync.swarm.control.config import EstimatorConfig
from p2psync.swarm.control.estimators import (
    Degradation,
    DegradationDetector,
    FlowClock,
    LossEstimator,
    WindowedMax,
    lasting,
)

_DEFAULTS = EstimatorConfig()


@dataclass(slots=True)
class Flow:
    """The counts of all connections to one peer in an interval. Bytes, and numbers of connections.

    backlogged: connections with data to send at one end of the interval at least. saturated: of these, those that the
    network alone limited. is_paced: one sent about as much as its pacing limit lets it.
    """

    delivered: int = 0
    received: int = 0
    sent: int = 0
    retransmitted: int = 0
    connections: int = 0
    backlogged: int = 0
    saturated: int = 0
    is_paced: bool = False

    @property
    def is_network_limited(self) -> bool:
        """Whether the network set the rate. Half of the connections suffice: the last chunks leave them one by one."""
        return self.connections > 0 and 2 * self.saturated >= self.connections

    @property
    def sent_once(self) -> int:
        """Bytes sent for the first time; or the retransmitted ones if these were most, since then they arrive."""
        return max(self.sent - self.retransmitted, self.retransmitted)


class PathEstimates:
    """The estimates of one path. Bytes/s and seconds; read the attributes, change them through the methods."""

    def __init__(self, rtt: float = 0.0, config: EstimatorConfig = _DEFAULTS) -> None:
        self._config = config
        #: The least round trip; 0: unknown.
        self.rtt = 0.0
        self.sent = WindowedMax(config)
        self.received = WindowedMax(config)
        self.losses = LossEstimator(config)
        #: Delivery rate of the last interval.
        self.sending = 0.0
        #: Since when the network limits the path; None: it does not.
        self.network_limited_since: float | None = None
        #: When chunks or padding last moved.
        self.used_at = 0.0
        #: The share of the best rate that remained when the path degraded; 0: it did not.
        self.degraded_to = 0.0
        self._degraded_rate = 0.0
        #: The planned rate, and the share of it that remains until the plan changes.
        self._planned, self._planned_share = 0.0, 1.0
        self._detector = DegradationDetector(config)
        self._clock = FlowClock(config)
        self.learn_rtt(rtt)

    @property
    def loss(self) -> float:
        """The share of bytes that a flow at its rate retransmits; 0 if that is not known."""
        return self.losses.share

    @property
    def min_seconds(self) -> float:
        """The seconds for which a rate must last to count."""
        return lasting(self.rtt)

    def learn_rtt(self, rtt: float) -> None:
        """Takes a round trip; 0: none."""
        if rtt > 0:
            self.rtt = min(self.rtt or rtt, rtt)
            # The repair of one loss takes some round trips.
            settle = self._config.settle_round_trips * self.rtt
            self._detector.settle_seconds = max(self._config.settle_seconds, settle)

    def has_found_its_rate(self, now: float) -> bool:
        """Returns whether the flow runs for long enough to have found its rate."""
        return now - self._clock.started_at >= self._ramp

    def observe(self, flow: Flow, seconds: float, now: float, *, conclusive: bool) -> float | None:
        """Takes an interval; returns the rate sent if the network limited it and it lasted.

        conclusive: False if other flows may have limited the rate: they use the same link, or it was padding. Nor is an
        interval conclusive in which the flow reached its pacing limit, or had not run for long enough to find its rate.
        Losses count once the network has limited the path for as long.
        """
        self.sending = flow.delivered / seconds
        if max(flow.delivered, flow.received) >= self._config.min_transfer_rate * seconds:
            self.used_at = now
        limited = flow.is_network_limited
        if (limited or self.sending >= self._config.min_transfer_rate) and self._clock.starts(now):
            self._detector.reset()
        since = self.network_limited_since
        if since is not None and flow.connections and now - since >= self._ramp:
            self.losses.add(flow.sent, flow.retransmitted)
        self._observe_received(flow, seconds)
        if not limited:
            self.network_limited_since = None
            if flow.backlogged:
                self.sent.skip(flow.delivered, seconds, self.min_seconds, flow.sent_once)
            else:
                self.sent.restart()
            return None
        if since is None:
            self.network_limited_since = now
        return self._observe_sent(flow, seconds, conclusive and not flow.is_paced and self.has_found_its_rate(now))

    def degradation(self, planned: float) -> Degradation | None:
        """Returns how far the path is below its planned rate, None if it is not. Until a plan changes that rate, the
        path is expected to deliver what remained when it degraded last."""
        if planned != self._planned:
            self._planned, self._planned_share = planned, 1.0
        if 0 < self.degraded_to <= self._config.min_share:
            return None
        return self._detector.detect(self.sent.value, planned * self._planned_share)

    def degrade(self, degradation: Degradation) -> None:
        """Replaces the best rate by the degraded one."""
        self.degraded_to = (self.degraded_to or 1.0) * degradation.share
        self._planned_share *= degradation.share
        self._degraded_rate = degradation.rate
        self.sent.replace(degradation.rate)
        self._detector.reset()

    def pardon(self) -> None:
        """Forgets recent low rates: the uplink caused them."""
        self._detector.reset()

    @property
    def _ramp(self) -> float:
        return self._config.ramp_seconds + self._config.ramp_round_trips * self.rtt

    def _observe_sent(self, flow: Flow, seconds: float, conclusive: bool) -> float | None:
        rate = self.sent.add(
            flow.delivered, seconds, min_seconds=self.min_seconds, conclusive=conclusive, sent=flow.sent_once
        )
        if rate is not None and conclusive:
            self._detector.add(rate, seconds)
        if self.degraded_to and self.sent.value >= self._config.recovered * self._degraded_rate:
            self.degraded_to, self._planned_share = 0.0, 1.0
            self._detector.reset()
        return rate

    def _observe_received(self, flow: Flow, seconds: float) -> None:
        observe_received(self.received, flow.received, seconds, self.min_seconds, self._config)


def observe_received(
    best: WindowedMax, received: int, seconds: float, min_seconds: float, config: EstimatorConfig = _DEFAULTS
) -> None:
    """Takes received bytes, which only raise the maximum: the sender alone knows what limited it.

    Small messages are no transfer, but a hole in the sequence does not end one.
    """
    if received >= config.min_transfer_rate * seconds:
        best.add(received, seconds, min_seconds=min_seconds, conclusive=False)
    else:
        best.skip(received, seconds, min_seconds)
