"""Which way each unit changed last, and signs of steps told by it.

With Adam a weight drifts: most elements that changed before change the same way again, and some are thrown back. Who
went along the same deltas knows the last direction of each unit, so the sign of its next step costs less than a bit:
only the *surprises*, steps against what is usual, are told, as gaps between them in a Rice code (R. F. Rice 1979). The
sign of a unit without a history is one bit.

A history is counted from some version on and takes two bits a unit of a tensor of 16-bit units.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.block import Block
from p2psync.delta.kernels import kernel
from p2psync.delta.tensors import Units
from p2psync.errors import FormatError

_U = np.uint64
_ONE = _U(1)
Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
#: Highest parameter of the Rice code.
MAX_RICE = 20


class History:
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


class Signs(NamedTuple):
    """Signs of the steps of a chunk: bits of units without a history, and surprises among those with one.

    raw: a bit for each, lowest first, 1 for downwards. usual: 1 if a change in the last direction is usual, else 0.
    surprises: how many there are; gaps: the Rice code with parameter `rice` of the gaps between them.
    """

    raw: bytes
    usual: int
    rice: int
    surprises: int
    gaps: bytes


class SignWriter:
    """Collects the signs of a chunk's blocks, one after the other."""

    def __init__(self) -> None:
        self._raw: list[Bytes] = []
        self._same: list[Bytes] = []

    def add(self, history: History | None, start: int, positions: NDArray[np.uint32], steps: Units) -> None:
        """Take one block's steps; None for a tensor that has no history."""
        down = (steps >> 15).astype(np.uint8)
        if history is None:
            self._raw.append(down)
            return
        known, last = np.empty(positions.size, np.uint8), np.empty(positions.size, np.uint8)
        _look_up(history.known, history.down, start, positions, known, last)
        self._raw.append(down[known == 0])
        self._same.append((down == last)[known == 1].astype(np.uint8))

    def finish(self) -> Signs:
        """What says all signs."""
        raw = np.concatenate(self._raw) if self._raw else np.empty(0, np.uint8)
        same = np.concatenate(self._same) if self._same else np.empty(0, np.uint8)
        usual = int(2 * np.count_nonzero(same) >= same.size)
        gaps = np.diff(np.flatnonzero(same != usual), prepend=-1) - 1
        rice = _parameter(int(gaps.sum()), gaps.size)
        packed = np.packbits(raw, bitorder="little").tobytes()
        return Signs(packed, usual, rice, gaps.size, _rice_bytes(gaps, rice))


class SignReader:
    """Gives the signs of a chunk's blocks, one after the other."""

    def __init__(self, signs: Signs, changed: int) -> None:
        """changed: steps of all blocks together. Raises `FormatError`."""
        if signs.rice > MAX_RICE or signs.usual > 1 or signs.surprises > min(changed, 8 * len(signs.gaps)):
            raise FormatError("a chunk has signs that nothing could have")
        self._raw = np.frombuffer(signs.raw, np.uint8)
        self._usual = signs.usual
        places = np.full(signs.surprises + 1, -1, np.int64)
        if not _read_rice(np.frombuffer(signs.gaps, np.uint8), signs.rice, changed, places[:-1]):
            raise FormatError("a chunk has broken signs")
        self._places = places
        self._at = np.zeros(3, np.int64)

    def apply(self, history: History | None, start: int, positions: NDArray[np.uint32], steps: Units) -> None:
        """Negate the steps of one block, which are all upwards, where they should be. Raises `FormatError`."""
        empty = np.empty(0, np.uint64)
        known, down = (empty, empty) if history is None else (history.known, history.down)
        if not _apply(known, down, start, positions, self._raw, self._usual, self._places, self._at, steps):
            raise FormatError("a chunk has fewer signs than steps")

    def finish(self) -> None:
        """Raises `FormatError` if signs are left."""
        raw, _, surprises = self._at
        if self._raw.size != -(-int(raw) // 8) or self._places[surprises] != -1:
            raise FormatError("a chunk has more signs than steps")


@kernel
def _record(known: Words, down: Words, start: int, positions: NDArray[np.uint32], steps: Units) -> None:
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
def _look_up(
    known: Words, down: Words, start: int, positions: NDArray[np.uint32], is_known: Bytes, was_down: Bytes
) -> None:
    for j in range(_U(positions.size)):
        place = _U(start) + _U(positions[j])
        is_known[j] = (known[place >> _U(6)] >> (place & _U(63))) & _ONE
        was_down[j] = (down[place >> _U(6)] >> (place & _U(63))) & _ONE


@kernel
def _apply(
    known: Words,
    down: Words,
    start: int,
    positions: NDArray[np.uint32],
    raw: Bytes,
    usual: int,
    places: NDArray[np.int64],
    at: NDArray[np.int64],
    steps: Units,
) -> bool:
    """`at`: bits of `raw` used, units with a history passed, surprises used; moved on."""
    for j in range(_U(positions.size)):
        place = _U(start) + _U(positions[j])
        if known.size and (known[place >> _U(6)] >> (place & _U(63))) & _ONE:
            same = usual
            if places[at[2]] == at[1]:
                same = 1 - usual
                at[2] += 1
            at[1] += 1
            last = (down[place >> _U(6)] >> (place & _U(63))) & _ONE
            turn = last if same else _ONE - last
        else:
            if at[0] >= 8 * raw.size:
                return False
            turn = _U(raw[at[0] >> 3] >> (at[0] & 7)) & _ONE
            at[0] += 1
        if turn:
            steps[j] = _U(65536) - _U(steps[j])
    return True


def _parameter(total: int, count: int) -> int:
    """The Rice parameter that suits `count` gaps which add up to `total`: bits of about 0.69 of the mean."""
    mean = total / count if count else 0.0
    return min(MAX_RICE, max(0, int(np.ceil(np.log2(max(0.69 * mean, 1e-9))))))


def _rice_bytes(gaps: NDArray[np.int64], rice: int) -> bytes:
    out = np.zeros((int((gaps >> rice).sum()) + (rice + 1) * gaps.size + 7) // 8, np.uint8)
    _write_rice(gaps, rice, out)
    return out.tobytes()


@kernel
def _write_rice(gaps: NDArray[np.int64], rice: int, out: Bytes) -> None:
    """Of each gap the high part in ones, a zero, and the low bits, lowest first."""
    at = 0
    for gap in gaps:
        for _ in range(gap >> rice):
            out[at >> 3] |= np.uint8(1 << (at & 7))
            at += 1
        at += 1
        for k in range(rice):
            out[at >> 3] |= np.uint8(((gap >> k) & 1) << (at & 7))
            at += 1


@kernel
def _read_rice(data: Bytes, rice: int, limit: int, places: NDArray[np.int64]) -> bool:
    """The places of the surprises, all below `limit`; False if the code is broken, or not as long as the data."""
    at, end, place = 0, 8 * data.size, -1
    for found in range(places.size):
        high = 0
        while at < end and (data[at >> 3] >> (at & 7)) & 1:
            high += 1
            at += 1
        at += 1
        if at + rice > end:
            return False
        low = 0
        for k in range(rice):
            low |= ((int(data[at >> 3]) >> (at & 7)) & 1) << k
            at += 1
        place += (high << rice) + low + 1
        if place >= limit:
            return False
        places[found] = place
    return end - at < 8
