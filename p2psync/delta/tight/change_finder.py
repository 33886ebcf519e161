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
from p2psync.delta.fast.codec import fast_bytes_bound_of
from p2psync.delta.kernels.simd import MAX_CLASSES
from p2psync.delta.kernels.unit_loops import GROUP, SUM_ROWS, kernel, scan, sum_change
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.delta.tight.class_choice import ClassChooser, IntArray, count_block
from p2psync.delta.tight.class_index import SCAN_BYTES, scan_class_indices
from p2psync.delta.tight.sample import ChangeSample
from p2psync.delta.tight.scratch import MAX_TIGHT_BLOCKS, ScratchBuffers

#: Bytes of a unit that may be ranked.
UNIT_BYTES = 2
#: Where more than this share of a block changes, ranks save no bits and cost time.
MAX_SPARSE_SHARE = 0.75
#: Most changed units in the symbols of one chunk: what decoding it takes is bounded by this.
MAX_TIGHT_CHANGES = 1 << 22
#: Bytes that a head takes, about; and that the sums of a block take.
_HEADER_BYTES = 16
_SUMS_BYTES = SUM_ROWS * GROUP * UNIT_BYTES

# Of the chunk at hand: ranked blocks, others, changes of ranked ones, bytes that all may take, and in profile `fast`.
# Of a block that waits: whether there is one, whether it needs a chunk of its own, and the same bytes. Then the next
# unit to look at; the changes of a dense block that begins there; and what was found since this was last asked for:
# changes, and the digest's three sums.
(
    _TIGHT,
    _OTHERS,
    _CHANGED,
    _SIZE,
    _FAST_BOUND,
    _WAITING,
    _NEEDS_NEW_CHUNK,
    _WAITING_SIZE,
    _WAITING_FAST_BOUND,
    _AT,
    _DENSE_CHANGES,
    _FOUND,
    _SUMS,
) = range(13)
_NUMBERS = _SUMS + 3


class StopReason(IntEnum):
    """Why `_find_tight_blocks` ended."""

    DONE = 0
    FULL = 1
    """The chunk at hand should take no more: a block waits for the next one."""
    DENSE = 2
    """The next block is found, but not to be ranked."""
    STALE = 3
    """Other classes may be better for the block that was found last; it waits."""
    NO_SCRATCH = 4
    """There is too little room for what the next block may have."""


# For compiled code, and back: to look a member up by its value takes longer.
_DONE, _FULL, _DENSE, _STALE, _NO_SCRATCH = (int(stop) for stop in StopReason)
_STOPS = tuple(StopReason)


class FindProgress(NamedTuple):
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
    dense_block: Block | None


