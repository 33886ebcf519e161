"""The compiled loops of the `fast` profile: gaps, steps and byte planes, to bytes and back.

The reading loops take bytes that a peer may have forged: each knows how much it may read and write, and returns a
negative number for malformed bytes. None of them allocates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels.unit_loops import bits_of, kernel, trailing
from p2psync.delta.tensors import ByteArray, Units

#: The gap byte that adds this many and continues with the next byte.
ESCAPE = 255
#: The two-bit step codes besides 0 (−1) and 1 (+1): the next byte of `small`, the next unit of `wide`.
SMALL, WIDE = 2, 3
#: Zigzag values from 3 to this one fit a byte of the `small` stream.
LAST_SMALL = 258

#: The transforms of units before they are cut into byte planes.
ZIGZAG, ROTATED, NEGATED = 0, 1, 2

# Indices are unsigned throughout: numba lets signed ones count from the end, at the price of a test each.
_U = np.uint64
_ONE = _U(1)
_BEFORE = np.uint32(0xFFFFFFFF)
_ESCAPED = _U(0xAAAAAAAAAAAAAAAA)


@kernel
def write_gaps(positions: NDArray[np.uint32], out: ByteArray) -> int:
    """Code rising positions as gaps; returns the bytes written, at most `positions.size + positions[-1] // 255`.

    out: at least one byte more than that.
    """
    at = _U(0)
    previous = _BEFORE
    for j in range(_U(positions.size)):
        gap = np.uint32(positions[j] - previous - np.uint32(1))
        previous = positions[j]
        while gap >= np.uint32(2 * ESCAPE):
            out[at] = ESCAPE
            at += _U(1)
            gap = np.uint32(gap - np.uint32(ESCAPE))
        # One escape in thirteen at 1 % is a branch mispredicted: write it always, count it where it is due.
        long = np.uint32(gap >= np.uint32(ESCAPE))
        out[at] = ESCAPE
        at += _U(long)
        out[at] = gap - np.uint32(ESCAPE) * long
        at += _U(1)
    return int(at)


@kernel
def read_gaps(data: ByteArray, sizes: NDArray[np.int64], spans: NDArray[np.int64], out: NDArray[np.uint32]) -> int:
    """Read `sizes[b]` positions below `spans[b]` for each block b; returns 0.

    Returns −1 if bytes run out or are left over, −2 if a position is outside its block. out: `sum(sizes) + 1` entries.
    data: at most 2^24 bytes.
    """
    at = _U(0)
    filled = _U(0)
    for b in range(sizes.size):
        end = filled + _U(sizes[b])
        # Below 2^24 bytes a sum of gaps stays below 2^32, so that it cannot wrap into the block again.
        position = _BEFORE
        while filled < end:
            # As many bytes as positions are wanted can be read without passing the end of either.
            batch = min(end - filled, _U(data.size) - at)
            if batch == _U(0):
                return -1
            for k in range(at, at + batch):
                byte = np.uint32(data[k])
                final = np.uint32(byte != np.uint32(ESCAPE))
                position = np.uint32(position + byte + final)
                out[filled] = position
                filled += _U(final)
            at += batch
        if np.int64(position) >= spans[b]:
            return -2
    return 0 if at == _U(data.size) else -1


@kernel
def write_steps(steps: Units, codes: ByteArray, small: ByteArray, wide: Units, scratch: ByteArray) -> Any:
    """Code non-zero steps; returns how many bytes of `small` and units of `wide` were written.

    `codes` takes four steps a byte, the first in the low bits. Minimum sizes, n being the number of steps: `codes`
    8·⌈n/32⌉, `small` and `wide` n, `scratch` 32·⌈n/32⌉.
    """
    top = bits_of(steps) - _U(1)
    size = _U(steps.size)
    for j in range(size):
        value = _U(steps.dtype.type(_zigzag(_U(steps[j]), top)))
        scratch[j] = np.uint8(value != _U(1)) + np.uint8(value > _U(2)) + np.uint8(value > _U(LAST_SMALL))
    runs = (size + _U(31)) >> _U(5)
    for j in range(size, runs << _U(5)):
        scratch[j] = 0
    smalls = _U(0)
    wides = _U(0)
    for run in range(runs):
        word = _U(0)
        for q in range(_U(4)):
            word |= _squeeze(scratch, (run << _U(5)) + (q << _U(3))) << (_U(16) * q)
        for q in range(_U(8)):
            codes[(run << _U(3)) + q] = word >> (_U(8) * q)
        rest = word & _ESCAPED
        while rest != _U(0):
            bit = trailing(rest)
            rest &= rest - _U(1)
            step = steps[(run << _U(5)) + (bit >> _U(1))]
            if (word >> (bit - _U(1))) & _U(1):
                wide[wides] = step
                wides += _U(1)
            else:
                small[smalls] = _zigzag(_U(step), top) - _U(3)
                smalls += _U(1)
    return smalls, wides


@kernel
def read_steps(codes: ByteArray, small: ByteArray, wide: ByteArray, sizes: NDArray[np.int64], out: Units) -> Any:
    """Read `sizes[b]` steps for each block b; returns the bytes used of `small` and `wide`, or (−1, −1).

    The caller has checked that `codes` holds (sizes[b] + 3) // 4 bytes for each block.
    """
    top = bits_of(out) - _U(1)
    width = bits_of(out) >> _U(3)
    filled, line, smalls, wides, broken = _U(0), _U(0), _U(0), _U(0), _U(0)
    for b in range(sizes.size):
        end = filled + _U(sizes[b])
        while filled < end:
            take = min(end - filled, _U(32))
            word = _U(0)
            # Every code as if it were −1 or +1 first, then the escapes, of which there are few, over them.
            if take == _U(32):
                for q in range(_U(8)):
                    four = _U(codes[line + q])
                    word |= four << (_U(8) * q)
                    for r in range(_U(4)):
                        out[filled + (q << _U(2)) + r] = ((four >> (r + r)) & _U(1)) * _U(2) - _U(1)
            else:
                for q in range(take):
                    code = (_U(codes[line + (q >> _U(2))]) >> (_U(2) * (q & _U(3)))) & _U(3)
                    word |= code << (q + q)
                    out[filled + q] = (code & _U(1)) * _U(2) - _U(1)
            rest = word & _ESCAPED
            while rest != _U(0):
                bit = trailing(rest)
                rest &= rest - _U(1)
                at = filled + (bit >> _U(1))
                if (word >> (bit - _U(1))) & _U(1):
                    if wides + width > _U(wide.size):
                        return -1, -1
                    value = _U(0)
                    for i in range(width):
                        value |= _U(wide[wides + i]) << (_U(8) * i)
                    wides += width
                    broken |= _U(value == _U(0))
                    out[at] = value
                else:
                    if smalls >= _U(small.size):
                        return -1, -1
                    value = _U(small[smalls]) + _U(3)
                    smalls += _U(1)
                    broken |= (value >> top) >> _U(1)
                    out[at] = _unzigzag(value)
            filled += take
            line += (take + _U(3)) >> _U(2)
    if broken:
        return -1, -1
    return np.int64(smalls), np.int64(wides)


@kernel
def write_planes(values: Units, transform: int, out: NDArray[np.uint8]) -> None:
    """Transform units and cut them into byte planes: `out[p]` holds byte p of each, the most significant first."""
    top = bits_of(values) - _ONE
    width = np.int64(bits_of(values)) >> 3
    for p in range(width):
        shift = np.uint64(8 * (width - 1 - p))
        for j in range(values.size):
            value = np.uint64(values[j])
            if transform == ZIGZAG:
                value = _zigzag(value, top)
            else:
                if transform == NEGATED:
                    value = np.uint64(values.dtype.type(~value + _ONE))
                value = (value << _ONE) | (value >> top)
            out[p, j] = value >> shift


@kernel
def read_planes(planes: NDArray[np.uint8], transform: int, out: Units) -> None:
    """The inverse of `write_planes`."""
    top = bits_of(out) - _ONE
    width = np.int64(bits_of(out)) >> 3
    for j in range(out.size):
        value = np.uint64(0)
        for p in range(width):
            value = (value << np.uint64(8)) | np.uint64(planes[p, j])
        if transform == ZIGZAG:
            out[j] = _unzigzag(value)
        else:
            value = (value >> _ONE) | (value << top)
            out[j] = ~value + _ONE if transform == NEGATED else value


@kernel
def _zigzag(step: Any, top: Any) -> Any:
    """0, −1, +1, −2, … → 0, 1, 2, 3, … of a unit whose sign is bit `top`; bits above the unit are undefined."""
    return (step << _ONE) ^ (~(step >> top) + _ONE)


@kernel
def _unzigzag(value: Any) -> Any:
    """The inverse of `_zigzag`; bits above the unit are undefined."""
    return (value >> _ONE) ^ (~(value & _ONE) + _ONE)


@kernel
def _squeeze(codes: Any, at: Any) -> Any:
    """Eight codes, a byte each, as 16 bits."""
    word = _U(0)
    for r in range(_U(8)):
        word |= _U(codes[at + r]) << (_U(8) * r)
    word = (word | (word >> _U(6))) & _U(0x000F000F000F000F)
    word = (word | (word >> _U(12))) & _U(0x000000FF000000FF)
    return (word | (word >> _U(24))) & _U(0xFFFF)
