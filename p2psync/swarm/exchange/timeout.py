"""The retransmission timeout of pushed chunks: seconds from a peer's announcement of a chunk to its push."""

from __future__ import annotations

from dataclasses import dataclass

from p2psync.swarm.exchange.config import ExchangeConfig

#: RFC 6298, section 2.
_DEVIATIONS = 4


@dataclass(slots=True)
class PushTimeout:
    """Estimates the timeout as RFC 6298 does: mean plus four deviations. mean, deviation: smoothed seconds.

    Both weights are `push_weight`, where RFC 6298 has 1/8 for the mean and 1/4 for the deviation.
    """

    config: ExchangeConfig
    mean: float = 0.0
    deviation: float = 0.0
    known: bool = False

    def sample(self, seconds: float) -> None:
        """Adds a sample: the seconds from the first announcement of a chunk to its push."""
        if not self.known:
            self.mean, self.deviation, self.known = seconds, seconds / 2, True
            return
        self.deviation += (abs(seconds - self.mean) - self.deviation) * self.config.push_weight
        self.mean += (seconds - self.mean) * self.config.push_weight

    @property
    def seconds(self) -> float:
        """The timeout: the mean plus four deviations, within bounds."""
        config = self.config
        if not self.known:
            return config.push_first
        return min(config.push_most, max(config.push_least, self.mean + _DEVIATIONS * self.deviation))
