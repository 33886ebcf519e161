"""What this node knows of one peer: what it holds, how fast it sends, what it was asked for, what it asks for."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from p2psync.swarm.transfer import Bits

#: Manifests that a peer may speak of before this node knows them; beyond it, the oldest word is forgotten.
MAX_UNKNOWN = 64
#: Requests of one peer that wait here; more are rejected.
MAX_QUEUED = 4096


@dataclass(slots=True)
class Peer:
    """One connected peer. near: in this node's region. Bytes and seconds throughout.

    early: bitmaps for manifests that this node does not know yet. queue: chunks it asked for, in order of asking.
    flushing: bytes handed to its connections and not yet taken by the kernel.
    """

    name: str
    near: bool
    holds: dict[bytes, Bits] = field(default_factory=dict)
    early: OrderedDict[bytes, bytearray] = field(default_factory=OrderedDict)
    queue: OrderedDict[tuple[bytes, int], None] = field(default_factory=OrderedDict)
    flushing: int = 0
    asked_bytes: int = 0
    rate: float = 0.0
    last_arrival: float = 0.0
    round_trip: float = 0.2
    snubbed: bool = False

    def window(self, chunk_bytes: int, least: int, most: int, horizon: float) -> int:
        """Bytes that may be asked of this peer at a time: what it sends in a round trip and `horizon` seconds.

        At least two chunks, so that one is on its way while the next is asked for; one chunk while it is snubbed.
        """
        if self.snubbed:
            return chunk_bytes
        flow = int(self.rate * (self.round_trip + horizon))
        return max(2 * chunk_bytes, min(most, max(least, flow)))

    def arrived(self, size: int, asked_at: float, now: float) -> None:
        """A chunk came: update the rate (exponential average over about 8 chunks) and the round trip (least seen)."""
        since = now - max(asked_at, self.last_arrival)
        if since > 0:
            sample = size / since
            self.rate = sample if self.rate == 0 else self.rate + (sample - self.rate) / 8
        if now > asked_at:
            self.round_trip = min(self.round_trip, now - asked_at)
        self.last_arrival = now
        self.snubbed = False