class ChangeFinder:
    """The ranked blocks of the chunk at hand, and at most one that waits for the next chunk."""

    def __init__(self, limit: int, most_blocks: int) -> None:
        """limit: bytes that a chunk should not be larger than; most_blocks: blocks of any kind that it may have."""
        self._bounds = np.array([limit, min(12 * limit, MAX_TIGHT_CHANGES), most_blocks], np.int64)
        self._classes = ClassChooser()
        self._dense = False
        self._scratch: ScratchBuffers | None = None
        self._filled = np.zeros(MAX_CLASSES, np.int64)
        self._numbers = np.zeros(_NUMBERS, np.int64)
        self._state = np.empty(SCAN_BYTES, np.uint8)
        #: The classes of the chunk at hand; None before it has a ranked block.
        self.window: NDArray[np.uint8] | None = None

    @property
    def blocks(self) -> int:
        """Ranked blocks of the chunk at hand."""
        return int(self._numbers[_TIGHT])

    @property
    def changed(self) -> int:
        """Changes in them."""
        return int(self._numbers[_CHANGED])

    @property
    def fast_bound(self) -> int:
        """Bytes that the chunk may take in profile `fast`."""
        return int(self._numbers[_FAST_BOUND])

    @property
    def places(self) -> IntArray:
        """(blocks, 4): row, first unit, units and changes of each."""
        assert self._scratch is not None
        return self._scratch.places[: self.blocks]

    @property
    def counts(self) -> IntArray:
        """(blocks, 2, 8): changes and units of each class."""
        assert self._scratch is not None
        return self._scratch.counts[: self.blocks]

    @property
    def items(self) -> NDArray[np.uint64]:
        """(8, room): changes, class after class, as `symbols.count_symbols` wants them."""
        assert self._scratch is not None
        return self._scratch.items

    def block(self, number: int) -> Block:
        """One of the blocks; its arrays last as long as the chunk is at hand."""
        assert self._scratch is not None
        row, start, count, changed = self._scratch.places[number].tolist()
        first = int(self._scratch.places[:number, 3].sum())
        part = slice(first, first + changed)
        return Block(row, start, count, self._scratch.positions[part], self._scratch.steps[part])

    def fits(self, size: int, fast_bound: int) -> bool:
        """Whether the chunk at hand should take a block more of so many bytes."""
        return bool(_fits(self._numbers, self._bounds, size, fast_bound))

    def add_fast_block(self, size: int, fast_bound: int) -> None:
        """Take a block into account that is not ranked."""
        self._numbers[_OTHERS] += 1
        self._numbers[_SIZE] += size
        self._numbers[_FAST_BOUND] += fast_bound

    def add_sample(self, sample: ChangeSample) -> None:
        """Take a sample of what is to be ranked into account, before any of it is."""
        # A tensor of which all changes will not be ranked; and of one that does not change nobody may tell.
        if 0 < sample.steps.size <= MAX_SPARSE_SHARE * sample.size:
            self._classes.sample(sample)

    def advance(
        self, spec: TensorSpec, row: int, old: int, new: int, units: tuple[int, int, int], rate: float, sums: int = 0
    ) -> FindProgress:
        """Rank blocks of a tensor whose copies' first units are at these addresses, into the chunk at hand.

        units: the first one, the one after the last, and how many a block has. rate: bytes that a change may take.
        sums: address of the tensor's sums, `kernels.SUM_ROWS` rows for each of its blocks, which are set; 0: none.
        Where the chunk is full, `begin` the next one and call again, from the unit on that was told.
        """
        numbers, before = self._numbers, self.blocks
        numbers[_AT], numbers[_FOUND:] = units[0], 0
        key, why = tensor_key(spec), StopReason.NO_SCRATCH
        self._classes.choose_from_sample()
        while why not in (StopReason.DONE, StopReason.FULL, StopReason.DENSE):
            # After a block that was too dense to be ranked another one is likely.
            plain = self._classes.window is None or self._dense
            if plain and not numbers[_WAITING]:
                why = self._start(row, old, new, *units[1:], rate, key, sums)
            else:
                why = self._continue(row, old, new, *units[1:], rate, key, sums)
        dense_block, digest = None, join_change(*numbers[_SUMS:].tolist())
        self._dense = why is StopReason.DENSE
        if self._dense:
            dense_block, change = self._take_dense_block(row, min(units[2], units[1] - int(numbers[_AT])), key)
            digest = (digest + change) % MODULUS
        return FindProgress(
            int(numbers[_AT]), self.blocks - before, int(numbers[_FOUND]), digest, why is StopReason.FULL, dense_block
        )

    def begin(self) -> None:
        """Begin a new chunk; if a block waits for it, that comes first."""
        numbers, scratch = self._numbers, self._scratch
        if scratch is not None:
            if numbers[_WAITING]:
                scratch.move_waiting(self._filled, self.blocks, self.changed)
            else:
                scratch.give()
                self._scratch = None
        numbers[: _FAST_BOUND + 1] = 0
        self._filled[:] = 0
        self.window = None
        self._classes.begin()

    def _continue(
        self, row: int, old: int, new: int, stop: int, span: int, rate: float, key: NDArray[np.uint64], sums: int
    ) -> StopReason:
        classes, scratch = self._classes, self._scratch_for(span)
        window = classes.window
        assert window is not None
        sizes = np.array([stop, span, row, sums], np.int64)
        own = self._filled, self._numbers, self._bounds, self._state
        arrays: tuple[Any, ...] = (window, *classes.histograms, *scratch.arrays, *own)
        why = _STOPS[_find_tight_blocks(old, new, sizes, rate, key, *arrays)]
        # The classes may be others by the time that the chunk is closed.
        if self.window is None and self.blocks:
            self.window = window
        if why is StopReason.STALE and classes.choose_again():
            self._index_waiting_block(scratch, old, new)
        return why

    def _start(
        self, row: int, old: int, new: int, stop: int, span: int, rate: float, key: NDArray[np.uint64], sums: int
    ) -> StopReason:
        """Look at a block before there are classes for it; it is left waiting."""
        numbers, classes, scratch = self._numbers, self._classes, self._scratch_for(span)
        start, first = int(numbers[_AT]), self.changed
        if start == stop:
            return StopReason.DONE
        count = min(span, stop - start)
        positions, olds, steps = (array[first:] for array in (scratch.positions, scratch.olds, scratch.steps))
        sums += sums and start // span * _SUMS_BYTES
        found = scan(old + UNIT_BYTES * start, new + UNIT_BYTES * start, count, positions, olds, steps, sums)
        if found > MAX_SPARSE_SHARE * count:
            numbers[_DENSE_CHANGES] = found
            return StopReason.DENSE
        self._dense = False
        numbers[_AT] += count
        if found:
            fresh = classes.window is None
            classes.count_block(old + UNIT_BYTES * start, count, olds[:found], steps[:found])
            place = np.array([row, start, count, found], np.int64)
            _set_waiting(
                place, first, rate, key, scratch.positions, scratch.olds, scratch.steps, scratch.places, numbers
            )
            self._index_waiting_block(scratch, old, new, fresh=fresh or classes.choose_again())
        return StopReason.NO_SCRATCH

    def _take_dense_block(self, row: int, count: int, key: NDArray[np.uint64]) -> tuple[Block, int]:
        """The dense block of `count` units that was found last, and what it adds to the digest."""
        scratch, start, first = self._scratch, int(self._numbers[_AT]), self.changed
        assert scratch is not None
        self._numbers[_AT] += count
        part = slice(first, first + int(self._numbers[_DENSE_CHANGES]))
        positions, olds, steps = scratch.positions[part], scratch.olds[part], scratch.steps[part]
        change = join_change(*sum_change(positions, olds, steps, steps.size, start, key))
        return Block(row, start, count, None if steps.size == count else positions.copy(), steps.copy()), change

    def _index_waiting_block(self, scratch: ScratchBuffers, old: int, new: int, *, fresh: bool = True) -> None:
        """Rank the block that waits, by the classes as they are now. fresh: they are not those of the chunk at hand."""
        window, number = self._classes.window, self.blocks
        assert window is not None
        start, count = scratch.places[number, 1:3].tolist()
        found = (
            scratch.positions,
            scratch.olds,
            scratch.steps,
            self.changed,
            scratch.counts[number],
            scratch.items,
            self._filled,
        )
        scan_class_indices(old + UNIT_BYTES * start, new + UNIT_BYTES * start, count, window, *found, self._state, 0)
        self._numbers[_NEEDS_NEW_CHUNK] = fresh

    def _scratch_for(self, count: int) -> ScratchBuffers:
        if self._scratch is None:
            self._scratch = ScratchBuffers.take()
        kept = self._filled
        if self._numbers[_WAITING]:
            kept = kept + self._scratch.counts[self.blocks, 0]
        self._scratch.grow(kept, self.changed, count)
        return self._scratch


