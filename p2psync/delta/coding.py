"""The compiled loops of the `fast` profile: gaps, steps and byte planes, to bytes and back.

The reading loops take what a peer may have forged: each is told how much it may read and write, and answers with a
negative number where the bytes are not what they claim to be. None of them allocates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels import bits_of, kernel
from p2psync.delta.tensors import Units

Bytes = NDArray[np.uint8]

#: The gap byte that says: add this many, and go on.
ESCAPE = 255
#: Step codes, two bits each: −1, +1, the next byte of `small`, the next unit of `wide`.
SMALL, WIDE = 2, 3
#: Zigzag values from 3 to this fit the `small` stream.
LAST_SMALL = 258

#: How the units of a plane-coded block are turned before they are cut into bytes.
ZIGZAG, ROTATED, NEGATED = 0, 1, 2

_ONE = np.uint64(1)


@kernel
def write_gaps(positions: NDArray[np.uint32], out: Bytes) -> int:
    """Code rising positions as gaps; returns bytes written, at most `positions.size + positions[-1] // 255`."""
    at = 0
    previous = np.int64(-1)
    for j in range(positions.size):
        gap = np.int64(positions[j]) - previous - 1
        previous = np.int64(positions[j])
        while gap >= ESCAPE:
            out[at] = ESCAPE
            at += 1
            gap -= ESCAPE
        out[at] = gap
        at += 1
    return at


@kernel
def read_gaps(
    data: Bytes, sizes: NDArray[np.int64], spans: NDArray[np.int64], out: NDArray[np.uint32]
) -> int:
    """Read `sizes[b]` positions below `spans[b]` for each block b; −1 if bytes run out or are left over, −2 if a
    position is outside its block. `out` must hold `sum(sizes) + 1` entries."""
    at = 0
    filled = 0
    for b in range(sizes.size):
        end = filled + sizes[b]
        position = np.int64(-1)
        while filled < end:
            # As many bytes as positions are wanted can be read without passing the end of either.
            turn = min(end - filled, data.size - at)
            if turn <= 0:
                return -1
            for k in range(at, at + turn):
                byte = np.int64(data[k])
                final = np.int64(byte != ESCAPE)
                position += byte + final
                out[filled] = np.uint32(position)
                filled += final
            at += turn
            if position >= spans[b]:
                return -2
    return 0 if at == data.size else -1


@kernel
def write_steps(steps: Units, codes: Bytes, small: Bytes, wide: Units) -> Any:
    """Code non-zero steps; returns how many bytes of `small` and units of `wide` were written.

    `codes` takes four steps a byte, the first in the low bits; `small` and `wide` must hold `steps.size + 1`.
    """
    top = bits_of(steps) - _ONE
    smalls = 0
    wides = 0
    for first in range(0, steps.size, 4):
        packed = np.uint64(0)
        for k in range(min(4, steps.size - first)):
            step = steps[first + k]
            value = np.uint64(steps.dtype.type(_zigzag(np.uint64(step), top)))
            code = np.uint64(value == np.uint64(2))
            if value > np.uint64(2):
                if value <= np.uint64(LAST_SMALL):
                    code = np.uint64(SMALL)
                    small[smalls] = value - np.uint64(3)
                    smalls += 1
                else:
                    code = np.uint64(WIDE)
                    wide[wides] = step
                    wides += 1
            packed |= code << np.uint64(2 * k)
        codes[first >> 2] = packed
    return smalls, wides


@kernel
def read_steps(codes: Bytes, small: Bytes, wide: Bytes, sizes: NDArray[np.int64], out: Units) -> Any:
    """Read `sizes[b]` steps for each block b; returns the bytes used of `small` and `wide`, or (−1, −1).

    The caller has checked that `codes` holds (sizes[b] + 3) // 4 bytes for each block.
    """
    top = bits_of(out) - _ONE
    width = np.int64(bits_of(out)) >> 3
    filled = 0
    smalls = 0
    wides = 0
    line = 0
    for b in range(sizes.size):
        size = sizes[b]
        for k in range(size):
            code = (codes[line + (k >> 2)] >> np.uint8(2 * (k & 3))) & np.uint8(3)
            if code < SMALL:
                out[filled + k] = np.uint64(1) if code else ~np.uint64(0)
            elif code == SMALL:
                if smalls >= small.size:
                    return -1, -1
                value = np.uint64(small[smalls]) + np.uint64(3)
                smalls += 1
                out[filled + k] = _unzigzag(value)
                if (value >> top) >> _ONE:
                    return -1, -1
            else:
                if wides + width > wide.size:
                    return -1, -1
                value = np.uint64(0)
                for i in range(width):
                    value |= np.uint64(wide[wides + i]) << np.uint64(8 * i)
                wides += width
                if value == np.uint64(0):
                    return -1, -1
                out[filled + k] = value
        filled += size
        line += (size + 3) >> 2
    return smalls, wides


@kernel
def write_planes(values: Units, turn: int, out: NDArray[np.uint8]) -> None:
    """Cut turned units into byte planes: `out[p]` holds byte p of each, the most significant first."""
    top = bits_of(values) - _ONE
    width = np.int64(bits_of(values)) >> 3
    for p in range(width):
        shift = np.uint64(8 * (width - 1 - p))
        for j in range(values.size):
            value = np.uint64(values[j])
            if turn == ZIGZAG:
                value = _zigzag(value, top)
            else:
                if turn == NEGATED:
                    value = np.uint64(values.dtype.type(~value + _ONE))
                value = (value << _ONE) | (value >> top)
            out[p, j] = value >> shift


@kernel
def read_planes(planes: NDArray[np.uint8], turn: int, out: Units) -> None:
    """The inverse of `write_planes`."""
    top = bits_of(out) - _ONE
    width = np.int64(bits_of(out)) >> 3
    for j in range(out.size):
        value = np.uint64(0)
        for p in range(width):
            value = (value << np.uint64(8)) | np.uint64(planes[p, j])
        if turn == ZIGZAG:
            out[j] = _unzigzag(value)
        else:
            value = (value >> _ONE) | (value << top)
            out[j] = ~value + _ONE if turn == NEGATED else value


@kernel
def _zigzag(step: Any, top: Any) -> Any:
    """0, −1, +1, −2, … → 0, 1, 2, 3, … of a unit whose sign is bit `top`; bits above the unit are rubbish."""
    return (step << _ONE) ^ (~(step >> top) + _ONE)


@kernel
def _unzigzag(value: Any) -> Any:
    """The inverse of `_zigzag`; bits above the unit are rubbish."""
    return (value >> _ONE) ^ (~(value & _ONE) + _ONE)
