"""The change history of a tensor, and loops that select a block's units by it.

With Adam a weight drifts: an element that changed before is likely to change again, and mostly in the same direction. A
receiver of the same deltas has the same history. So a chunk may code the changes of *known* units, which changed
before, apart from those of the others, each by frequencies of their own (`tight.history_writer`).

A history is counted from some version on and takes two bits a unit of a tensor of 16-bit units.

Loops of other files are compiled into the loops here: after a change of those, compile this file again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.block import Block
from p2psync.delta.kernels.simd import compress, select
from p2psync.delta.kernels.unit_loops import GROUP, inline, kernel, load, popcount, store
from p2psync.delta.tensors import Units

_U = np.uint64
_ONE = _U(1)
_UNIT = np.empty(0, np.uint16)
WordArray = NDArray[np.uint64]
#: Scales are counted in one of this many groups.
_SAMPLED_GROUPS = 64


class ChangeHistory:
    """The direction of the last change of each unit of one tensor, counted from some version on.

    known, down: u64 (ceil(count / 64)). Bit k of word i of `known` is set if unit 64·i + k has changed, and of `down`
    if its last step was negative.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.known = np.zeros(-(-count // 64), np.uint64)
        self.down = np.zeros_like(self.known)

    def record(self, block: Block) -> None:
        """Record a block's steps. Raises `ValueError` for a block outside the tensor or not of 16-bit units."""
        if block.steps.dtype != np.uint16 or not 0 <= block.start <= block.start + block.count <= self.count:
            raise ValueError("the block does not belong to this tensor")
        positions = block.positions
        if positions is None:
            positions = np.arange(block.count, dtype=np.uint32)
        if positions.size and int(positions.max()) >= block.count:
            raise ValueError("the block has positions outside its own range")
        _record(self.known, self.down, block.start, positions, block.steps)


#: Returns the history of a row; None if it has none.
HistoryLookup = Callable[[int], ChangeHistory | None]


@kernel
def _record(known: WordArray, down: WordArray, start: int, positions: NDArray[np.uint32], steps: Units) -> None:
    for j in range(_U(positions.size)):
        unit = _U(start) + _U(positions[j])
        if steps[j] != 0:
            bit = _ONE << (unit & _U(63))
            known[unit >> _U(6)] |= bit
            if steps[j] >> 15:
                down[unit >> _U(6)] |= bit
            else:
                down[unit >> _U(6)] &= ~bit


@kernel
def split_changes(
    known: WordArray,
    start: int,
    positions: NDArray[np.uint32],
    steps: Units,
    split_positions: NDArray[np.uint32],
    split_steps: Units,
) -> int:
    """Split the changes of a block that begins at unit `start` by whether their units are known.

    Writes positions and steps to `split_positions` and `split_steps`, (2, changes) each: changes of other units to row
    0, changes of known units to row 1. Returns the number of changes of known units.
    """
    counts = np.zeros(2, np.uint64)
    for j in range(_U(positions.size)):
        unit = _U(start) + _U(positions[j])
        bit = (known[unit >> _U(6)] >> (unit & _U(63))) & _ONE
        split_positions[bit, counts[bit]], split_steps[bit, counts[bit]] = positions[j], steps[j]
        counts[bit] += _ONE
    return int(counts[1])


@inline
def _selected(known: Any, start: Any, count: Any, group: Any, flip: Any) -> Any:
    """The mask of the selected units in a group of 64 units of a block. `start` is a multiple of 64."""
    word = known[(start >> _U(6)) + group] ^ flip
    left = count - (group << _U(6))
    return word & ((_ONE << left) - _ONE) if left < _U(GROUP) else word


@kernel
def count_selected(known: WordArray, start: int, count: int, wanted: int) -> int:
    """Number of units, among `count` from unit `start` (a multiple of 64) on, whose bit in `known` is `wanted`."""
    found, flip = _U(0), _U(wanted) - _ONE
    for group in range(_U(count + GROUP - 1) >> _U(6)):
        found += popcount(_selected(known, _U(start), _U(count), group, flip))
    return int(found)


@kernel
def copy_selected(base: int, known: WordArray, start: int, count: int, wanted: int, out: Units) -> int:
    """Copy the units that `count_selected` counts to `out`; returns their number.

    base: address of unit `start`. out: u16, at least `count + GROUP` entries.
    """
    flip, whole = _U(wanted) - _ONE, _U(count) >> _U(6)
    source, first = _U(base), _U(out.ctypes.data)
    at = first
    for group in range(whole):
        mask = _selected(known, _U(start), _U(count), group, flip)
        compress(source, mask, at)
        at += popcount(mask) << _ONE
        source += _U(2 * GROUP)
    rest = _selected(known, _U(start), _U(count), whole, flip) if _U(count) & _U(GROUP - 1) else _U(0)
    for k in range(_U(GROUP)):
        if (rest >> k) & _ONE:
            store(at, 0, load(source, np.int64(k), _UNIT), _UNIT)
            at += _U(2)
    return int((at - first) >> _ONE)


@kernel
def add_to_selected(
    known: WordArray, start: int, wanted: int, positions: NDArray[np.uint32], steps: Units, target: Units
) -> None:
    """Add steps to the copy that `copy_selected` made. positions: rising, in the block, all of copied units."""
    flip, group, before = _U(wanted) - _ONE, _U(0), _U(0)
    first = _U(start) >> _U(6)
    for j in range(_U(positions.size)):
        position = _U(positions[j])
        while group < position >> _U(6):
            before += popcount(known[first + group] ^ flip)
            group += _ONE
        below = (_ONE << (position & _U(63))) - _ONE
        target[before + popcount((known[first + group] ^ flip) & below)] += steps[j]


@kernel
def restore_positions(known: WordArray, start: int, count: int, wanted: int, positions: NDArray[np.uint32]) -> bool:
    """Convert rising positions in the copy of `copy_selected` to positions in the block, in place.

    Returns False if a position is beyond the copied units.
    """
    groups, flip = _U(count + GROUP - 1) >> _U(6), _U(wanted) - _ONE
    group, before, end, mask = _U(0), _U(0), _U(0), _U(0)
    for j in range(_U(positions.size)):
        position = _U(positions[j])
        while position >= end:
            if group == groups:
                return False
            mask = _selected(known, _U(start), _U(count), group, flip)
            before = end
            end += popcount(mask)
            group += _ONE
        positions[j] = ((group - _ONE) << _U(6)) + select(mask, position - before)
    return True


@kernel
def count_scales_by_history(base: int, known: WordArray, start: int, count: int, totals: NDArray[np.int64]) -> None:
    """Add an estimate of how often each scale occurs to `totals` (2, 256): row 0 for other units, row 1 for known ones.

    Counts one group of 64 units in 64. base: address of unit `start`.
    """
    for begin in range(_U(0), _U(count), _U(GROUP * _SAMPLED_GROUPS)):
        word = known[(_U(start) + begin) >> _U(6)]
        for k in range(min(_U(GROUP), _U(count) - begin)):
            scale = (load(base, np.int64(begin + k), _UNIT) >> _U(7)) & _U(255)
            totals[(word >> k) & _ONE, scale] += _SAMPLED_GROUPS
