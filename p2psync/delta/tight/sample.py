"""A sample of what is to be coded, taken before: some pieces of 256 units of both copies, from all over a tensor.

Which pieces these are follows from the tensor's row alone: one of each stretch of `every` pieces, at a place that looks
random, since any even pace would meet the same columns of a matrix again and again. So a sample is the same whether it
is taken of two copies or of blocks that were found elsewhere. Smaller pieces would be fetched from memory more slowly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.block import Block
from p2psync.delta.kernels.unit_loops import GROUP, differ, inline, kernel, load, prefetch, trailing
from p2psync.delta.tensors import Units

#: Units of a piece. Scales are counted of one unit in four of them: changes are rare, and tell less exactly anyway.
PIECE_UNITS, _COUNTED = 256, 4
#: Memory is fetched so many pieces ahead.
_AHEAD = 2

_U = np.uint64
_ONE = _U(1)
_UNIT = np.empty(0, np.uint16)
#: Of multiplicative hashing: 2^64 divided by the golden ratio.
_GOLDEN = _U(0x9E3779B97F4A7C15)


class ChangeSample(NamedTuple):
    """units: i64 (256), about how often each scale occurs; size: how many units that are; changes' old bits, steps."""

    units: NDArray[np.int64]
    size: int
    olds: Units
    steps: Units


def sample_copies(old: int, new: int, row: int, first: int, stop: int, every: int) -> ChangeSample:
    """Of units `first` to `stop` of a row whose copies' first units are at these addresses; `first` begins a piece."""
    return ChangeSample(*_both(old, new, row, first, stop, every))


def sample_blocks(old: int, row: int, first: int, stop: int, every: int, blocks: Iterable[Block]) -> ChangeSample:
    """The same, where all changes of these units are in `blocks`."""
    units, size = _scales(old, row, first, stop, every)
    olds, steps = np.empty(size, np.uint16), np.empty(size, np.uint16)
    found = 0
    for block in blocks:
        positions = block.positions
        if positions is None:
            positions = np.arange(block.count, dtype=np.uint32)
        found = _pick(old, row, block.start, every, positions, block.steps, olds, steps, found)
    return ChangeSample(units, size, olds[:found], steps[:found])


@inline
def _piece(row: Any, stretch: Any, every: Any) -> Any:
    """The piece of a stretch that is looked at."""
    mixed = (stretch + row * _GOLDEN + _ONE) * _GOLDEN
    return stretch * every + ((mixed >> _U(32)) * every >> _U(32))


@inline
def _fetch(base: Any, piece: Any) -> Any:
    """Have a piece fetched from memory."""
    for line in range(_U(0), _U(2 * PIECE_UNITS), _U(64)):
        prefetch(_U(base) + _U(2 * PIECE_UNITS) * piece + line)


@kernel
def _scales(old: int, row: int, first: int, stop: int, every: int) -> tuple[NDArray[np.int64], int]:
    # A count that has just been stored is slow to load, so neighbours are counted apart.
    begin: Any
    tallies, size = np.zeros((4, 256), np.int64), 0
    for stretch in range(first // (PIECE_UNITS * every), (stop - 1) // (PIECE_UNITS * every) + 1):
        begin = PIECE_UNITS * np.int64(_piece(_U(row), _U(stretch), _U(every)))
        _fetch(old, _piece(_U(row), _U(stretch + _AHEAD), _U(every)))
        if begin < first or begin >= stop:
            continue
        end = min(begin + PIECE_UNITS, stop)
        size += end - begin
        for i in range(begin + stretch % _COUNTED, end, _COUNTED):
            tallies[i // _COUNTED & 3, (load(old, i, _UNIT) >> _U(7)) & _U(255)] += _COUNTED
    return tallies.sum(axis=0), size


@kernel
def _changes(old: int, new: int, row: int, first: int, stop: int, every: int, olds: Units, steps: Units) -> int:
    begin: Any
    found = 0
    for stretch in range(first // (PIECE_UNITS * every), (stop - 1) // (PIECE_UNITS * every) + 1):
        begin = PIECE_UNITS * np.int64(_piece(_U(row), _U(stretch), _U(every)))
        _fetch(new, _piece(_U(row), _U(stretch + _AHEAD), _U(every)))
        if begin < first:
            continue
        for at in range(begin, min(begin + PIECE_UNITS, stop), GROUP):
            rest = _U(0)
            if at + GROUP <= stop:
                rest = differ(old, new, at, _UNIT)
            else:
                for i in range(stop - at):
                    rest |= _U(load(old, at + i, _UNIT) != load(new, at + i, _UNIT)) << _U(i)
            while rest != _U(0):
                place = at + np.int64(trailing(rest))
                olds[found] = load(old, place, _UNIT)
                steps[found] = load(new, place, _UNIT) - load(old, place, _UNIT)
                found += 1
                rest &= rest - _ONE
    return found


@kernel
def _both(
    old: int, new: int, row: int, first: int, stop: int, every: int
) -> tuple[NDArray[np.int64], int, Units, Units]:
    units, size = _scales(old, row, first, stop, every)
    olds, steps = np.empty(size, np.uint16), np.empty(size, np.uint16)
    found = _changes(old, new, row, first, stop, every, olds, steps)
    return units, size, olds[:found], steps[:found]


@kernel
def _pick(
    old: int,
    row: int,
    start: int,
    every: int,
    positions: NDArray[np.uint32],
    given: Units,
    olds: Units,
    steps: Units,
    found: int,
) -> int:
    for j in range(positions.size):
        place = start + np.int64(positions[j])
        piece = _U(place // PIECE_UNITS)
        if piece == _piece(_U(row), piece // _U(every), _U(every)):
            olds[found], steps[found] = load(old, place, _UNIT), given[j]
            found += 1
    return found
