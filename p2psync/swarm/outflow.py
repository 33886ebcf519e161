"""What a node hands out in all, where its own uplink is what holds it up: a token bucket. Pure; bytes and seconds.

Chunks for ten children that leave at one moment overflow the queue before an uplink: some are lost, connections that
had carried nothing yet wait for a timeout, and everything behind them waits, too. Handed out one after the other, as
fast as the uplink sends, each is through sooner, and nothing is lost.
"""

from __future__ import annotations

#: What may leave at once: so many bytes, or what the rate brings in so many seconds.
BURST, BURST_SECONDS = 128 << 10, 0.01
#: Clocks of loops are not finer than this (seconds).
_TICK = 0.001


class Outflow:
    """held: whether anything had to wait since that was set to False."""

    def __init__(self) -> None:
        self.rate = 0.0
        self.held = False
        self._free_at = 0.0

    def limit(self, rate: float) -> None:
        """Bytes a second from now on; 0: any number."""
        self.rate = rate

    def may(self, now: float) -> bool:
        """Whether something may leave now; if not, something was held up."""
        if not self.rate or self._free_at - now <= self._burst:
            return True
        self.held = True
        return False

    def took(self, size: int, now: float) -> None:
        """So many bytes leave."""
        if self.rate:
            self._free_at = max(self._free_at, now) + size / self.rate

    def wake(self, now: float) -> float:
        """When half of what may leave at once can: to be woken for each chunk costs more than chunks that leave in
        pairs."""
        return max(now + _TICK, self._free_at - self._burst / 2)

    @property
    def _burst(self) -> float:
        return max(BURST / self.rate, BURST_SECONDS)
