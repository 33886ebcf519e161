"""What this node knows of one peer: what it holds, how fast it sends, what it was asked for, what it asks for."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from p2psync.swarm.transfer import Bits

#: Bytes of bitmaps that a peer may send of manifests which this node does not know yet; beyond it, the oldest word is
#: forgotten. Thousands of small manifests fit, or a dozen of half a million chunks each.
MAX_EARLY_BYTES = 1 << 20
_EARLY_OVERHEAD = 64
#: Requests of one peer that wait here; more are rejected.
MAX_QUEUED = 4096
#: How much longer than at first a peer that is late again and again is waited for.
MAX_PATIENCE = 8.0
#: Manifests whose chunks a peer may want at a time; beyond it, the oldest wish is forgotten.
MAX_WANTS = 1024


class Early:
    """A peer's bitmaps for manifests that this node does not know yet, by short id."""

    def __init__(self) -> None:
        self._bitmaps: OrderedDict[bytes, bytearray] = OrderedDict()
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._bitmaps)

    def put(self, short: bytes, bitmap: bytes | bytearray) -> None:
        """Remember this as the peer's whole word on a manifest."""
        self.pop(short)
        self._bitmaps[short] = bytearray(bitmap)
        self._nbytes += len(bitmap) + _EARLY_OVERHEAD
        while self._nbytes > MAX_EARLY_BYTES:
            _, forgotten = self._bitmaps.popitem(last=False)
            self._nbytes -= len(forgotten) + _EARLY_OVERHEAD

    def add(self, short: bytes, chunks: list[int]) -> None:
        """Remember these chunks besides what was remembered before."""
        if not chunks:
            return
        bitmap = self.pop(short) or bytearray()
        bitmap.extend(bytes(max(0, max(chunks) // 8 + 1 - len(bitmap))))
        for index in chunks:
            bitmap[index // 8] |= 1 << index % 8
        self.put(short, bitmap)

    def pop(self, short: bytes) -> bytearray | None:
        """Forget what was said of a manifest, and return it."""
        bitmap = self._bitmaps.pop(short, None)
        if bitmap is not None:
            self._nbytes -= len(bitmap) + _EARLY_OVERHEAD
        return bitmap


@dataclass(slots=True)
class Peer:
    """One connected peer. near: in this node's region. source: it publishes. Bytes and seconds throughout.

    early: its word on manifests that this node does not know yet. queue: chunks it asked for, in order of asking.
    ready: digest of the version that it runs. unasked: bytes pushed of manifests of which it said no word yet;
    unasked_most: see `SwarmConfig.unasked`. wants: manifests whose chunks it wants pushed. pushes: chunks to push to
    it, in order, each with the tag that it gets, 0 for that with which it came, and since when it waits. given: chunks
    that were pushed to it, or are about to be, flags per manifest. connections: to it. flushing: bytes handed to its
    connections and not yet taken by the kernel. owed: bytes it was asked for, whether or not the request was given up,
    and has not sent. surplus: bytes it sent beyond that to no use, less those of use. pushed_at: when a chunk last
    came from it unasked. late: chunks that it was asked for in vain so far; they may still come. patience: factor on
    how long it is waited for.
    """

    name: str
    near: bool
    source: bool = False
    holds: dict[bytes, Bits] = field(default_factory=dict)
    early: Early = field(default_factory=Early)
    queue: OrderedDict[tuple[bytes, int], None] = field(default_factory=OrderedDict)
    ready: bytes = b""
    unasked: dict[bytes, int] = field(default_factory=dict)
    unasked_most: int = 0
    wants: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    pushes: OrderedDict[tuple[bytes, int], tuple[int, float]] = field(default_factory=OrderedDict)
    given: dict[bytes, Bits] = field(default_factory=dict)
    connections: int = 1
    flushing: int = 0
    asked_bytes: int = 0
    owed: int = 0
    surplus: int = 0
    late: set[tuple[bytes, int]] = field(default_factory=set)
    rate: float = 0.0
    last_arrival: float = 0.0
    pushed_at: float = -math.inf
    round_trip: float = 0.2
    snubbed: bool = False
    patience: float = 1.0

    def want(self, short: bytes, wanted: bool) -> None:
        """It wants the chunks of a manifest pushed, or does no longer."""
        self.wants.pop(short, None)
        self.unasked.pop(short, None)
        if wanted:
            self.wants[short] = None
            if len(self.wants) > MAX_WANTS:
                self.wants.popitem(last=False)

    def may_want(self, short: bytes) -> None:
        """It runs the base of a manifest, or nothing before an anchor: some of it is pushed before it asks."""
        if short not in self.wants:
            self.want(short, True)
            self.unasked[short] = 0

    def takes(self, short: bytes) -> bool:
        """Whether chunks of a manifest may be pushed to it."""
        return short in self.wants and (short not in self.unasked or self.unasked[short] < self.unasked_most)

    def lacks(self, short: bytes, index: int) -> bool:
        """Whether a chunk is wanted, not held as far as is known, and was not pushed to it."""
        if not self.takes(short):
            return False
        theirs, given = self.holds.get(short), self.given.get(short)
        return (theirs is None or not theirs[index]) and (given is None or not given[index])

    def give(self, short: bytes, index: int, chunks: int, size: int) -> None:
        """A chunk of so many, and of this size, is going to be pushed to it."""
        if short in self.unasked:
            self.unasked[short] += size
        given = self.given.get(short)
        if given is None:
            given = self.given[short] = np.zeros(chunks, np.bool_)
        given[index] = True

    def take_back(self, short: bytes, chunks: list[int]) -> None:
        """These chunks may be pushed to it again."""
        given = self.given.get(short)
        if given is not None:
            given[chunks] = False

    @property
    def pushing_since(self) -> float:
        """Since when the chunk waits that is pushed to it next; there must be one."""
        return next(iter(self.pushes.values()))[1]

    def needs_no_more(self, short: bytes, chunks: Iterable[int]) -> None:
        """These chunks come to it by another way."""
        for index in chunks:
            self.queue.pop((short, index), None)
            self.pushes.pop((short, index), None)

    def forget(self, short: bytes) -> Bits | None:
        """A manifest is exchanged no longer; returns what it held of it."""
        self.late = {key for key in self.late if key[0] != short}
        for waiting in (self.queue, self.pushes):
            for key in [key for key in waiting if key[0] == short]:
                del waiting[key]
        self.given.pop(short, None)
        self.want(short, False)
        return self.holds.pop(short, None)

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

    def delivered(self, now: float) -> None:
        """A good chunk came, in time or late: the peer is trusted with more again."""
        self.last_arrival = now
        self.snubbed = False
        self.patience = 1.0

    def was_late(self) -> None:
        """Requests were not answered in time: ask little of this peer, and give it longer, until it delivers."""
        self.snubbed = True
        self.rate /= 2
        self.patience = min(MAX_PATIENCE, 2 * self.patience)