@kernel
def _fits(numbers: IntArray, bounds: IntArray, size: int, fast_bound: int) -> bool:
    """Whether the chunk at hand, which has blocks, should take one more of so many bytes."""
    tight, others = numbers[_TIGHT], numbers[_OTHERS]
    if tight == MAX_TIGHT_BLOCKS or tight + others == bounds[2]:
        return False
    # What profile `fast` would take at most: no chunk ever takes more.
    return bool(numbers[_SIZE] + size <= bounds[0] and numbers[_FAST_BOUND] + fast_bound <= bounds[1])


@kernel
def _take_waiting(numbers: IntArray, bounds: IntArray, filled: IntArray, places: IntArray, counts: IntArray) -> bool:
    """Take the block that waits into the chunk at hand, if it should take it."""
    number, size, fast_bound = numbers[_TIGHT], numbers[_WAITING_SIZE], numbers[_WAITING_FAST_BOUND]
    if number and numbers[_NEEDS_NEW_CHUNK]:
        return False
    if number + numbers[_OTHERS] and not _fits(numbers, bounds, size, fast_bound):
        return False
    for c in range(MAX_CLASSES):
        filled[c] += counts[number, 0, c]
    numbers[_TIGHT] += 1
    numbers[_CHANGED] += places[number, 3]
    numbers[_SIZE] += size
    numbers[_FAST_BOUND] += fast_bound
    numbers[_WAITING] = numbers[_NEEDS_NEW_CHUNK] = 0
    return True


