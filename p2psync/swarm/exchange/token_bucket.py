"""A token bucket: limits the rate at which a node with a narrow uplink sends. Pure; bytes and seconds.

Chunks sent to ten children at one moment overflow the queue before the uplink: packets are lost, and all data behind
them waits. Sent one after the other, at the uplink's rate, each chunk arrives sooner.
"""

from __future__ import annotations

#: The resolution of event loops' clocks (seconds).
_TICK = 0.001


class TokenBucket:
    """Limits one node's rate. rate: bytes/s; 0: no limit. limited: a chunk had to wait since this was set to False."""

    def __init__(self, burst: int, burst_seconds: float) -> None:
        """burst, burst_seconds: bytes that may leave at once, or what the rate gives in so many seconds."""
        self.rate = 0.0
        self.limited = False
        self._burst_bytes, self._burst_seconds = burst, burst_seconds
        self._free_at = 0.0

    def allows(self, now: float) -> bool:
        """Returns whether a chunk may leave now."""
        if not self.rate or self._free_at - now <= self._burst:
            return True
        self.limited = True
        return False

    def take(self, size: int, now: float) -> None:
        """Takes the tokens of `size` bytes that leave."""
        if self.rate:
            self._free_at = max(self._free_at, now) + size / self.rate

    def wakes_at(self, now: float) -> float:
        """Returns when half of the burst may leave: a wake-up for each chunk would cost more."""
        if not self.rate:
            return now
        return max(now + _TICK, self._free_at - self._burst / 2)

    @property
    def _burst(self) -> float:
        return max(self._burst_bytes / self.rate, self._burst_seconds)
