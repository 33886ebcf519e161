"""One direction of a link in virtual time: passes bursts at a rate, behind a drop-tail queue, and loses packets."""

from __future__ import annotations

from random import Random


class LinkDirection:
    """rate: bytes/s. buffer: bytes that may wait. loss: probability that a packet is lost, independently of others."""

    __slots__ = ("buffer", "dropped", "free_at", "loss", "rate")

    def __init__(self, rate: float, buffer: float, loss: float = 0.0) -> None:
        self.rate = rate
        self.buffer = buffer
        self.loss = loss
        #: When the last burst that was taken is through (seconds).
        self.free_at = 0.0
        #: Bytes that a full queue dropped.
        self.dropped = 0.0

    def take(self, size: float, now: float) -> float | None:
        """Takes a burst of `size` bytes; returns when it is through, None if the queue is full and drops it."""
        begins = max(self.free_at, now)
        if begins > now and (begins - now) * self.rate + size / 2 > self.buffer:
            self.dropped += size
            return None
        self.free_at = begins + size / self.rate
        return self.free_at

    def lose(self, packets: int, rng: Random) -> int:
        """Returns how many of so many packets are lost, drawn from the binomial distribution."""
        if not self.loss:
            return 0
        draw, lost = rng.random(), 0
        chance = total = (1.0 - self.loss) ** packets
        while draw >= total and lost < packets:
            chance *= (packets - lost) / (lost + 1) * self.loss / (1.0 - self.loss)
            lost += 1
            total += chance
        return lost
