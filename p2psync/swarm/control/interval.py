"""Counts what one path did in a time in which data always waited to be sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Interval:
    """Bytes of all connections of a path in `seconds`. sent: with retransmissions. delivered: acknowledged."""

    seconds: float = 0.0
    sent: int = 0
    retransmitted: int = 0
    delivered: int = 0

    def add(self, other: Interval) -> None:
        """Appends another interval."""
        self.seconds += other.seconds
        self.sent += other.sent
        self.retransmitted += other.retransmitted
        self.delivered += other.delivered

    @property
    def loss(self) -> float:
        """The share of the sent bytes that was retransmitted."""
        return self.retransmitted / max(1, self.sent)

    @property
    def delivery_rate(self) -> float:
        """Bytes a second; `seconds` must not be 0."""
        return self.delivered / self.seconds
