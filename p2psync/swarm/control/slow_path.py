"""When the congestion control of a path should begin anew, because it believes in far less than the plan. Pure.

Theory of operation. BBR holds on to the bandwidth that it saw last. After a pause that is what a few small messages
made of it, or what was left beside other flows; from there it grows by a quarter in eight round trips, so a path of 100
ms that begins at a fifth of its part takes six seconds to reach it, and all that hangs below waits. As it begins it
doubles in each round trip instead. So a path on which something always waits, of which little is lost, and which brings
far less than the plan has for it, or than it is held to, begins anew, unless it is just growing by itself. Where that
does not help, the plan is wrong, and it is let alone.
"""

from __future__ import annotations

import math

from p2psync.swarm.control.interval_counters import IntervalCounters

#: A path is slow that brings less than this part of what is planned.
LACK = 0.65
#: One that brings so many times what it brought in the look before is growing by itself.
GROWING = 1.5
#: Losses from which on (as a share of what was sent) more would not come through.
LOSES = 0.02
#: How long a look takes, how many lacking ones in a row are enough, and how long a path has for its new beginning
#: (seconds in which something always waits).
LOOK, ENOUGH, GROWS = 0.25, 2, 2.0
#: A new beginning has helped that brought so many times what came before; after this many in a row that did not, the
#: path is let alone until there is another plan.
HELPED, TRIES = 1.3, 2


class SlowPathDetector:
    """What one peer is sent, beside what the plan has for it."""

    def __init__(self, planned: float) -> None:
        """planned: bytes a second."""
        self._planned = planned
        self._tries = 0
        #: What came before the last new beginning (bytes a second), and how long ago that is.
        self._before, self._since = 0.0, GROWS
        self._lacking = 0
        self._came_last = math.inf
        self._held = math.inf
        self._counters = IntervalCounters()

    def planned(self, planned: float) -> None:
        """The plan has so much for this path now."""
        if planned != self._planned:
            self._planned, self._tries = planned, 0

    def held(self, rate: float) -> None:
        """It is held to so many bytes a second; 0: to none."""
        self._held = rate or math.inf

    def pause(self) -> None:
        """What was seen since the last look tells nothing."""
        self._counters.clear()
        self._came_last = math.inf

    def seen(self, seconds: float, sent: int, resent: int, delivered: int) -> bool:
        """In an interval in which more waited to be sent all the time: bytes sent, these of them again, and bytes that
        came through. Returns whether to begin anew."""
        counters = self._counters
        counters.add(seconds, sent, resent, delivered)
        if counters.seconds < LOOK:
            return False
        came, lost = counters.came, counters.lost
        self._since += counters.seconds
        counters.clear()
        grows, self._came_last = came >= GROWING * self._came_last, came
        lacks = came < LACK * min(self._planned, self._held) and lost < LOSES and not grows
        self._lacking = self._lacking + 1 if lacks else 0
        if self._lacking < ENOUGH or self._since < GROWS or self._tries >= TRIES:
            return False
        self._tries = self._tries + 1 if came < HELPED * self._before else 0
        if self._tries >= TRIES:
            return False
        self._before, self._since, self._lacking = came, 0.0, 0
        return True
