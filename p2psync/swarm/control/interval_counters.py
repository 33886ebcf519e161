"""What one path did since it was looked at last: the counters by which path control and slow-path restarts judge."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class IntervalCounters:
    """Seconds in which more waited to be sent all the time, bytes sent in them, these of them again, and bytes that
    came through."""

    seconds: float = 0.0
    sent: int = 0
    resent: int = 0
    delivered: int = 0

    def add(self, seconds: float, sent: int, resent: int, delivered: int) -> None:
        """Another interval."""
        self.seconds += seconds
        self.sent += sent
        self.resent += resent
        self.delivered += delivered

    def clear(self) -> None:
        """What was seen tells nothing, or was looked at."""
        self.seconds, self.sent, self.resent, self.delivered = 0.0, 0, 0, 0

    @property
    def lost(self) -> float:
        """The share of what was sent that was lost."""
        return self.resent / max(1, self.sent)

    @property
    def came(self) -> float:
        """Bytes a second that came through; some time must have been counted."""
        return self.delivered / self.seconds
