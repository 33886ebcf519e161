"""A token bucket: how many bytes may leave a node whose uplink binds. Pure; bytes and seconds.

Chunks for ten children that leave at one moment overflow the queue before an uplink: packets are lost, and everything
behind them waits. Handed out one after the other, as fast as the uplink sends, each is through sooner.
"""

from __future__ import annotations

#: Clocks of event loops are not finer than this (seconds).
_TICK = 0.001


class TokenBucket:
    """rate: bytes/s; 0: no limit. limited: whether anything had to wait since this was set to False."""

    def __init__(self, burst: int, burst_seconds: float) -> None:
        """burst, burst_seconds: bytes that may leave at once, or what the rate brings in so many seconds."""
        self.rate = 0.0
        self.limited = False
        self._burst_bytes, self._burst_seconds = burst, burst_seconds
        self._free_at = 0.0

    def allows(self, now: float) -> bool:
        """Returns whether something may leave now."""
        if not self.rate or self._free_at - now <= self._burst:
            return True
        self.limited = True
        return False

    def take(self, size: int, now: float) -> None:
        """So many bytes leave."""
        if self.rate:
            self._free_at = max(self._free_at, now) + size / self.rate

    def wakes_at(self, now: float) -> float:
        """Returns when half of the burst may leave: to be woken for each chunk costs more than chunks in pairs."""
        if not self.rate:
            return now
        return max(now + _TICK, self._free_at - self._burst / 2)

    @property
    def _burst(self) -> float:
        return max(self._burst_bytes / self.rate, self._burst_seconds)
