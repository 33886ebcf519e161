"""How fast chunks are pushed down a path of the plan that loses much: about as fast as the plan foresees. Pure.

Theory of operation. A window of two round trips, which is what BBR lets out, is more than most queues hold where
several flows meet at a link: each of them alone overflows it, a fifth of what is sent is lost, and what was sent after
it waits behind holes for a second. The plan has told each flow its part of the link, though: flows that keep to their
parts fill the link and leave its queue empty. So a flow that loses much is held to its part, or to what just came
through, if that is more. A plan errs by some percent, and links change: a flow that is held and loses little may send a
little more at each look; once that has gone on for long it is held no more.
"""

from __future__ import annotations

#: What a flow that is held may send, of its part or of what came through; by how much that changes at each look with
#: few losses, and with many; and from which on it is held no more, of what it was held to at first.
FIRST, RISE, FALL, FREE = 0.97, 1.004, 0.93, 1.25
#: Losses, as a share of what was sent, that are none, and that are many: links lose up to a percent by themselves.
FEW, MANY = 0.02, 0.04
#: Bytes that must have been sent for losses to be a share of anything.
LEAST = 192 << 10


class Pace:
    """What one peer may be sent a second."""

    def __init__(self, part: float) -> None:
        """part: bytes a second that the plan has for this path."""
        self._part = part
        #: Bytes a second; 0: as much as may be.
        self.rate = 0.0
        self._free = 0.0
        self._forget()

    def planned(self, part: float) -> None:
        """The plan has so much for this path now."""
        if self.rate and part != self._part:
            self.rate *= part / self._part
            self._free *= part / self._part
        self._part = part

    def seen(self, seconds: float, sent: int, resent: int, delivered: int, pressed: bool) -> None:
        """Since the last look, so long ago: bytes sent, these of them again, bytes that came through; pressed: more
        waited all the time."""
        self._seconds += seconds
        self._sent += sent
        self._resent += resent
        self._delivered += delivered
        self._pressed &= pressed
        if self._sent < LEAST:
            return
        lost = self._resent / self._sent
        if lost > MANY:
            came = self._delivered / self._seconds
            self.rate = FIRST * max(self._part, came) if not self.rate else max(FIRST * self._part, FALL * self.rate)
            self._free = max(self._free, FREE * self.rate)
        elif self.rate and lost < FEW and self._pressed:
            self.rate *= RISE
            if self.rate > self._free:
                self.rate = self._free = 0.0
        self._forget()

    def _forget(self) -> None:
        self._seconds, self._sent, self._resent, self._delivered, self._pressed = 0.0, 0, 0, 0, True
