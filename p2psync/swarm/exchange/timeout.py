"""The retransmission timeout of pushed chunks: how long after another peer holds one it should be here."""

from __future__ import annotations

from dataclasses import dataclass

from p2psync.swarm.exchange.config import ExchangeConfig


@dataclass(slots=True)
class PushTimeout:
    """Smoothed time and its mean deviation (seconds), with the weights of RFC 6298, halved."""

    config: ExchangeConfig
    mean: float = 0.0
    deviation: float = 0.0
    known: bool = False

    def sample(self, seconds: float) -> None:
        """A chunk was pushed here so long after some peer said to hold it."""
        if not self.known:
            self.mean, self.deviation, self.known = seconds, seconds / 2, True
            return
        self.deviation += (abs(seconds - self.mean) - self.deviation) / 16
        self.mean += (seconds - self.mean) / 16

    @property
    def seconds(self) -> float:
        """The timeout: mean and four deviations, within bounds."""
        config = self.config
        if not self.known:
            return config.push_first
        return min(config.push_most, max(config.push_least, self.mean + 4 * self.deviation))
