"""How long a chunk that somebody holds takes to be pushed here, and so how long to wait before pulling it."""

from __future__ import annotations

from dataclasses import dataclass

#: Bounds of the patience, and what it is before anything was measured (seconds).
LEAST, MOST, FIRST = 1.0, 10.0, 1.5


@dataclass(slots=True)
class Lag:
    """Smoothed lag and its mean deviation (seconds), as TCP's retransmission timer has them (RFC 6298)."""

    mean: float = 0.0
    deviation: float = 0.0
    known: bool = False

    def sample(self, seconds: float) -> None:
        """A chunk was pushed here so long after somebody else said to hold it."""
        if not self.known:
            self.mean, self.deviation, self.known = seconds, seconds / 2, True
            return
        self.deviation += (abs(seconds - self.mean) - self.deviation) / 16
        self.mean += (seconds - self.mean) / 16

    @property
    def usual(self) -> float:
        """How long most pushes take (seconds)."""
        return self.mean + 2 * self.deviation

    @property
    def patience(self) -> float:
        """How long to wait for a push (seconds)."""
        return min(MOST, max(LEAST, self.mean + 4 * self.deviation)) if self.known else FIRST
