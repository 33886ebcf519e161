"""Signs of steps of units that changed before, told by the way they went last.

Most go the same way again, or, after a large step, back; so only the *surprises*, steps against what is usual, are
told, as gaps between them in a Rice code (R. F. Rice 1979):

    1 byte   2 · parameter of the code + whether going on in the last direction is the usual one
    varint   how many surprises there are
    then     the gaps
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.history import ByteArray, ChangeHistory, WordArray
from p2psync.delta.kernels.unit_loops import kernel
from p2psync.delta.streams import read_varint, varint
from p2psync.delta.tensors import Units
from p2psync.errors import FormatError

_U = np.uint64
_ONE = _U(1)
#: Highest parameter of the Rice code.
MAX_RICE = 20


class SignResidualWriter:
    """Collects the signs of changes, block after block."""

    def __init__(self) -> None:
        self._same: list[ByteArray] = []

    def add(self, history: ChangeHistory, start: int, positions: NDArray[np.uint32], steps: Units) -> None:
        """Take steps, u16, of one block that begins at unit `start`, all of units that changed before."""
        self._same.append(np.empty(steps.size, np.uint8))
        _compare(history.down, start, positions, steps, self._same[-1])

    def finish(self) -> bytes:
        """What tells all signs."""
        same = np.concatenate(self._same) if self._same else np.empty(0, np.uint8)
        continues = int(2 * np.count_nonzero(same) >= same.size)
        gaps = np.diff(np.flatnonzero(same != continues), prepend=-1) - 1
        rice = _parameter(int(gaps.sum()), gaps.size)
        return bytes([2 * rice + continues]) + varint(gaps.size) + _rice_bytes(gaps, rice)


class SignResidualReader:
    """Gives the signs of changes, block after block."""

    def __init__(self, data: memoryview, changed: int) -> None:
        """data: what tells the signs of `changed` steps, those of all blocks together. Raises `FormatError`."""
        if not data:
            raise FormatError("a chunk has no signs")
        residuals, at = read_varint(data, 1)
        rice, self._continues = data[0] >> 1, data[0] & 1
        if rice > MAX_RICE or residuals > min(changed, 8 * (len(data) - at)):
            raise FormatError("a chunk has signs that nothing could have")
        self._residuals = np.full(residuals + 1, -1, np.int64)
        if not _read_rice(np.array(data[at:]), rice, changed, self._residuals[:-1]):
            raise FormatError("a chunk has broken signs")
        #: Steps passed, and surprises among them.
        self._at = np.zeros(2, np.int64)

    def apply(self, history: ChangeHistory, start: int, positions: NDArray[np.uint32], steps: Units) -> None:
        """Negate the steps of one block that begins at unit `start`, which are all upwards, where they should be."""
        _apply(history.down, start, positions, self._continues, self._residuals, self._at, steps)


@kernel
def _compare(down: WordArray, start: int, positions: NDArray[np.uint32], steps: Units, same: ByteArray) -> None:
    """Whether each step goes the way that its unit went last."""
    for j in range(_U(positions.size)):
        place = _U(start) + _U(positions[j])
        same[j] = _ONE ^ (down[place >> _U(6)] >> (place & _U(63)) ^ _U(steps[j]) >> _U(15)) & _ONE


@kernel
def _apply(
    down: WordArray,
    start: int,
    positions: NDArray[np.uint32],
    continues: int,
    residuals: NDArray[np.int64],
    at: NDArray[np.int64],
    steps: Units,
) -> None:
    passed, next_one = at[0], at[1]
    for j in range(_U(positions.size)):
        place = _U(start) + _U(positions[j])
        residual = _U(residuals[next_one] == passed)
        next_one += np.int64(residual)
        passed += 1
        last = (down[place >> _U(6)] >> (place & _U(63))) & _ONE
        if last ^ residual ^ _U(1 - continues):
            steps[j] = _U(65536) - _U(steps[j])
    at[0], at[1] = passed, next_one


def _parameter(total: int, count: int) -> int:
    """The Rice parameter that suits `count` gaps which add up to `total`: bits of about 0.69 of the mean."""
    mean = total / count if count else 0.0
    return min(MAX_RICE, max(0, int(np.ceil(np.log2(max(0.69 * mean, 1e-9))))))


def _rice_bytes(gaps: NDArray[np.int64], rice: int) -> bytes:
    out = np.zeros((int((gaps >> rice).sum()) + (rice + 1) * gaps.size + 7) // 8, np.uint8)
    _write_rice(gaps, rice, out)
    return out.tobytes()


@kernel
def _write_rice(gaps: NDArray[np.int64], rice: int, out: ByteArray) -> None:
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
def _read_rice(data: ByteArray, rice: int, limit: int, residuals: NDArray[np.int64]) -> bool:
    """The places of the surprises, all below `limit`; False if the code is broken, or not as long as the data."""
    at, end, place = 0, 8 * data.size, -1
    for found in range(residuals.size):
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
        residuals[found] = place
    return end - at < 8
