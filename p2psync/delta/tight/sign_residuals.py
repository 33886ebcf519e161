"""Sign residuals: signs of the steps of known units, predicted from the direction of each unit's last step.

Most steps continue in the last direction, or, after a large step, reverse it. So a chunk predicts one of both, and
codes only the *residuals*, the steps that break the prediction, as gaps between them in a Rice code (R. F. Rice 1979):

    1 byte   2 · parameter of the code + 1 if steps are predicted to continue in the last direction, else + 0
    varint   number of residuals
    then     the gaps
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.history import ChangeHistory, WordArray
from p2psync.delta.kernels.unit_loops import kernel
from p2psync.delta.streams import read_varint, varint
from p2psync.delta.tensors import ByteArray, Units
from p2psync.errors import FormatError

_U = np.uint64
_ONE = _U(1)
#: The highest parameter of the Rice code.
MAX_RICE = 20


class SignResidualWriter:
    """Collects the signs of changes, block after block."""

    def __init__(self) -> None:
        self._same: list[ByteArray] = []

    def add(self, history: ChangeHistory, start: int, positions: NDArray[np.uint32], steps: Units) -> None:
        """Add the steps (u16) of one block that begins at unit `start`, all of known units."""
        self._same.append(np.empty(steps.size, np.uint8))
        _compare(history.down, start, positions, steps, self._same[-1])

    def finish(self) -> bytes:
        """The coded signs of all steps."""
        same = np.concatenate(self._same) if self._same else np.empty(0, np.uint8)
        continues = int(2 * np.count_nonzero(same) >= same.size)
        gaps = np.diff(np.flatnonzero(same != continues), prepend=-1) - 1
        rice = _parameter(int(gaps.sum()), gaps.size)
        return bytes([2 * rice + continues]) + varint(gaps.size) + _rice_bytes(gaps, rice)


class SignResidualReader:
    """Gives the signs of changes, block after block."""

    def __init__(self, data: memoryview, changed: int) -> None:
        """data: the coded signs of `changed` steps, of all blocks together. Raises `FormatError`."""
        if not data:
            raise FormatError("a chunk has no signs")
        residuals, at = read_varint(data, 1)
        rice, self._continues = data[0] >> 1, data[0] & 1
        if rice > MAX_RICE or residuals > min(changed, 8 * (len(data) - at)):
            raise FormatError("a chunk has impossible sign residuals")
        self._residuals = np.full(residuals + 1, -1, np.int64)
        if not _read_rice(np.array(data[at:]), rice, changed, self._residuals[:-1]):
            raise FormatError("a chunk has broken signs")
        #: Steps applied, and residuals among them.
        self._at = np.zeros(2, np.int64)

    def apply(self, history: ChangeHistory, start: int, positions: NDArray[np.uint32], steps: Units) -> None:
        """Negate the positive steps of one block that begins at unit `start` wherever the sign is negative."""
        _apply(history.down, start, positions, self._continues, self._residuals, self._at, steps)


@kernel
def _compare(down: WordArray, start: int, positions: NDArray[np.uint32], steps: Units, same: ByteArray) -> None:
    """Write whether each step has the direction of its unit's last step."""
    for j in range(_U(positions.size)):
        unit = _U(start) + _U(positions[j])
        same[j] = _ONE ^ (down[unit >> _U(6)] >> (unit & _U(63)) ^ _U(steps[j]) >> _U(15)) & _ONE


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
        unit = _U(start) + _U(positions[j])
        residual = _U(residuals[next_one] == passed)
        next_one += np.int64(residual)
        passed += 1
        last = (down[unit >> _U(6)] >> (unit & _U(63))) & _ONE
        if last ^ residual ^ _U(1 - continues):
            steps[j] = _U(65536) - _U(steps[j])
    at[0], at[1] = passed, next_one


def _parameter(total: int, count: int) -> int:
    """The Rice parameter for `count` gaps that add up to `total`: the bits of about 0.69 of their mean."""
    mean = total / count if count else 0.0
    return min(MAX_RICE, max(0, int(np.ceil(np.log2(max(0.69 * mean, 1e-9))))))


def _rice_bytes(gaps: NDArray[np.int64], rice: int) -> bytes:
    out = np.zeros((int((gaps >> rice).sum()) + (rice + 1) * gaps.size + 7) // 8, np.uint8)
    _write_rice(gaps, rice, out)
    return out.tobytes()


@kernel
def _write_rice(gaps: NDArray[np.int64], rice: int, out: ByteArray) -> None:
    """Write each gap: its high part as ones, a zero, and its low bits, lowest first."""
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
    """Read the numbers of the steps that are residuals, all below `limit`; False if the code is broken or too long."""
    at, end, number = 0, 8 * data.size, -1
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
        number += (high << rice) + low + 1
        if number >= limit:
            return False
        residuals[found] = number
    return end - at < 8
