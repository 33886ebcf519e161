"""A sample of what is to be coded, taken before: some groups of units of both copies, from all over a tensor.

Which groups these are follows from the tensor's row alone: one of each stretch of `every` groups, at a place that looks
random, since any even pace would meet the same columns of a matrix again and again. So a sample is the same whether it
is taken of two copies or of blocks that were found elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.block import Block
from p2psync.delta.kernels import GROUP, differ, inline, kernel, load, prefetch, trailing
from p2psync.delta.tensors import Units

_U = np.uint64
_ONE = _U(1)
_UNIT = np.empty(0, np.uint16)
#: Of multiplicative hashing: 2^64 divided by the golden ratio.
_GOLDEN = _U(0x9E3779B97F4A7C15)


class Sample(NamedTuple):
    """units: i64 (256), how often each scale occurs; size: how many units that are; old bits and steps of changes."""

    units: NDArray[np.int64]
    size: int
    olds: Units
    steps: Units


def sample_copies(old: int, new: int, row: int, first: int, stop: int, every: int) -> Sample:
    """Of units `first` to `stop` of a row whose copies' first units are at these addresses; `first` begins a group."""
    units, size = _scales(old, row, first, stop, every)
    olds, steps = np.empty(size, np.uint16), np.empty(size, np.uint16)
    found = _changes(old, new, row, first, stop, every, olds, steps)
    return Sample(units, size, olds[:found], steps[:found])


def sample_blocks(old: int, row: int, first: int, stop: int, every: int, blocks: Iterable[Block]) -> Sample:
    """The same, where all changes of these units are in `blocks`."""
    units, size = _scales(old, row, first, stop, every)
    olds, steps = np.empty(size, np.uint16), np.empty(size, np.uint16)
    found = 0
    for block in blocks:
        positions = block.positions
        if positions is None:
            positions = np.arange(block.count, dtype=np.uint32)
        found = _pick(old, row, block.start, every, positions, block.steps, olds, steps, found)
    return Sample(units, size, olds[:found], steps[:found])


@inline
def _group(row: Any, stretch: Any, every: Any) -> Any:
    """The group of a stretch that is looked at."""
    mixed = (stretch + row * _GOLDEN + _ONE) * _GOLDEN
    return stretch * every + ((mixed >> _U(32)) * every >> _U(32))


@kernel
def _scales(old: int, row: int, first: int, stop: int, every: int) -> tuple[NDArray[np.int64], int]:
    # A count that has just been stored is slow to load, so neighbours are counted apart.
    begin: Any
    tallies, size = np.zeros((4, 256), np.int64), 0
    for stretch in range(first // (GROUP * every), (stop - 1) // (GROUP * every) + 1):
        begin = GROUP * np.int64(_group(_U(row), _U(stretch), _U(every)))
        ahead = _U(old) + _U(2 * GROUP) * _group(_U(row), _U(stretch + 4), _U(every))
        prefetch(ahead)
        prefetch(ahead + _U(64))
        if begin >= first:
            for i in range(begin, min(begin + GROUP, stop)):
                tallies[i & 3, (load(old, i, _UNIT) >> _U(7)) & _U(255)] += 1
                size += 1
    return tallies.sum(axis=0), size


@kernel
def _changes(old: int, new: int, row: int, first: int, stop: int, every: int, olds: Units, steps: Units) -> int:
    found = 0
    for stretch in range(first // (GROUP * every), (stop - 1) // (GROUP * every) + 1):
        begin = GROUP * np.int64(_group(_U(row), _U(stretch), _U(every)))
        ahead = _U(new) + _U(2 * GROUP) * _group(_U(row), _U(stretch + 4), _U(every))
        prefetch(ahead)
        prefetch(ahead + _U(64))
        if begin < first:
            continue
        rest = _U(0)
        if begin + GROUP <= stop:
            rest = differ(old, new, begin, _UNIT)
        else:
            for i in range(stop - begin):
                rest |= _U(load(old, begin + i, _UNIT) != load(new, begin + i, _UNIT)) << _U(i)
        while rest != _U(0):
            place = begin + np.int64(trailing(rest))
            olds[found] = load(old, place, _UNIT)
            steps[found] = load(new, place, _UNIT) - load(old, place, _UNIT)
            found += 1
            rest &= rest - _ONE
    return found


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
        group = _U(place // GROUP)
        if group == _group(_U(row), group // _U(every), _U(every)):
            olds[found], steps[found] = load(old, place, _UNIT), given[j]
            found += 1
    return found
