"""One manifest's chunks at this node: which are held, wanted, under way, and how rare each is among the peers."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from p2psync.protocol.manifest import Manifest

if TYPE_CHECKING:
    from p2psync.swarm.arrivals import Arrivals

Bits = NDArray[np.bool_]
#: Pauses before a chunk that was lost twice and more is fetched again grow from the first to the last (seconds).
FIRST_REST = 0.25
LAST_REST = 60.0
#: Below so many chunks they are looked at one by one, which is faster than numpy for so few.
FEW = 24
#: Of a small manifest: seconds without a chunk, and multiples of the usual time between two, after which those that are
#: missing seem to be held up.
STALL_LEAST, STALL_GAPS = 0.05, 3.0
#: Chunks that must have come for their pace to tell when the rest will be here; that of so many last ones counts. (A
#: link that fell makes it another one than it was so far.)
PACE_FROM, PACE_OF = 8, 64


@dataclass(slots=True)
class Asked:
    """One outstanding request for a chunk: of whom, and when it was sent (seconds).

    due: from then on it is late, and the chunk is open to others. hoped: from then on it is overdue, and the endgame
    may ask somebody else as well.
    """

    peer: str
    at: float
    due: float
    hoped: float


@dataclass(slots=True)
class Transfer:
    """The chunks of one manifest. All arrays have one entry per chunk.

    needed: wanted and not yet held. rarity: how many peers are known to hold it. spread: random in [0, 1), fixed per
    node, which breaks ties between equally rare chunks differently at each node, so that nodes fetch different ones.
    asked: the outstanding requests of each chunk that has any. hoped: when the first of them is overdue, else infinite.
    sent: how often each was handed out. losses: how often each was lost here. resting: lost chunks that are not asked
    for before a time (seconds).
    missing: how many are needed. typical: bytes of one on average. size: of all. pushed: chunks are expected down the
    plan's trees, so that only overdue ones are asked for. heard: since when some peer is known to hold each chunk
    (seconds). tags: of chunks that came, or go, down a tree. silent: peers are not told what is held, as long as this
    node is putting it into the trees. told: the sources say to hold everything, so that nothing more is put into the
    trees. relieves: all is held, and put in, so that children get what others owe them, too. ends: and so it will
    be in a moment, at the root that puts it in. arrivals: when chunks should be with whom, at the root that puts them
    in. began_at, gained_at, lately: when the first, the last, and the last few of `gains` chunks came (seconds).
    parts_left, parts_at: how many are needed of each part of what a region needs, and when that last changed (seconds).
    """

    id: bytes
    manifest: Manifest
    held: Bits
    needed: Bits
    open: Bits
    rarity: NDArray[np.int32]
    spread: NDArray[np.float64]
    asked: dict[int, list[Asked]] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    hoped: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    losses: dict[int, int] = field(default_factory=dict)
    resting: dict[int, float] = field(default_factory=dict)
    missing: int = 0
    pushed: bool = False
    heard: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    tags: dict[int, int] = field(default_factory=dict)
    silent: bool = False
    told: bool = False
    relieves: bool = False
    ends: bool = False
    typical: int = 1
    size: int = 0
    began_at: float = 0.0
    gained_at: float = 0.0
    gains: int = 0
    lately: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_OF))
    arrivals: Arrivals | None = None
    parts_left: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    parts_at: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    @classmethod
    def begin(cls, id: bytes, manifest: Manifest, held: Bits, wanted: Bits, rng: random.Random) -> Transfer:
        """`held`, `wanted`: one flag per chunk; what is held is not needed."""
        n = manifest.chunks
        needed = wanted & ~held
        spread = default_rng(rng.getrandbits(63)).random(n)
        begun = cls(id, manifest, held.copy(), needed, needed.copy(), np.zeros(n, np.int32), spread)
        begun.missing, begun.heard = int(needed.sum()), np.full(n, np.inf)
        begun.hoped = np.full(n, np.inf)
        begun.size = manifest.payload_bytes
        begun.typical = max(1, begun.size // max(1, n))
        return begun

    def widen(self, held: Bits, wanted: Bits) -> None:
        """More is wanted, or held, than before."""
        self.held |= held
        more = wanted & ~self.held & ~self.needed
        self.needed = (self.needed | more) & ~self.held
        self.open = (self.open | more) & ~self.held
        self.missing = int(self.needed.sum())

    def forgo(self) -> None:
        """Nothing is wanted any more."""
        self.needed[:] = False
        self.missing = 0
        self.open[:] = False
        self.resting.clear()

    @property
    def complete(self) -> bool:
        """Nothing is needed any more."""
        return not self.missing

    def learn(self, theirs: Bits, chunks: list[int]) -> list[int]:
        """A peer that held `theirs` (flags; they are set here) says to hold these too; returns those that are new."""
        if len(chunks) < FEW:
            new = []
            for index in chunks:
                if index < len(theirs) and not theirs[index]:
                    theirs[index] = True
                    self.rarity[index] += 1
                    new.append(index)
            return new
        new = [index for index in set(chunks) if index < len(theirs) and not theirs[index]]
        theirs[new] = True
        self.rarity[new] += 1
        return new

    def hear(self, chunks: Bits | list[int], since: float) -> None:
        """Some peer holds these chunks (flags or indices) since then."""
        if isinstance(chunks, list) and len(chunks) < FEW:
            for index in chunks:
                if self.heard[index] > since:
                    self.heard[index] = since
            return
        self.heard[chunks] = np.minimum(self.heard[chunks], since)

    def may_ask(self, since: float) -> bool:
        """Whether anything is to be asked of anybody: False where all that is open is still waited for (`ripe`)."""
        if not self.missing:
            return False
        return not self.pushed or bool(self.asked) or bool((self.open & (self.heard <= since)).any())

    def ripe(self, since: float) -> Bits | None:
        """Chunks to pull although they are pushed: somebody holds them since then or longer. None: all, unpushed."""
        return self.open & (self.heard <= since) if self.pushed else None

    def next_ripe(self, since: float) -> float:
        """The earliest time after `since` from which on somebody holds an open chunk; infinite if there is none."""
        later = self.heard[self.open & (self.heard > since)] if self.pushed else self.heard[:0]
        return float(later.min(initial=math.inf))

    def pick(self, candidates_of: Bits, count: int, *, backwards: bool = False) -> list[int]:
        """Up to `count` of these chunks (flags): rarest first, but last heard of first where they are pushed here; or
        the other way round."""
        candidates = np.flatnonzero(candidates_of)
        order = self.spread[candidates] + (-self.heard[candidates] if self.pushed else self.rarity[candidates])
        if backwards:
            order = -order
        if len(candidates) > count:
            few = np.argpartition(order, count)[:count]
            candidates, order = candidates[few], order[few]
        return [int(i) for i in candidates[np.argsort(order)]]

    def parts_seen(self, left: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """So many are needed of each part now: since when each has not changed (seconds)."""
        if len(left) != len(self.parts_left):
            self.parts_left, self.parts_at = left, np.full(len(left), now)
        else:
            self.parts_at[left != self.parts_left] = now
            self.parts_left = left
        return self.parts_at

    def pick_again(self, peer: str, theirs: Bits, count: int, copies: int, now: float) -> tuple[list[int], float]:
        """Endgame: chunks that should have come by now from elsewhere and that `peer` holds too, longest overdue first.

        A chunk is asked of at most `copies` peers at a time. Also returns when the next one will be overdue.
        """
        due = self.hoped <= now
        overdue = [
            (float(self.hoped[index]), index)
            for index in np.flatnonzero(due & theirs).tolist()
            if len(asked := self.asked[index]) < copies and all(a.peer != peer for a in asked)
        ]
        return [index for _, index in sorted(overdue)[:count]], float(self.hoped[~due].min(initial=math.inf))

    def ask(self, index: int, peer: str, now: float, due: float, hoped: float) -> None:
        """A request for `index` goes to `peer`; see `Asked`."""
        asked = self.asked.setdefault(index, [])
        asked.append(Asked(peer, now, due, hoped))
        self.hoped[index] = asked[0].hoped
        self.open[index] = False

    def may_be_asked(self, chunks: Sequence[int], now: float) -> bool:
        """Whether any of these chunks is open, or asked for and overdue."""
        return any(self.open[index] or self.hoped[index] <= now for index in chunks)

    def is_asked_of(self, index: int, peer: str) -> bool:
        """Whether a request for `index` is out to `peer`."""
        return any(asked.peer == peer for asked in self.asked.get(index, ()))

    def release(self, index: int, peer: str) -> Asked | None:
        """`peer` is no longer asked for `index`; the chunk is open again if nobody else is."""
        asked = self.asked.get(index, [])
        mine = next((a for a in asked if a.peer == peer), None)
        if mine is not None:
            asked.remove(mine)
            self.hoped[index] = asked[0].hoped if asked else math.inf
            if not asked:
                del self.asked[index]
                self.open[index] = self.needed[index]
        return mine

    @property
    def stalls_after(self) -> float:
        """Seconds without a chunk after which those that are missing seem to be held up."""
        return max(STALL_LEAST, STALL_GAPS * (self.gained_at - self.began_at) / max(1, self.gains - 1))

    def seconds_left(self, now: float) -> float:
        """How long what is missing takes at the pace of the last chunks that came; 0 as long as few have."""
        lately = self.lately
        return self.missing * (now - lately[0]) / len(lately) if len(lately) >= PACE_FROM else 0.0

    def gain(self, index: int, now: float) -> list[Asked]:
        """The chunk is held now; returns the requests that were still out for it."""
        self.gains, self.gained_at = self.gains + 1, now
        self.lately.append(now)
        if self.gains == 1:
            self.began_at = now
        self.held[index] = True
        self.missing -= bool(self.needed[index])
        self.needed[index] = False
        self.open[index] = False
        self.hoped[index] = math.inf
        self.resting.pop(index, None)
        return self.asked.pop(index, [])

    def lose(self, index: int, now: float) -> None:
        """The chunk could not be kept (disk) or turned out damaged there: it is needed again.

        Asked for again at once the first time, and after growing pauses from then on: a disk that keeps nothing must
        not make the network busy for ever.
        """
        self.held[index] = False
        self.missing += not self.needed[index]
        self.needed[index] = True
        self.open[index] = False
        losses = self.losses[index] = self.losses.get(index, 0) + 1
        self.resting[index] = now if losses == 1 else now + min(LAST_REST, FIRST_REST * 2.0 ** min(losses, 30))

    def reopen(self, now: float) -> None:
        """Lost chunks that have rested may be asked for."""
        for index in [index for index, until in self.resting.items() if until <= now]:
            del self.resting[index]
            self.open[index] = self.needed[index] and index not in self.asked


def unpack_bitmap(bitmap: bytes, chunks: int) -> Bits:
    """Flags from a HAVE's bitmap; missing bytes count as zeros, surplus ones are ignored."""
    flags = np.zeros(chunks, np.bool_)
    raw = np.frombuffer(bitmap, np.uint8, min(len(bitmap), (chunks + 7) // 8))
    bits = np.unpackbits(raw, bitorder="little")[:chunks].astype(np.bool_)
    flags[: len(bits)] = bits
    return flags


def pack_bitmap(flags: Bits) -> bytes:
    """A HAVE's bitmap of flags."""
    return np.packbits(flags, bitorder="little").tobytes()
