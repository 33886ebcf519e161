"""Finding the changes of a tensor, block after block, in one compiled call as long as nothing has to be decided.

Between blocks the interpreter finds nothing of its own in the caches, for both copies of the weights have gone through
them; so it is asked only where a chunk is full, where other classes may be better, and where a block is dense.

Loops of other files are compiled into the one here, and numba's cache on disk notices a change of this file only: where
one of those is changed, this one must be compiled anew too.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.block import Block
from p2psync.delta.digest import MODULUS, join_change, tensor_key
from p2psync.delta.fast.codec import most_bytes_of
from p2psync.delta.kernels.simd import MAX_CLASSES
from p2psync.delta.kernels.unit_loops import GROUP, SUM_ROWS, kernel, scan, sum_change
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.delta.tight.class_index import SCAN_BYTES, scan_ranked
from p2psync.delta.tight.class_choice import Classes, Counts, see
from p2psync.delta.tight.sample import Sample
from p2psync.delta.tight.scratch import MAX_BLOCKS, Room

#: Bytes of a unit that may be ranked.
WIDTH = 2
#: Where more than this share of a block changes, ranks save no bits and cost time.
DENSE = 0.75
#: Most changed units in the symbols of one chunk: what decoding it takes is bounded by this.
MAX_CHANGED = 1 << 22
#: Bytes that a head takes, about; and that the sums of a block take.
_HEAD_BYTES = 16
_SUMS_BYTES = SUM_ROWS * GROUP * WIDTH

# Of the chunk at hand: ranked blocks, others, changes of ranked ones, bytes that all may take, and in profile `fast`.
# Of a block that waits: whether there is one, whether it needs a chunk of its own, and the same bytes. Then the next
# unit to look at; the changes of a dense block that begins there; and what was found since this was last asked for:
# changes, and the digest's three sums.
_RANKED, _OTHERS, _CHANGED, _SIZE, _WORST, _WAITING, _FRESH, _MORE_SIZE, _MORE_WORST, _AT, _APART, _FOUND, _SUMS = (
    range(13)
)
_NUMBERS = _SUMS + 3


class Stop(IntEnum):
    """Why `_rank_blocks` ended."""

    DONE = 0
    FULL = 1
    """The chunk at hand should take no more: a block waits for the next one."""
    DENSE = 2
    """The next block is found, but not to be ranked."""
    STALE = 3
    """Other classes may be better for the block that was found last; it waits."""
    ROOM = 4
    """There is too little room for what the next block may have."""


# For compiled code, and back: to look a member up by its value takes longer.
_DONE, _FULL, _DENSE, _STALE, _NO_ROOM = (int(stop) for stop in Stop)
_STOPS = tuple(Stop)


class Step(NamedTuple):
    """How far ranking went.

    at: the next unit. blocks: those taken into the chunk at hand. changed, digest_change: how many changes were found,
    and what they add to the digest, mod 2^128. full: whether the chunk at hand should take no more. apart: a block that
    was found, but is too dense to be ranked; `changed` leaves it out.
    """

    at: int
    blocks: int
    changed: int
    digest_change: int
    full: bool
    apart: Block | None


class Ranking:
    """The ranked blocks of the chunk at hand, and at most one that waits for the next chunk."""

    def __init__(self, limit: int, most_blocks: int) -> None:
        """limit: bytes that a chunk should not be larger than; most_blocks: blocks of any kind that it may have."""
        self._bounds = np.array([limit, min(12 * limit, MAX_CHANGED), most_blocks], np.int64)
        self._classes = Classes()
        self._dense = False
        self._room: Room | None = None
        self._filled = np.zeros(MAX_CLASSES, np.int64)
        self._numbers = np.zeros(_NUMBERS, np.int64)
        self._state = np.empty(SCAN_BYTES, np.uint8)
        #: The classes of the chunk at hand; None before it has a ranked block.
        self.window: NDArray[np.uint8] | None = None

    @property
    def blocks(self) -> int:
        """Ranked blocks of the chunk at hand."""
        return int(self._numbers[_RANKED])

    @property
    def changed(self) -> int:
        """Changes in them."""
        return int(self._numbers[_CHANGED])

    @property
    def worst(self) -> int:
        """Bytes that the chunk may take in profile `fast`."""
        return int(self._numbers[_WORST])

    @property
    def places(self) -> Counts:
        """(blocks, 4): row, first unit, units and changes of each."""
        assert self._room is not None
        return self._room.places[: self.blocks]

    @property
    def counts(self) -> Counts:
        """(blocks, 2, 8): changes and units of each class."""
        assert self._room is not None
        return self._room.counts[: self.blocks]

    @property
    def items(self) -> NDArray[np.uint64]:
        """(8, room): changes, class after class, as `symbols.count_symbols` wants them."""
        assert self._room is not None
        return self._room.items

    def block(self, number: int) -> Block:
        """One of the blocks; its arrays last as long as the chunk is at hand."""
        assert self._room is not None
        row, start, count, changed = self._room.places[number].tolist()
        first = int(self._room.places[:number, 3].sum())
        part = slice(first, first + changed)
        return Block(row, start, count, self._room.positions[part], self._room.steps[part])

    def fits(self, size: int, worst: int) -> bool:
        """Whether the chunk at hand should take a block more of so many bytes."""
        return bool(_fits(self._numbers, self._bounds, size, worst))

    def add_other(self, size: int, worst: int) -> None:
        """Take a block into account that is not ranked."""
        self._numbers[_OTHERS] += 1
        self._numbers[_SIZE] += size
        self._numbers[_WORST] += worst

    def look(self, sample: Sample) -> None:
        """Take a sample of what is to be ranked into account, before any of it is."""
        # A tensor of which all changes will not be ranked; and of one that does not change nobody may tell.
        if 0 < sample.steps.size <= DENSE * sample.size:
            self._classes.sample(sample)

    def advance(
        self, spec: TensorSpec, row: int, old: int, new: int, units: tuple[int, int, int], rate: float, sums: int = 0
    ) -> Step:
        """Rank blocks of a tensor whose copies' first units are at these addresses, into the chunk at hand.

        units: the first one, the one after the last, and how many a block has. rate: bytes that a change may take.
        sums: address of the tensor's sums, `kernels.SUM_ROWS` rows for each of its blocks, which are set; 0: none.
        Where the chunk is full, `begin` the next one and call again, from the unit on that was told.
        """
        numbers, before = self._numbers, self.blocks
        numbers[_AT], numbers[_FOUND:] = units[0], 0
        key, why = tensor_key(spec), Stop.ROOM
        self._classes.settle()
        while why not in (Stop.DONE, Stop.FULL, Stop.DENSE):
            # After a block that was too dense to be ranked another one is likely.
            plain = self._classes.window is None or self._dense
            if plain and not numbers[_WAITING]:
                why = self._start(row, old, new, *units[1:], rate, key, sums)
            else:
                why = self._go_on(row, old, new, *units[1:], rate, key, sums)
        apart, digest = None, join_change(*numbers[_SUMS:].tolist())
        self._dense = why is Stop.DENSE
        if self._dense:
            apart, change = self._apart(row, min(units[2], units[1] - int(numbers[_AT])), key)
            digest = (digest + change) % MODULUS
        return Step(int(numbers[_AT]), self.blocks - before, int(numbers[_FOUND]), digest, why is Stop.FULL, apart)

    def begin(self) -> None:
        """Begin a new chunk; if a block waits for it, that comes first."""
        numbers, room = self._numbers, self._room
        if room is not None:
            if numbers[_WAITING]:
                room.turn(self._filled, self.blocks, self.changed)
            else:
                room.give()
                self._room = None
        numbers[: _WORST + 1] = 0
        self._filled[:] = 0
        self.window = None
        self._classes.begin()

    def _go_on(
        self, row: int, old: int, new: int, stop: int, span: int, rate: float, key: NDArray[np.uint64], sums: int
    ) -> Stop:
        classes, room = self._classes, self._room_for(span)
        window = classes.window
        assert window is not None
        sizes = np.array([stop, span, row, sums], np.int64)
        own = self._filled, self._numbers, self._bounds, self._state
        arrays: tuple[Any, ...] = (window, *classes.histograms, *room.arrays, *own)
        why = _STOPS[_rank_blocks(old, new, sizes, rate, key, *arrays)]
        # The classes may be others by the time that the chunk is closed.
        if self.window is None and self.blocks:
            self.window = window
        if why is Stop.STALE and classes.stale():
            self._rank_waiting(room, old, new)
        return why

    def _start(
        self, row: int, old: int, new: int, stop: int, span: int, rate: float, key: NDArray[np.uint64], sums: int
    ) -> Stop:
        """Look at a block before there are classes for it; it is left waiting."""
        numbers, classes, room = self._numbers, self._classes, self._room_for(span)
        start, first = int(numbers[_AT]), self.changed
        if start == stop:
            return Stop.DONE
        count = min(span, stop - start)
        positions, olds, steps = (array[first:] for array in (room.positions, room.olds, room.steps))
        sums += sums and start // span * _SUMS_BYTES
        found = scan(old + WIDTH * start, new + WIDTH * start, count, positions, olds, steps, sums)
        if found > DENSE * count:
            numbers[_APART] = found
            return Stop.DENSE
        self._dense = False
        numbers[_AT] += count
        if found:
            fresh = classes.window is None
            classes.see(old + WIDTH * start, count, olds[:found], steps[:found])
            place = np.array([row, start, count, found], np.int64)
            _wait(place, first, rate, key, room.positions, room.olds, room.steps, room.places, numbers)
            self._rank_waiting(room, old, new, fresh=fresh or classes.stale())
        return Stop.ROOM

    def _apart(self, row: int, count: int, key: NDArray[np.uint64]) -> tuple[Block, int]:
        """The dense block of `count` units that was found last, and what it adds to the digest."""
        room, start, first = self._room, int(self._numbers[_AT]), self.changed
        assert room is not None
        self._numbers[_AT] += count
        part = slice(first, first + int(self._numbers[_APART]))
        positions, olds, steps = room.positions[part], room.olds[part], room.steps[part]
        change = join_change(*sum_change(positions, olds, steps, steps.size, start, key))
        return Block(row, start, count, None if steps.size == count else positions.copy(), steps.copy()), change

    def _rank_waiting(self, room: Room, old: int, new: int, *, fresh: bool = True) -> None:
        """Rank the block that waits, by the classes as they are now. fresh: they are not those of the chunk at hand."""
        window, number = self._classes.window, self.blocks
        assert window is not None
        start, count = room.places[number, 1:3].tolist()
        found = room.positions, room.olds, room.steps, self.changed, room.counts[number], room.items, self._filled
        scan_ranked(old + WIDTH * start, new + WIDTH * start, count, window, *found, self._state, 0)
        self._numbers[_FRESH] = fresh

    def _room_for(self, count: int) -> Room:
        if self._room is None:
            self._room = Room.take()
        kept = self._filled
        if self._numbers[_WAITING]:
            kept = kept + self._room.counts[self.blocks, 0]
        self._room.grow(kept, self.changed, count)
        return self._room


@kernel
def _fits(numbers: Counts, bounds: Counts, size: int, worst: int) -> bool:
    """Whether the chunk at hand, which has blocks, should take one more of so many bytes."""
    ranked, others = numbers[_RANKED], numbers[_OTHERS]
    if ranked == MAX_BLOCKS or ranked + others == bounds[2]:
        return False
    # What profile `fast` would take at most: no chunk ever takes more.
    return bool(numbers[_SIZE] + size <= bounds[0] and numbers[_WORST] + worst <= bounds[1])


@kernel
def _take(numbers: Counts, bounds: Counts, filled: Counts, places: Counts, counts: Counts) -> bool:
    """Take the block that waits into the chunk at hand, if it should take it."""
    number, size, worst = numbers[_RANKED], numbers[_MORE_SIZE], numbers[_MORE_WORST]
    if number and numbers[_FRESH]:
        return False
    if number + numbers[_OTHERS] and not _fits(numbers, bounds, size, worst):
        return False
    for c in range(MAX_CLASSES):
        filled[c] += counts[number, 0, c]
    numbers[_RANKED] += 1
    numbers[_CHANGED] += places[number, 3]
    numbers[_SIZE] += size
    numbers[_WORST] += worst
    numbers[_WAITING] = numbers[_FRESH] = 0
    return True


@kernel
def _wait(
    place: Counts,
    first: int,
    rate: float,
    key: NDArray[np.uint64],
    positions: NDArray[np.uint32],
    olds: Units,
    steps: Units,
    places: Counts,
    numbers: Counts,
) -> None:
    """Let a block wait whose changes are found: row, first unit, units, changes."""
    places[numbers[_RANKED]] = place
    start, count, found = place[1], place[2], place[3]
    part = slice(first, first + found)
    sums = sum_change(positions[part], olds[part], steps[part], found, start, key)
    numbers[_SUMS] += sums[0]
    numbers[_SUMS + 1] += sums[1]
    numbers[_SUMS + 2] += np.int64(sums[2])
    numbers[_FOUND] += found
    numbers[_MORE_SIZE] = _HEAD_BYTES + int(rate * found)
    numbers[_MORE_WORST] = most_bytes_of(count, found, WIDTH)
    numbers[_WAITING] = 1


@kernel
def _rank_blocks(
    old: int,
    new: int,
    sizes: Counts,
    rate: float,
    key: NDArray[np.uint64],
    window: NDArray[np.uint8],
    units: Counts,
    changes: Counts,
    seen: Counts,
    positions: NDArray[np.uint32],
    olds: Units,
    steps: Units,
    items: NDArray[np.uint64],
    places: Counts,
    counts: Counts,
    filled: Counts,
    numbers: Counts,
    bounds: Counts,
    state: NDArray[np.uint8],
) -> int:
    """Take the block that waits, then find, rank, count and sum up one after another, until something is to be decided.

    sizes: the unit after the last, units of a block, the row, the address of the tensor's sums or 0. Returns a `Stop`.
    """
    stop, span = sizes[0], sizes[1]
    place = np.empty(4, np.int64)
    place[0] = sizes[2]
    while True:
        if numbers[_WAITING] and not _take(numbers, bounds, filled, places, counts):
            return _FULL
        start, first = numbers[_AT], numbers[_CHANGED]
        if start == stop:
            return _DONE
        count = min(span, stop - start)
        if items.shape[1] < first + count or positions.size < first + count + GROUP:
            return _NO_ROOM
        left, right = old + WIDTH * start, new + WIDTH * start
        mine = counts[numbers[_RANKED]]
        sums = sizes[3]
        if sums:
            sums += start // span * _SUMS_BYTES
        found = scan_ranked(left, right, count, window, positions, olds, steps, first, mine, items, filled, state, sums)
        if found > DENSE * count:
            numbers[_APART] = found
            return _DENSE
        numbers[_AT] += count
        if found:
            place[1], place[2], place[3] = start, count, found
            _wait(place, first, rate, key, positions, olds, steps, places, numbers)
            part = slice(first, first + found)
            if see(left, count, olds[part], steps[part], units, changes, seen):
                return _STALE
