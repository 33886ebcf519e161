"""Which way each unit changed last, and the units of a block parted by whether they changed before.

With Adam a weight drifts: an element that changed before is likely to change again, and mostly the same way. Who went
along the same deltas knows which these are, so a chunk may code changes among *known* units, which changed before, and
among the others apart, each by frequencies of their own (`tight_past`).

A history is counted from some version on and takes two bits a unit of a tensor of 16-bit units.

Loops of other files are compiled into those here: where one of those is changed, this file must be compiled anew too.
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
ByteArray = NDArray[np.uint8]
#: Of so many groups one is looked at, to learn how frequent each scale is.
_SAMPLED = 64


class ChangeHistory:
    """The last direction of each unit of one tensor, from some version on.

    known, down: u64 (ceil(count / 64)); bit k of word i tells whether unit 64·i + k changed, and whether downwards.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.known = np.zeros(-(-count // 64), np.uint64)
        self.down = np.zeros_like(self.known)

    def record(self, block: Block) -> None:
        """Take a block's steps into account; the block must lie within the tensor, and its unit be of 16 bits."""
        if block.steps.dtype != np.uint16 or not 0 <= block.start <= block.start + block.count <= self.count:
            raise ValueError("a block that is not of this tensor")
        positions = block.positions
        if positions is None:
            positions = np.arange(block.count, dtype=np.uint32)
        if positions.size and int(positions.max()) >= block.count:
            raise ValueError("the block has positions outside its own range")
        _record(self.known, self.down, block.start, positions, block.steps)


#: Gives the history of a row; None where it has none.
HistoryLookup = Callable[[int], ChangeHistory | None]


@kernel
def _record(known: WordArray, down: WordArray, start: int, positions: NDArray[np.uint32], steps: Units) -> None:
    for j in range(_U(positions.size)):
        place = _U(start) + _U(positions[j])
        if steps[j] != 0:
            bit = _ONE << (place & _U(63))
            known[place >> _U(6)] |= bit
            if steps[j] >> 15:
                down[place >> _U(6)] |= bit
            else:
                down[place >> _U(6)] &= ~bit


@kernel
def split_changes(
    known: WordArray, start: int, positions: NDArray[np.uint32], steps: Units, places: NDArray[np.uint32], moves: Units
) -> int:
    """Part the changes of a block that begins at unit `start`: to rows 0 of `places` and `moves`, which have room for
    all, those of other units, to rows 1 those of known ones. Returns how many these are."""
    counts = np.zeros(2, np.uint64)
    for j in range(_U(positions.size)):
        place = _U(start) + _U(positions[j])
        bit = (known[place >> _U(6)] >> (place & _U(63))) & _ONE
        places[bit, counts[bit]], moves[bit, counts[bit]] = positions[j], steps[j]
        counts[bit] += _ONE
    return int(counts[1])


@inline
def _selected(known: Any, start: Any, count: Any, group: Any, flip: Any) -> Any:
    """Of a group of 64 units of a block the mask of those to be chosen. `start` is a multiple of 64."""
    word = known[(start >> _U(6)) + group] ^ flip
    left = count - (group << _U(6))
    return word & ((_ONE << left) - _ONE) if left < _U(GROUP) else word


@kernel
def count_selected(known: WordArray, start: int, count: int, wanted: int) -> int:
    """How many of `count` units from unit `start` on, a multiple of 64, have the bit `wanted` in `known`."""
    found, flip = _U(0), _U(wanted) - _ONE
    for group in range(_U(count + GROUP - 1) >> _U(6)):
        found += popcount(_selected(known, _U(start), _U(count), group, flip))
    return int(found)


@kernel
def copy_selected(base: int, known: WordArray, start: int, count: int, wanted: int, out: Units) -> int:
    """Copy those units that `count_selected` counts to `out`, which has room for `count + GROUP`; returns how many.

    base: the address of unit `start`.
    """
    flip, whole = _U(wanted) - _ONE, _U(count) >> _U(6)
    place, first = _U(base), _U(out.ctypes.data)
    at = first
    for group in range(whole):
        mask = _selected(known, _U(start), _U(count), group, flip)
        compress(place, mask, at)
        at += popcount(mask) << _ONE
        place += _U(2 * GROUP)
    rest = _selected(known, _U(start), _U(count), whole, flip) if _U(count) & _U(GROUP - 1) else _U(0)
    for k in range(_U(GROUP)):
        if (rest >> k) & _ONE:
            store(at, 0, load(place, np.int64(k), _UNIT), _UNIT)
            at += _U(2)
    return int((at - first) >> _ONE)


@kernel
def add_to_selected(
    known: WordArray, start: int, wanted: int, positions: NDArray[np.uint32], steps: Units, target: Units
) -> None:
    """Add steps at rising positions of a block, all of units that `copy_selected` copies, to its copy."""
    flip, group, before = _U(wanted) - _ONE, _U(0), _U(0)
    first = _U(start) >> _U(6)
    for j in range(_U(positions.size)):
        place = _U(positions[j])
        while group < place >> _U(6):
            before += popcount(known[first + group] ^ flip)
            group += _ONE
        below = (_ONE << (place & _U(63))) - _ONE
        target[before + popcount((known[first + group] ^ flip) & below)] += steps[j]


@kernel
def restore_positions(known: WordArray, start: int, count: int, wanted: int, positions: NDArray[np.uint32]) -> bool:
    """Turn rising positions among the units that `copy_selected` copies into those in the block, in place; False if one
    is beyond them."""
    groups, flip = _U(count + GROUP - 1) >> _U(6), _U(wanted) - _ONE
    group, before, end, mask = _U(0), _U(0), _U(0), _U(0)
    for j in range(_U(positions.size)):
        place = _U(positions[j])
        while place >= end:
            if group == groups:
                return False
            mask = _selected(known, _U(start), _U(count), group, flip)
            before = end
            end += popcount(mask)
            group += _ONE
        positions[j] = ((group - _ONE) << _U(6)) + select(mask, place - before)
    return True


@kernel
def count_scales_by_history(base: int, known: WordArray, start: int, count: int, totals: NDArray[np.int64]) -> None:
    """Add to `totals` (2, 256) about how often each scale occurs among the other units and among those that changed
    before, by one group of 64. base: the address of unit `start`."""
    for begin in range(_U(0), _U(count), _U(GROUP * _SAMPLED)):
        word = known[(_U(start) + begin) >> _U(6)]
        for k in range(min(_U(GROUP), _U(count) - begin)):
            scale = (load(base, np.int64(begin + k), _UNIT) >> _U(7)) & _U(255)
            totals[(word >> k) & _ONE, scale] += _SAMPLED
