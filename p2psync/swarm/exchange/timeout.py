"""The retransmission timeout of pushed chunks: seconds from a peer's announcement of a chunk to its push."""

from __future__ import annotations

from dataclasses import dataclass

from p2psync.swarm.exchange.config import ExchangeConfig


@dataclass(slots=True)
class PushTimeout:
    """Estimates the timeout as RFC 6298 does, with its weights halved. mean, deviation: smoothed seconds."""

    config: ExchangeConfig
    mean: float = 0.0
    deviation: float = 0.0
    known: bool = False

    def sample(self, seconds: float) -> None:
        """Adds a sample: the seconds from the first announcement of a chunk to its push."""
        if not self.known:
            self.mean, self.deviation, self.known = seconds, seconds / 2, True
            return
        self.deviation += (abs(seconds - self.mean) - self.deviation) / 16
        self.mean += (seconds - self.mean) / 16

    @property
    def seconds(self) -> float:
        """The timeout: the mean plus four deviations, within bounds."""
        config = self.config
        if not self.known:
            return config.push_first
        return min(config.push_most, max(config.push_least, self.mean + 4 * self.deviation))
