"""Samples of a tensor's changes, taken before it is coded: pieces of 256 units of both copies, from all over it.

The choice of pieces follows from the tensor's row alone: one piece of each stretch of `every` pieces, at a
pseudo-random position, because a regular pace would sample the same columns of a matrix again and again. So a sample of
two copies equals one of blocks that were found elsewhere. Smaller pieces would be slower to fetch from memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.block import Block
from p2psync.delta.kernels.unit_loops import GROUP, differ, inline, kernel, load, prefetch, trailing
from p2psync.delta.tensors import Units

#: Units of a piece; scales are counted of one unit in this many. Changes are rare, so exact counts would not help.
PIECE_UNITS, _COUNT_EVERY = 256, 4
#: Pieces that memory is prefetched ahead.
_PREFETCH_PIECES = 2

_U = np.uint64
_ONE = _U(1)
_UNIT = np.empty(0, np.uint16)
#: Multiplier of the hash that places pieces: 2^64 divided by the golden ratio.
_GOLDEN = _U(0x9E3779B97F4A7C15)


class ChangeSample(NamedTuple):
    """Estimated counts of scales, and the changes found.

    units: i64 (256), units of each scale. size: units in the sample. olds, steps: u16, one for each change.
    """

    units: NDArray[np.int64]
    size: int
    olds: Units
    steps: Units


def sample_copies(old: int, new: int, row: int, first: int, stop: int, every: int) -> ChangeSample:
    """Sample units `first` to `stop` of a row from both copies.

    old, new: addresses of the copies' first units. first: the first unit of a piece. every: see the module.
    """
    return ChangeSample(*_sample(old, new, row, first, stop, every))


def sample_blocks(old: int, row: int, first: int, stop: int, every: int, blocks: Iterable[Block]) -> ChangeSample:
    """The sample of `sample_copies` from the old copy and the blocks that hold all changes of these units."""
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
    """The sampled piece of a stretch."""
    mixed = (stretch + row * _GOLDEN + _ONE) * _GOLDEN
    return stretch * every + ((mixed >> _U(32)) * every >> _U(32))


@inline
def _fetch(base: Any, piece: Any) -> Any:
    """Prefetch a piece."""
    for line in range(_U(0), _U(2 * PIECE_UNITS), _U(64)):
        prefetch(_U(base) + _U(2 * PIECE_UNITS) * piece + line)


@kernel
def _scales(old: int, row: int, first: int, stop: int, every: int) -> tuple[NDArray[np.int64], int]:
    # A count that was just stored is slow to load, so neighbours go to different tallies.
    begin: Any
    tallies, size = np.zeros((4, 256), np.int64), 0
    for stretch in range(first // (PIECE_UNITS * every), (stop - 1) // (PIECE_UNITS * every) + 1):
        begin = PIECE_UNITS * np.int64(_piece(_U(row), _U(stretch), _U(every)))
        _fetch(old, _piece(_U(row), _U(stretch + _PREFETCH_PIECES), _U(every)))
        if begin < first or begin >= stop:
            continue
        end = min(begin + PIECE_UNITS, stop)
        size += end - begin
        for i in range(begin + stretch % _COUNT_EVERY, end, _COUNT_EVERY):
            tallies[i // _COUNT_EVERY & 3, (load(old, i, _UNIT) >> _U(7)) & _U(255)] += _COUNT_EVERY
    return tallies.sum(axis=0), size


@kernel
def _changes(old: int, new: int, row: int, first: int, stop: int, every: int, olds: Units, steps: Units) -> int:
    begin: Any
    found = 0
    for stretch in range(first // (PIECE_UNITS * every), (stop - 1) // (PIECE_UNITS * every) + 1):
        begin = PIECE_UNITS * np.int64(_piece(_U(row), _U(stretch), _U(every)))
        _fetch(new, _piece(_U(row), _U(stretch + _PREFETCH_PIECES), _U(every)))
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
                unit = at + np.int64(trailing(rest))
                olds[found] = load(old, unit, _UNIT)
                steps[found] = load(new, unit, _UNIT) - load(old, unit, _UNIT)
                found += 1
                rest &= rest - _ONE
    return found


@kernel
def _sample(
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
        unit = start + np.int64(positions[j])
        piece = _U(unit // PIECE_UNITS)
        if piece == _piece(_U(row), piece // _U(every), _U(every)):
            olds[found], steps[found] = load(old, unit, _UNIT), given[j]
            found += 1
    return found
