"""Strided runs: where the units of checkpoint tensors lie in one live parameter.

A loader copies slices: whole tensors, rows, or columns. So a live parameter, read in order, is a sequence of runs of
consecutive checkpoint units. Runs of one length at equal distances make one *piece*. A slice of rows is one run; a
slice of columns is one piece with as many rows as the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from p2psync.delta.kernels.unit_loops import kernel, plain
from p2psync.delta.tensors import Units

#: Maximum pieces of a parameter. A loader that permutes single units would make as many pieces as units.
MAX_PIECES = 1 << 16
MAX_RUNS = 1 << 24
_FIRST_RUNS = 1 << 12
_Array = NDArray[Any]


class RunTable(NamedTuple):
    """Runs: live units [at, at + length) hold the checkpoint units of the numbers [number, number + length)."""

    at: NDArray[np.int64]
    number: NDArray[np.int64]
    length: NDArray[np.int64]


class StridedPiece(msgspec.Struct, frozen=True, array_like=True):
    """`rows` runs of `length` units. The checkpoint's [start + k·step, +length) are the live [at + k·pitch, +length).

    step ≥ length and pitch ≥ length; with one row both are `length`.
    """

    start: int
    at: int
    length: int
    rows: int
    step: int
    pitch: int

    @property
    def units(self) -> int:
        """The number of units."""
        return self.length * self.rows

    @property
    def end(self) -> int:
        """The checkpoint unit after the last one."""
        return self.start + (self.rows - 1) * self.step + self.length


@dataclass(frozen=True, slots=True, eq=False)
class BlockPart:
    """The part of a block that lies in a piece.

    Live units [start, start + count), at `positions` of them (None: all). entries: which of the block's entries they
    are, in order.
    """

    start: int
    count: int
    positions: NDArray[np.uint32] | None
    entries: slice | NDArray[np.int64]


def find_runs(lowest: Units, inverted: Units, higher: Units) -> RunTable:
    """Finds the runs in a live parameter from the digits that the probes left there.

    lowest: the lowest digit of each unit. inverted: the same after a pass with inverted bits; where it is equal, no
    probe arrived. higher: of shape (further digits, units). Raises `ValueError` where a unit is neither equal nor
    inverted, or where there are more than `MAX_RUNS` runs.
    """
    capacity = _FIRST_RUNS
    while True:
        runs = RunTable(*(np.empty(capacity, np.int64) for _ in range(3)))
        found = _find_runs(lowest, inverted, higher, *runs)
        if found < 0:
            raise ValueError("a unit was computed, not copied")
        if found <= capacity:
            return RunTable(*(part[:found] for part in runs))
        if capacity >= MAX_RUNS:
            raise ValueError("the loader permutes units one by one")
        capacity = min(MAX_RUNS, 16 * capacity)


def probe_digits(first: int, count: int, digit: int, like: Units, *, inverted: bool) -> Units:
    """Returns digit `digit` of the numbers [first, first + count), with all bits inverted if `inverted`."""
    out = np.empty(count, like.dtype)
    _fill_digits(first, 8 * like.itemsize * digit, -1 if inverted else 0, out)
    return out


def group_runs(runs: RunTable, firsts: NDArray[np.int64]) -> list[tuple[int, StridedPiece]]:
    """Groups runs into pieces: returns (tensor, piece), with `start` counted within the tensor.

    firsts: the first number of each tensor, rising; at least one number between two tensors is unused. Raises
    `ValueError` if there are more than `MAX_PIECES`.
    """
    at, number, length = runs
    tensor = np.searchsorted(firsts, number, side="right") - 1
    found: list[tuple[int, StridedPiece]] = []
    first = 0
    while first < at.size:
        last = _last_of_piece(at, number, length, tensor, first)
        rows = last - first + 1
        size = int(length[first])
        step = int(number[first + 1] - number[first]) if rows > 1 else size
        pitch = int(at[first + 1] - at[first]) if rows > 1 else size
        start = int(number[first] - firsts[tensor[first]])
        found.append((int(tensor[first]), StridedPiece(start, int(at[first]), size, rows, step, pitch)))
        if len(found) > MAX_PIECES:
            raise ValueError("the loader permutes units one by one")
        first = last + 1
    return found


def intersect(piece: StridedPiece, start: int, count: int, positions: NDArray[np.uint32] | None) -> Iterator[BlockPart]:
    """Yields the part of a block that lies in a piece of its tensor: at most one.

    The block is units [start, start + count), at rising offsets `positions` (None: all).
    """
    low, high = max(start, piece.start), min(start + count, piece.end)
    if low >= high:
        return
    if piece.rows > 1:
        yield from _intersect_strided(piece, start, low, high, positions)
        return
    at = piece.at + low - piece.start
    if positions is None:
        yield BlockPart(at, high - low, None, slice(low - start, high - start))
        return
    first, last = (int(k) for k in np.searchsorted(positions, [low - start, high - start]))
    if first < last:
        moved = positions[first:last] - np.uint32(low - start) if low > start else positions[first:last]
        yield BlockPart(at, high - low, moved, slice(first, last))


def tensor_rows(piece: StridedPiece, units: _Array) -> _Array:
    """Returns the piece's entries of `units`, an array over its tensor's units: a view of shape (rows, length)."""
    return _strided_view(units, piece.start, piece.rows, piece.step, piece.length)


def live_rows(piece: StridedPiece, units: _Array) -> _Array:
    """Returns the piece's entries of `units`, an array over its parameter's units: a view of the same shape."""
    return _strided_view(units, piece.at, piece.rows, piece.pitch, piece.length)


def scaled(piece: StridedPiece, factor: int) -> StridedPiece:
    """Returns the piece in units that are narrower by a factor."""
    start, at, length, step, pitch = (
        factor * value for value in (piece.start, piece.at, piece.length, piece.step, piece.pitch)
    )
    return StridedPiece(start, at, length, piece.rows, step, pitch)


def iter_runs(piece: StridedPiece) -> Iterator[tuple[int, int]]:
    """Yields where each run of the piece begins, as (checkpoint unit, live unit)."""
    for k in range(piece.rows):
        yield piece.start + k * piece.step, piece.at + k * piece.pitch


def drop_overwritten(
    before: Sequence[tuple[int, StridedPiece]], after: Sequence[tuple[int, StridedPiece]]
) -> list[tuple[int, StridedPiece]]:
    """Returns the pieces of a parameter, as (tensor, piece), that remain after later ones were loaded over them.

    before, after: pieces in the order of loading. Raises `ValueError` where a piece was overwritten only in part.
    """
    covered = np.zeros(max(piece.at + piece.rows * piece.pitch for _, piece in (*before, *after)), np.bool_)
    for _, piece in after:
        live_rows(piece, covered)[:] = True
    found = []
    for tensor, piece in before:
        lost = int(np.count_nonzero(live_rows(piece, covered)))
        if 0 < lost < piece.units:
            raise ValueError("two tensors of the checkpoint are loaded to the same units in part")
        if not lost:
            found.append((tensor, piece))
    return [*found, *after]


def _strided_view(units: _Array, first: int, count: int, distance: int, length: int) -> _Array:
    if count == 1:
        return units[first : first + length].reshape(1, length)
    size = units.itemsize
    reach = first + (count - 1) * distance + length
    return as_strided(units[first:reach], (count, length), (distance * size, size), writeable=units.flags.writeable)


def count_missing(pieces: Sequence[StridedPiece], count: int) -> int:
    """Returns how many of a tensor's `count` units lie in none of the pieces."""
    if any(piece.units == count for piece in pieces):
        return 0
    covered = np.zeros(count, np.bool_)
    for piece in pieces:
        tensor_rows(piece, covered)[:] = True
    return count - int(np.count_nonzero(covered))


