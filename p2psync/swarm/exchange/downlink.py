"""The download rate of a node over all its peers, while it fetches: an estimate of its downlink."""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds of a busy period before it gives an estimate. More is steadier, and gives none for short transfers.
_MIN_BUSY_SECONDS = 1.0
#: Seconds after which the estimator halves the period and its bytes. More is steadier, and follows changes later.
_MEMORY_SECONDS = 10.0
#: A request within so many seconds of the last chunk continues the busy period: with a window of one chunk, no request
#: is outstanding for a moment after each.
_MAX_GAP_SECONDS = 0.05


@dataclass(slots=True)
class Downlink:
    """The rate of the last busy period, in which requests were outstanding all the time.

    begun: when the period began; last: when the last chunk came (seconds). nbytes: received since `begun`. rate:
    bytes/s in the last period of at least `_MIN_BUSY_SECONDS`; 0 before the first. A shorter period measures round
    trips, not the link.
    """

    begun: float = 0.0
    nbytes: float = 0.0
    last: float = 0.0
    rate: float = 0.0

    def begin(self, now: float) -> None:
        """Begins a busy period with the first request after an idle time."""
        if not self.nbytes or now - self.last > _MAX_GAP_SECONDS:
            self.begun, self.nbytes = now, 0.0

    def arrived(self, size: int, now: float) -> None:
        """Adds a received chunk of `size` bytes."""
        self.nbytes += size
        self.last = now
        if now - self.begun >= _MIN_BUSY_SECONDS:
            self.rate = self.nbytes / (now - self.begun)
        if now - self.begun > _MEMORY_SECONDS:
            self.begun, self.nbytes = (self.begun + now) / 2, self.nbytes / 2
