"""Estimates how long a connection takes to send more bytes, from its congestion window and what waits before them."""

from __future__ import annotations

import math

#: Unsent bytes that the kernel may hold, at least and at most, and for how long they may wait (seconds):
#: more cannot be overtaken or cancelled; less leaves a fast connection without data.
MIN_NOTSENT_BYTES, MAX_NOTSENT_BYTES, MAX_NOTSENT_SECONDS = 16 << 10, 128 << 10, 0.04
#: The assumed rate of a connection that nobody has measured (bytes/s).
ASSUMED_RATE = 1e6
#: Seconds in which half of a former, larger window is forgotten. BBR closes its window for 0.2 s to measure the round
#: trip; another connection would have to find its window first. More waits longer for a window that stays closed.
WINDOW_HALF_LIFE = 0.4


class SendTime:
    """The estimate of one connection."""

    def __init__(self) -> None:
        #: The rate (bytes/s) of the window at the last estimate, within the pacing limit.
        self.rate = 0.0
        self._largest, self._at = 0.0, 0.0

    def seconds(self, size: int, waits: int, window: float, held_to: float, now: float) -> float:
        """Returns the seconds until `size` more bytes will have been sent.

        waits: bytes before them. window: bytes/s that the congestion window allows now. held_to: the pacing limit
        (bytes/s); 0: none.
        """
        limit = held_to or math.inf
        self.rate = min(window, limit)
        self._largest = max(window, self._largest * 0.5 ** ((now - self._at) / WINDOW_HALF_LIFE))
        self._at = now
        return (waits + size) / (min(self._largest, limit) or ASSUMED_RATE)


def notsent_for(rate: float) -> int:
    """Returns how many unsent bytes the kernel may hold at `rate` bytes/s: a power of two, so it seldom changes."""
    return max(MIN_NOTSENT_BYTES, min(MAX_NOTSENT_BYTES, 1 << int(rate * MAX_NOTSENT_SECONDS).bit_length()))
