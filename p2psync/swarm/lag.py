"""How long a chunk that somebody holds takes to be pushed here, and so how long to wait before pulling it."""

from __future__ import annotations

from dataclasses import dataclass

#: Bounds of the patience, and what it is before anything was measured (seconds). The most is no rare case: with uplinks
#: of a Mbit/s or two that all have a little more to do than they can, pushes come later and later, and what is pulled
#: meanwhile makes them later still.
LEAST, MOST, FIRST = 1.0, 30.0, 1.5
#: What was pulled and then came as a push after all shows that patience was too short, up to so long (seconds); by
#: what part that is forgotten with each push.
SPURIOUS_MOST, FORGOTTEN = 5.0, 1 / 1024


@dataclass(slots=True)
class Lag:
    """Smoothed lag and its mean deviation (seconds), as TCP's retransmission timer has them (RFC 6298).

    spurious: for how long at least something must have been held elsewhere until it is pulled, since what was pulled
    sooner came twice: where a packet is lost, and then the one that was to replace it, a connection brings nothing for
    a second, and then all at once.
    """

    mean: float = 0.0
    deviation: float = 0.0
    spurious: float = 0.0
    known: bool = False

    def sample(self, seconds: float) -> None:
        """A chunk was pushed here so long after somebody else said to hold it."""
        if not self.known:
            self.mean, self.deviation, self.known = seconds, seconds / 2, True
            return
        self.spurious -= FORGOTTEN * self.spurious
        self.deviation += (abs(seconds - self.mean) - self.deviation) / 16
        self.mean += (seconds - self.mean) / 16

    def came_late(self, seconds: float) -> None:
        """So did one that had been asked of another meanwhile."""
        self.spurious = max(self.spurious, min(SPURIOUS_MOST, seconds))

    @property
    def usual(self) -> float:
        """How long most pushes take (seconds)."""
        return self.mean + 2 * self.deviation

    @property
    def patience(self) -> float:
        """How long to wait for a push (seconds)."""
        if not self.known:
            return FIRST
        return min(MOST, max(LEAST, self.spurious, self.mean + 4 * self.deviation))
