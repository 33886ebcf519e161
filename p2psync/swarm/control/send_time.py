"""Estimates how long a connection takes to send more bytes, from its congestion window and the bytes before them."""

from __future__ import annotations

import math

from p2psync.swarm.control.config import (
    ASSUMED_RATE,
    MAX_NOTSENT_BYTES,
    MAX_NOTSENT_SECONDS,
    MIN_NOTSENT_BYTES,
    WINDOW_HALF_LIFE,
)


class SendTime:
    """The estimate of one connection."""

    def __init__(self) -> None:
        #: The rate (bytes/s) of the window at the last estimate, within the pacing limit.
        self.rate = 0.0
        self._largest, self._at = 0.0, 0.0

    def seconds(self, size: int, waits: int, window: float, pacing_limit: float, now: float) -> float:
        """Returns the seconds until `size` more bytes will have been sent.

        waits: bytes before them. window: bytes/s that the congestion window allows now. pacing_limit: the pacing limit
        (bytes/s); 0: none.
        """
        limit = pacing_limit or math.inf
        self.rate = min(window, limit)
        self._largest = max(window, self._largest * 0.5 ** ((now - self._at) / WINDOW_HALF_LIFE))
        self._at = now
        return (waits + size) / (min(self._largest, limit) or ASSUMED_RATE)


def notsent_for(rate: float) -> int:
    """Returns how many unsent bytes the kernel may hold at `rate` bytes/s: a power of two, so it seldom changes."""
    return max(MIN_NOTSENT_BYTES, min(MAX_NOTSENT_BYTES, 1 << int(rate * MAX_NOTSENT_SECONDS).bit_length()))