def _last_of_piece(
    at: NDArray[np.int64],
    number: NDArray[np.int64],
    length: NDArray[np.int64],
    tensor: NDArray[np.int64],
    first: int,
) -> int:
    """Returns the last run of the piece that begins with run `first`."""
    window = 64
    while True:
        end = min(at.size, first + window)
        alike = (length[first:end] == length[first]) & (tensor[first:end] == tensor[first])
        if end - first > 1:
            step, pitch = number[first + 1] - number[first], at[first + 1] - at[first]
            if step < length[first]:
                return first
            alike[1:] &= (np.diff(number[first:end]) == step) & (np.diff(at[first:end]) == pitch)
        stop = int(np.argmin(alike)) if not alike.all() else end - first
        if stop < end - first or end == at.size:
            return first + stop - 1
        window *= 8


def _intersect_strided(
    piece: StridedPiece, start: int, low: int, high: int, positions: NDArray[np.uint32] | None
) -> Iterator[BlockPart]:
    if positions is None:
        first, where = low - start, np.arange(high - low, dtype=np.uint32)
    else:
        first, last = (int(k) for k in np.searchsorted(positions, [low - start, high - start]))
        where = positions[first:last]
    offset = (low if positions is None else start) - piece.start
    live = np.empty(where.size, np.int64)
    entries = np.empty(where.size, np.int64)
    found = _follow(plain(where), offset, piece.length, piece.rows, piece.step, piece.pitch, live, entries)
    if not found:
        return
    live, entries = live[:found], entries[:found] + first
    begin, span = int(live[0]), int(live[-1] - live[0]) + 1
    yield BlockPart(piece.at + begin, span, (live - begin).astype(np.uint32), entries.copy())


@kernel
def _follow(
    where: NDArray[np.uint32],
    offset: int,
    length: int,
    rows: int,
    step: int,
    pitch: int,
    live: NDArray[np.int64],
    entries: NDArray[np.int64],
) -> int:
    """Writes the live offsets of those units of `where` that lie in the piece; returns how many there are."""
    found = 0
    row = 0
    for k in range(where.size):
        at = int(where[k]) + offset
        if at < 0:
            continue
        if at >= (row + 1) * step:
            row = at // step
            if row >= rows:
                break
        column = at - row * step
        if column < length:
            live[found] = row * pitch + column
            entries[found] = k
            found += 1
    return found


@kernel
def _fill_digits(first: int, shift: int, flip: int, out: Units) -> None:
    for k in range(out.size):
        out[k] = out.dtype.type(np.uint64((first + k) >> shift) ^ np.uint64(flip))


@kernel
def _find_runs(
    lowest: Units,
    inverted: Units,
    higher: Units,
    at: NDArray[np.int64],
    number: NDArray[np.int64],
    length: NDArray[np.int64],
) -> int:
    """Returns the number of runs, and writes as many as the arrays hold; −1 if a unit was computed."""
    bits = 8 * lowest.itemsize
    full = ~np.uint64(0) >> np.uint64(64 - bits)
    found = 0
    following = np.int64(-1)
    for k in range(lowest.size):
        low = np.uint64(lowest[k])
        apart = low ^ np.uint64(inverted[k])
        if apart == 0:
            following = np.int64(-1)
            continue
        if apart != full:
            return -1
        here = np.int64(low)
        for digit in range(higher.shape[0]):
            here |= np.int64(np.uint64(higher[digit, k]) << np.uint64(bits * (digit + 1)))
        if here != following:
            if found < at.size:
                at[found], number[found], length[found] = k, here, 0
            found += 1
        if found <= at.size:
            length[found - 1] += 1
        following = here + 1
    return found