@kernel
def _set_waiting(
    place: IntArray,
    first: int,
    rate: float,
    key: NDArray[np.uint64],
    positions: NDArray[np.uint32],
    olds: Units,
    steps: Units,
    places: IntArray,
    numbers: IntArray,
) -> None:
    """Let a block wait whose changes are found: row, first unit, units, changes."""
    places[numbers[_TIGHT]] = place
    start, count, found = place[1], place[2], place[3]
    part = slice(first, first + found)
    sums = sum_change(positions[part], olds[part], steps[part], found, start, key)
    numbers[_SUMS] += sums[0]
    numbers[_SUMS + 1] += sums[1]
    numbers[_SUMS + 2] += np.int64(sums[2])
    numbers[_FOUND] += found
    numbers[_WAITING_SIZE] = _HEADER_BYTES + int(rate * found)
    numbers[_WAITING_FAST_BOUND] = fast_bytes_bound_of(count, found, UNIT_BYTES)
    numbers[_WAITING] = 1


@kernel
def _find_tight_blocks(
    old: int,
    new: int,
    sizes: IntArray,
    rate: float,
    key: NDArray[np.uint64],
    window: NDArray[np.uint8],
    units: IntArray,
    changes: IntArray,
    seen: IntArray,
    positions: NDArray[np.uint32],
    olds: Units,
    steps: Units,
    items: NDArray[np.uint64],
    places: IntArray,
    counts: IntArray,
    filled: IntArray,
    numbers: IntArray,
    bounds: IntArray,
    state: NDArray[np.uint8],
) -> int:
    """Take the block that waits, then find, rank, count and sum up one after another, until something is to be decided.

    sizes: the unit after the last, units of a block, the row, the address of the tensor's sums or 0. Returns a `StopReason`.
    """
    stop, span = sizes[0], sizes[1]
    place = np.empty(4, np.int64)
    place[0] = sizes[2]
    while True:
        if numbers[_WAITING] and not _take_waiting(numbers, bounds, filled, places, counts):
            return _FULL
        start, first = numbers[_AT], numbers[_CHANGED]
        if start == stop:
            return _DONE
        count = min(span, stop - start)
        if items.shape[1] < first + count or positions.size < first + count + GROUP:
            return _NO_SCRATCH
        left, right = old + UNIT_BYTES * start, new + UNIT_BYTES * start
        mine = counts[numbers[_TIGHT]]
        sums = sizes[3]
        if sums:
            sums += start // span * _SUMS_BYTES
        found = scan_class_indices(
            left, right, count, window, positions, olds, steps, first, mine, items, filled, state, sums
        )
        if found > MAX_SPARSE_SHARE * count:
            numbers[_DENSE_CHANGES] = found
            return _DENSE
        numbers[_AT] += count
        if found:
            place[1], place[2], place[3] = start, count, found
            _set_waiting(place, first, rate, key, positions, olds, steps, places, numbers)
            part = slice(first, first + found)
            if count_block(left, count, olds[part], steps[part], units, changes, seen):
                return _STALE
