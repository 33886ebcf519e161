"""How fast chunks are pushed down a path of the plan that loses much: about as fast as the plan foresees. Pure.

Theory of operation. A window of two round trips, which is what BBR lets out, is more than most queues hold where
several flows meet at a link: each of them alone overflows it, a fifth of what is sent is lost, and what was sent after
it waits behind holes for a second. The plan has told each flow its part of the link, though: flows that keep to their
parts fill the link and leave its queue empty. So a flow that loses much is held to its part, or to what just came
through, if that is more. A plan errs by some percent, and links change: a flow that is held and does not lose much may
send a little more at each look; once that has gone on for long it is held no more. Where sending less does not help,
the link loses by itself, and the flow is let alone for a while.
"""

from __future__ import annotations

import math

from p2psync.swarm.control.interval_counters import IntervalCounters

#: What a flow that is held may send, of its part or of what came through; by how much that changes at each look without
#: many losses, and with them; and from which on it is held no more, of what it was held to last.
FIRST, RISE, FALL, FREE = 0.97, 1.004, 0.93, 1.25
#: No path is held to less at the beginning (bytes a second): where little is planned the mean of it, chunk by chunk,
#: would have each chunk take seconds.
THIN = 640 << 10
#: What the queue before any link surely has room for (seconds of the link's rate).
QUEUE = 0.025
#: How it rises at the beginning of a transfer.
EARLY_RISE = 1.03
#: Losses that are many, as a share of what was sent: links lose up to some percent by themselves.
MANY = 0.04
#: After so many looks in a row with many losses these should be less than this part of what they were at first; if not,
#: it is let alone for so many looks.
PATIENCE, BETTER, ALONE = 6, 0.75, 240
#: Bytes that must have been sent for losses to be a share of anything.
LEAST = 192 << 10


def haste(seconds: float) -> float:
    """How many times its part each flow of a transfer may begin with that takes so long as planned.

    In t seconds k times the rate of a link leave t (1 - 1 / k) seconds of its rate in the queue before it.
    """
    return seconds / (seconds - QUEUE) if seconds > QUEUE else math.inf


class PathController:
    """What one peer may be sent a second."""

    def __init__(self, part: float) -> None:
        """part: bytes a second that the plan has for this path."""
        self._part = part
        #: Bytes a second; 0: as much as may be.
        self.rate = 0.0
        self._free = 0.0
        self._lost_first = 0.0
        self._cuts = 0
        self._alone = 0
        self._early = False
        self._counters = IntervalCounters()

    def planned(self, part: float) -> None:
        """The plan has so much for this path now. What it takes back shows in losses, if anybody else sends it."""
        if self.rate and 0 < self._part < part:
            self.rate *= part / self._part
            self._free *= part / self._part
        self._part = part

    def begin(self, times: float = 1.0) -> None:
        """A transfer begins, after nothing has flowed for a while: all flows that meet at a link remember what each had
        of it while it was alone. So each keeps to its part at first, or to `times` of it, and soon tries for more."""
        if self._early:
            self._let_go()
        if not self.rate and not self._alone and times < math.inf:
            self.rate = max(FIRST * times * self._part, THIN)
            self._free = FREE * self.rate
            self._early = True

    def pause(self) -> None:
        """What was seen since the last look tells nothing."""
        self._counters.clear()

    def seen(self, seconds: float, sent: int, resent: int, delivered: int) -> None:
        """In an interval in which more waited to be sent all the time: bytes sent, these of them again, and bytes that
        came through."""
        counters = self._counters
        counters.add(seconds, sent, resent, delivered)
        if counters.sent < LEAST:
            return
        lost, came = counters.lost, counters.came
        counters.clear()
        if self._alone:
            self._alone -= 1
        elif lost > MANY:
            self._cut(lost, came)
        elif self.rate:
            self._cuts = 0
            self.rate *= EARLY_RISE if self._early else RISE
            if self.rate > self._free:
                self._let_go()

    def _cut(self, lost: float, came: float) -> None:
        if not self._cuts:
            self._lost_first = lost
        self._cuts += 1
        if self._cuts > PATIENCE and lost > BETTER * self._lost_first:
            self._let_go()
            self._alone = ALONE
            return
        if self.rate:
            self.rate = max(min(self.rate, FIRST * self._part), FALL * self.rate)
        else:
            self.rate = FIRST * max(self._part, came)
        self._free = FREE * self.rate
        self._early = False

    def _let_go(self) -> None:
        self.rate = self._free = 0.0
        self._cuts = 0
        self._early = False
