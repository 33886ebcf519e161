"""Finds the changes of a tensor, block after block, in one compiled call for as many blocks as possible.

Between blocks the interpreter would find none of its data in the caches, since both copies of the weights went through
them. So the compiled loop returns only if a chunk is full, if other classes may be better, or if a block is dense.

Loops of other files are compiled into the loop here, and numba's cache on disk notices a change of this file only:
after a change of those, compile this file again.
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

#: Bytes of a unit of tight blocks.
UNIT_BYTES = 2
#: The share of changed units above which a block is coded by profile `fast`: class indices would save no bits there.
MAX_SPARSE_SHARE = 0.75
#: Changes in the tight blocks of one chunk, at most; it bounds the memory and time that decoding takes.
MAX_TIGHT_CHANGES = 1 << 22
#: Bytes of a block's header, about.
_HEADER_BYTES = 16
#: Bytes of the sums of a block.
_SUMS_BYTES = SUM_ROWS * GROUP * UNIT_BYTES

# Indices into the numbers that the compiled loop keeps. Of the current chunk: tight blocks, other blocks, changes of
# tight blocks, estimated bytes, and bytes in profile `fast` at most. Of the waiting block: whether there is one,
# whether it needs a new chunk, and the same two byte counts. Then: the next unit; the changes of a dense block that
# begins there; the changes found by this call; and the digest's three sums of them.
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
    """The reason for which `_find_tight_blocks` ended."""

    DONE = 0
    FULL = 1
    """The current chunk is full: a block waits for the next chunk."""
    DENSE = 2
    """The next block was scanned, and is too dense for a tight block."""
    STALE = 3
    """Other classes may be better for the last block; it waits."""
    NO_SCRATCH = 4
    """The scratch buffers are too small for the next block."""


# Plain integers for compiled code, and a tuple for the way back: looking up an enum member by value is slower.
_DONE, _FULL, _DENSE, _STALE, _NO_SCRATCH = (int(stop) for stop in StopReason)
_STOPS = tuple(StopReason)


class FindProgress(NamedTuple):
    """The result of `ChangeFinder.advance`.

    at: the next unit. blocks: tight blocks added to the current chunk. changed: changes found. digest_change: their
    change of the digest, mod 2^128. full: whether the current chunk is full. dense_block: a block too dense for a tight
    block, to be added by the caller; its changes are not in `changed`, but in `digest_change`.
    """

    at: int
    blocks: int
    changed: int
    digest_change: int
    full: bool
    dense_block: Block | None


class ChangeFinder:
    """Finds changes and collects the tight blocks of the current chunk; at most one block waits for the next chunk."""

    def __init__(self, limit: int, max_blocks: int) -> None:
        """limit: intended maximum bytes of a chunk. max_blocks: blocks of any kind in a chunk, at most."""
        self._bounds = np.array([limit, min(12 * limit, MAX_TIGHT_CHANGES), max_blocks], np.int64)
        self._classes = ClassChooser()
        self._dense = False
        self._scratch: ScratchBuffers | None = None
        self._filled = np.zeros(MAX_CLASSES, np.int64)
        self._numbers = np.zeros(_NUMBERS, np.int64)
        self._state = np.empty(SCAN_BYTES, np.uint8)
        #: The class window of the current chunk; None before it has a tight block.
        self.window: NDArray[np.uint8] | None = None

    @property
    def blocks(self) -> int:
        """Number of tight blocks of the current chunk."""
        return int(self._numbers[_TIGHT])

    @property
    def changed(self) -> int:
        """Number of changes in the tight blocks of the current chunk."""
        return int(self._numbers[_CHANGED])

    @property
    def fast_bound(self) -> int:
        """Bytes that the current chunk takes in profile `fast` at most."""
        return int(self._numbers[_FAST_BOUND])

    @property
    def block_table(self) -> IntArray:
        """i64 (blocks, 4): row, first unit, units and changes of each tight block."""
        assert self._scratch is not None
        return self._scratch.block_table[: self.blocks]

    @property
    def counts(self) -> IntArray:
        """i64 (blocks, 2, 8): changes and units of each class."""
        assert self._scratch is not None
        return self._scratch.counts[: self.blocks]

    @property
    def items(self) -> NDArray[np.uint64]:
        """u64 (8, capacity): the changes of each class, in the form that `symbols.count_symbols` takes."""
        assert self._scratch is not None
        return self._scratch.items

    def block(self, number: int) -> Block:
        """Tight block `number` of the current chunk; its arrays are valid until `begin_chunk`."""
        assert self._scratch is not None
        row, start, count, changed = self._scratch.block_table[number].tolist()
        first = int(self._scratch.block_table[:number, 3].sum())
        part = slice(first, first + changed)
        return Block(row, start, count, self._scratch.positions[part], self._scratch.steps[part])

    def fits(self, size: int, fast_bound: int) -> bool:
        """Returns whether the current chunk has space for one more block.

        size: its bytes. fast_bound: its bytes in profile `fast`, at most."""
        return bool(_fits(self._numbers, self._bounds, size, fast_bound))

    def add_fast_block(self, size: int, fast_bound: int) -> None:
        """Count a block of profile `fast` that the caller added to the current chunk."""
        self._numbers[_OTHERS] += 1
        self._numbers[_SIZE] += size
        self._numbers[_FAST_BOUND] += fast_bound

    def add_sample(self, sample: ChangeSample) -> None:
        """Count a sample of the changes to come in the choice of classes; before the first `advance`."""
        # A dense tensor will have no tight blocks; and a sample without changes tells nothing about the classes.
        if 0 < sample.steps.size <= MAX_SPARSE_SHARE * sample.size:
            self._classes.sample(sample)

    def advance(
        self, spec: TensorSpec, row: int, old: int, new: int, units: tuple[int, int, int], rate: float, sums: int = 0
    ) -> FindProgress:
        """Find changes of a tensor and add its tight blocks to the current chunk.

        row: of the tensor in the table. old, new: addresses of the first unit of each copy. units: first unit, unit
        after the last, units of a block. rate: estimated bytes of a change. sums: address of the tensor's block sums
        (`unit_loops.SUM_ROWS` rows for each block), which are set; 0: none. If the result says `full`, call
        `begin_chunk`, and then `advance` again from its unit `at` on.
        """
        numbers, before = self._numbers, self.blocks
        numbers[_AT], numbers[_FOUND:] = units[0], 0
        key, why = tensor_key(spec), StopReason.NO_SCRATCH
        self._classes.choose_from_sample()
        while why not in (StopReason.DONE, StopReason.FULL, StopReason.DENSE):
            # After a dense block another dense one is likely.
            scan_only = self._classes.window is None or self._dense
            if scan_only and not numbers[_WAITING]:
                why = self._scan_block(row, old, new, *units[1:], rate, key, sums)
            else:
                why = self._find_blocks(row, old, new, *units[1:], rate, key, sums)
        dense_block, digest = None, join_change(*numbers[_SUMS:].tolist())
        self._dense = why is StopReason.DENSE
        if self._dense:
            dense_block, change = self._take_dense_block(row, min(units[2], units[1] - int(numbers[_AT])), key)
            digest = (digest + change) % MODULUS
        return FindProgress(
            int(numbers[_AT]), self.blocks - before, int(numbers[_FOUND]), digest, why is StopReason.FULL, dense_block
        )

    def begin_chunk(self) -> None:
        """Begin a new chunk, with the waiting block as its first if there is one."""
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
        self._classes.begin_chunk()

    def _find_blocks(
        self, row: int, old: int, new: int, stop: int, span: int, rate: float, key: NDArray[np.uint64], sums: int
    ) -> StopReason:
        classes, scratch = self._classes, self._scratch_for(span)
        window = classes.window
        assert window is not None
        sizes = np.array([stop, span, row, sums], np.int64)
        own = self._filled, self._numbers, self._bounds, self._state
        arrays: tuple[Any, ...] = (window, *classes.histograms, *scratch.arrays, *own)
        why = _STOPS[_find_tight_blocks(old, new, sizes, rate, key, *arrays)]
        # The chooser's classes may have changed by the time that the chunk is closed.
        if self.window is None and self.blocks:
            self.window = window
        if why is StopReason.STALE and classes.choose_again():
            self._index_waiting_block(scratch, old, new)
        return why

    def _scan_block(
        self, row: int, old: int, new: int, stop: int, span: int, rate: float, key: NDArray[np.uint64], sums: int
    ) -> StopReason:
        """Scan one block, choose classes if there are none, and leave the block waiting."""
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
            needs_new_chunk = classes.window is None
            classes.count_block(old + UNIT_BYTES * start, count, olds[:found], steps[:found])
            block = np.array([row, start, count, found], np.int64)
            _set_waiting(
                block, first, rate, key, scratch.positions, scratch.olds, scratch.steps, scratch.block_table, numbers
            )
            self._index_waiting_block(scratch, old, new, needs_new_chunk=needs_new_chunk or classes.choose_again())
        return StopReason.NO_SCRATCH

    def _take_dense_block(self, row: int, count: int, key: NDArray[np.uint64]) -> tuple[Block, int]:
        """The dense block of `count` units that was scanned last, and its change of the digest."""
        scratch, start, first = self._scratch, int(self._numbers[_AT]), self.changed
        assert scratch is not None
        self._numbers[_AT] += count
        part = slice(first, first + int(self._numbers[_DENSE_CHANGES]))
        positions, olds, steps = scratch.positions[part], scratch.olds[part], scratch.steps[part]
        change = join_change(*sum_change(positions, olds, steps, steps.size, start, key))
        return Block(row, start, count, None if steps.size == count else positions.copy(), steps.copy()), change

    def _index_waiting_block(
        self, scratch: ScratchBuffers, old: int, new: int, *, needs_new_chunk: bool = True
    ) -> None:
        """Compute the waiting block's class indices by the current classes.

        needs_new_chunk: these are not the classes of the current chunk.
        """
        window, number = self._classes.window, self.blocks
        assert window is not None
        start, count = scratch.block_table[number, 1:3].tolist()
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
        self._numbers[_NEEDS_NEW_CHUNK] = needs_new_chunk

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
    """Returns whether the current chunk, which has blocks, has space for one more of so many bytes."""
    tight, others = numbers[_TIGHT], numbers[_OTHERS]
    if tight == MAX_TIGHT_BLOCKS or tight + others == bounds[2]:
        return False
    # The bound in profile `fast` holds for every chunk, since a chunk of more bytes is coded by that profile.
    return bool(numbers[_SIZE] + size <= bounds[0] and numbers[_FAST_BOUND] + fast_bound <= bounds[1])


@kernel
def _take_waiting(
    numbers: IntArray, bounds: IntArray, filled: IntArray, block_table: IntArray, counts: IntArray
) -> bool:
    """Add the waiting block to the current chunk; False if it must wait for the next one."""
    number, size, fast_bound = numbers[_TIGHT], numbers[_WAITING_SIZE], numbers[_WAITING_FAST_BOUND]
    if number and numbers[_NEEDS_NEW_CHUNK]:
        return False
    if number + numbers[_OTHERS] and not _fits(numbers, bounds, size, fast_bound):
        return False
    for c in range(MAX_CLASSES):
        filled[c] += counts[number, 0, c]
    numbers[_TIGHT] += 1
    numbers[_CHANGED] += block_table[number, 3]
    numbers[_SIZE] += size
    numbers[_FAST_BOUND] += fast_bound
    numbers[_WAITING] = numbers[_NEEDS_NEW_CHUNK] = 0
    return True


@kernel
def _set_waiting(
    block: IntArray,
    first: int,
    rate: float,
    key: NDArray[np.uint64],
    positions: NDArray[np.uint32],
    olds: Units,
    steps: Units,
    block_table: IntArray,
    numbers: IntArray,
) -> None:
    """Make a block whose changes were found the waiting one. block: row, first unit, units, changes."""
    for k in range(4):  # compiling an array's assignment takes a second, most of it for the text of an error
        block_table[numbers[_TIGHT], k] = block[k]
    start, count, found = block[1], block[2], block[3]
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
    block_table: IntArray,
    counts: IntArray,
    filled: IntArray,
    numbers: IntArray,
    bounds: IntArray,
    state: NDArray[np.uint8],
) -> int:
    """Add the waiting block to the chunk, then find, index, count and sum up block after block, until it must stop.

    sizes: the unit after the last, units of a block, the row, the address of the tensor's sums or 0. Returns a
    `StopReason`.
    """
    stop, span = sizes[0], sizes[1]
    block = np.empty(4, np.int64)
    block[0] = sizes[2]
    while True:
        if numbers[_WAITING] and not _take_waiting(numbers, bounds, filled, block_table, counts):
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
            block[1], block[2], block[3] = start, count, found
            _set_waiting(block, first, rate, key, positions, olds, steps, block_table, numbers)
            part = slice(first, first + found)
            if count_block(left, count, olds[part], steps[part], units, changes, seen):
                return _STALE
