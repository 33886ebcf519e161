"""What a connection may send, looking over the moments in which its window is small. Pure.

BBR closes its window to a few packets for a fifth of a second, every ten seconds, to measure the round trip; others
close it after a timeout. Whoever sends the next chunks down another connection then, which carried little and so has
to find its window first, waits longer than the moment lasts; and the first one, which nothing is sent down any more,
never opens its window again.
"""

from __future__ import annotations

#: Seconds in which half of what is remembered of a wider window is gone.
HALF = 0.4


class DecayingMax:
    """The widest window of late, as a rate."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._at = 0.0

    def seen(self, rate: float, now: float) -> float:
        """The window lets out so much now (bytes a second, at a time in seconds). Returns what to reckon with."""
        self._rate = max(rate, self._rate * 0.5 ** ((now - self._at) / HALF))
        self._at = now
        return self._rate
