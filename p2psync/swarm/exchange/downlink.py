"""The download rate of a node over all its peers, while it fetches: an estimate of its downlink."""

from __future__ import annotations

from dataclasses import dataclass

from p2psync.swarm.exchange.config import DOWNLINK_MAX_GAP_SECONDS, DOWNLINK_MEMORY_SECONDS, DOWNLINK_MIN_SECONDS


@dataclass(slots=True)
class Downlink:
    """The rate of the last busy period, in which requests were outstanding all the time.

    begun: when the period began; last: when the last chunk came (seconds). nbytes: received since `begun`. rate:
    bytes/s in the last period of at least `DOWNLINK_MIN_SECONDS`; 0 before the first. A shorter period measures round
    trips, not the link.
    """

    begun: float = 0.0
    nbytes: float = 0.0
    last: float = 0.0
    rate: float = 0.0

    def begin(self, now: float) -> None:
        """Begins a busy period with the first request after an idle time."""
        if not self.nbytes or now - self.last > DOWNLINK_MAX_GAP_SECONDS:
            self.begun, self.nbytes = now, 0.0

    def arrived(self, size: int, now: float) -> None:
        """Adds a received chunk of `size` bytes."""
        self.nbytes += size
        self.last = now
        if now - self.begun >= DOWNLINK_MIN_SECONDS:
            self.rate = self.nbytes / (now - self.begun)
        if now - self.begun > DOWNLINK_MEMORY_SECONDS:
            self.begun, self.nbytes = (self.begun + now) / 2, self.nbytes / 2
