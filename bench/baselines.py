"""Published formats for the same delta, rebuilt from their descriptions: to bytes, and back to the new weights.

None of their code is used. Where a description leaves something open the choice that takes fewer bytes was made, and
tensors are named by number where nothing else is said. All of them are given the exact bits; the
floating-point differences of some are not copied.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numba
import numpy as np
import zstandard
from numpy.typing import NDArray

from p2psync.bench.deltas import Bits
from p2psync.delta.tensors import TableRow

Bytes = NDArray[np.uint8]
_HEAD = struct.Struct("<II")


class TensorChanges(NamedTuple):
    """Changes of one tensor: rising positions (int64), old and new bits there; and old and new bits of all of it."""

    row: int
    positions: NDArray[np.int64]
    old_bits: Bits
    new_bits: Bits
    old: Bits
    new: Bits


class Baseline(NamedTuple):
    """A format. `decode` gives back (row, positions, new bits), of tensors with changes only; `base` has the old bits
    of a row."""

    name: str
    title: str
    encode: Callable[[Sequence[TableRow], list[TensorChanges]], bytes]
    decode: Callable[[bytes, Sequence[TableRow], Callable[[int], Bits]], Iterator[tuple[int, NDArray[np.int64], Bits]]]


@dataclass(frozen=True)
class Size:
    """The bytes of a delta in one format, decoded again and compared."""

    payload: int
    changed: int

    @property
    def bits(self) -> float:
        """Per changed unit."""
        return 8 * self.payload / max(1, self.changed)


def find_changes(old_bits: Sequence[Bits], new_bits: Sequence[Bits]) -> list[TensorChanges]:
    """The changes of each changed tensor."""
    found = []
    for row, (old, new) in enumerate(zip(old_bits, new_bits, strict=True)):
        where = np.flatnonzero(old != new)
        if where.size:
            found.append(TensorChanges(row, where, old[where], new[where], old, new))
    return found


def measure_baseline(
    baseline: Baseline, rows: Sequence[TableRow], old_bits: Sequence[Bits], new_bits: Sequence[Bits]
) -> Size:
    """Encode, decode, compare every position and bit. Raises `AssertionError` if they differ."""
    changes = find_changes(old_bits, new_bits)
    data = baseline.encode(rows, changes)
    seen = 0
    for part, (row, positions, bits) in zip(
        changes, baseline.decode(data, rows, lambda row: old_bits[row]), strict=True
    ):
        if row != part.row or not np.array_equal(positions, part.positions) or not np.array_equal(bits, part.new_bits):
            raise AssertionError(f"{baseline.name} did not come back as it was")
        seen += positions.size
    return Size(len(data), seen)


def _int32_encode(rows: Sequence[TableRow], changes: list[TensorChanges]) -> bytes:
    out = []
    for part in changes:
        out += [
            _HEAD.pack(part.row, part.positions.size),
            part.positions.astype("<u4").tobytes(),
            part.new_bits.tobytes(),
        ]
    return b"".join(out)


def _int32_decode(data: bytes, rows: Sequence[TableRow], base: object) -> Iterator[tuple[int, NDArray[np.int64], Bits]]:
    reader = _Reader(data)
    while reader.left:
        row, count = reader.head()
        yield row, reader.take("<u4", count).astype(np.int64), reader.take("<u2", count)


def _leb_encode(rows: Sequence[TableRow], changes: list[TensorChanges]) -> bytes:
    out = []
    for part in changes:
        gaps = write_leb128(np.diff(part.positions, prepend=-1) - 1)
        out += [_HEAD.pack(part.row, part.positions.size), gaps.tobytes(), part.new_bits.tobytes()]
    return b"".join(out)


def _leb_decode(data: bytes, rows: Sequence[TableRow], base: object) -> Iterator[tuple[int, NDArray[np.int64], Bits]]:
    reader = _Reader(data)
    while reader.left:
        row, count = reader.head()
        gaps, used = read_leb128(reader.rest(), count)
        reader.skip(used)
        yield row, np.cumsum(gaps + 1) - 1, reader.take("<u2", count)


class _CooTensor(msgspec.Struct, frozen=True):
    """A line of the JSON header of `pulse`."""

    name: str
    shape: tuple[int, ...]
    num_nonzero: int
    value_dtype: str
    row_dtype: str
    col_dtype: str


def _coo_encode(rows: Sequence[TableRow], changes: list[TensorChanges]) -> bytes:
    header, body = [], []
    for part in changes:
        spec = rows[part.row].spec
        row, column = np.divmod(part.positions, _columns(spec.shape))
        down = np.diff(row, prepend=0)
        across = np.where(down != 0, column, np.diff(column, prepend=0))
        packed = [_narrow(down), _narrow(across)]
        header.append(
            _CooTensor(spec.name, spec.shape, column.size, "bfloat16", *(str(index.dtype) for index in packed))
        )
        body += [*(index.tobytes() for index in packed), part.new_bits.tobytes()]
    lines = msgspec.json.encode(header)
    return _zstd(b"".join((struct.pack("<I", len(lines)), lines, *body)))


def _coo_decode(data: bytes, rows: Sequence[TableRow], base: object) -> Iterator[tuple[int, NDArray[np.int64], Bits]]:
    numbers = {row.spec.name: number for number, row in enumerate(rows)}
    reader = _Reader(_unzstd(data))
    header = msgspec.json.decode(reader.take("u1", int(reader.take("<u4", 1)[0])).tobytes(), type=list[_CooTensor])
    for line in header:
        down = reader.take(line.row_dtype, line.num_nonzero).astype(np.int64)
        across = reader.take(line.col_dtype, line.num_nonzero).astype(np.int64)
        new_bits = reader.take("<u2", line.num_nonzero)
        starts = np.flatnonzero(down)
        column = np.cumsum(across)
        before = np.zeros_like(column)
        before[starts] = np.diff(column[starts] - across[starts], prepend=0)
        column -= np.cumsum(before)
        yield numbers[line.name], np.cumsum(down) * _columns(line.shape) + column, new_bits


def _columns(shape: Sequence[int]) -> int:
    """Rows and columns of a tensor taken as a matrix; a vector is one column."""
    return int(np.prod(shape[1:])) if len(shape) > 1 else 1


def _narrow(values: NDArray[np.int64], least: int = 1) -> NDArray[np.unsignedinteger]:
    """Returns the values in the narrowest unsigned integers of at least `least` bytes that hold them."""
    top = int(values.max(initial=0))
    width = next(w for w in (1, 2, 4, 8) if w >= least and top < 1 << (8 * w))
    return values.astype(np.dtype(f"<u{width}"))


def _xor16_encode(rows: Sequence[TableRow], changes: list[TensorChanges]) -> bytes:
    headers, gaps, xors = [], [], []
    for part in changes:
        packed = _narrow(np.diff(part.positions, prepend=-1) - 1, least=2)
        headers.append(struct.pack("<IIB", part.row, part.positions.size, packed.itemsize))
        gaps.append(packed.tobytes())
        xors.append((part.old_bits ^ part.new_bits).tobytes())
    return _zstd(b"".join((struct.pack("<I", len(headers)), *headers, *gaps, *xors)))


def _xor16_decode(
    data: bytes, rows: Sequence[TableRow], base: Callable[[int], Bits]
) -> Iterator[tuple[int, NDArray[np.int64], Bits]]:
    reader = _Reader(_unzstd(data))
    headers = [(*reader.head(), int(reader.take("u1", 1)[0])) for _ in range(int(reader.take("<u4", 1)[0]))]
    gaps = [reader.take(f"<u{width}", count).astype(np.int64) for _, count, width in headers]
    for (row, count, _), gap in zip(headers, gaps, strict=True):
        positions = np.cumsum(gap + 1) - 1
        yield row, positions, base(row)[positions] ^ reader.take("<u2", count)


def _xor8_encode(rows: Sequence[TableRow], changes: list[TensorChanges]) -> bytes:
    headers = b"".join(_HEAD.pack(part.row, part.positions.size) for part in changes)
    gaps = [write_bytes255(np.diff(part.positions, prepend=-1) - 1) for part in changes]
    xors = np.concatenate([part.old_bits ^ part.new_bits for part in changes] or [np.zeros(0, np.uint16)])
    low, high = (xors & 0xFF).astype(np.uint8), (xors >> 8).astype(np.uint8)
    parts = [_zstd(part) for part in (headers, np.concatenate(gaps or [low]).tobytes(), low.tobytes(), high.tobytes())]
    return b"".join((struct.pack("<IIII", *map(len, parts)), *parts))


def _xor8_decode(
    data: bytes, rows: Sequence[TableRow], base: Callable[[int], Bits]
) -> Iterator[tuple[int, NDArray[np.int64], Bits]]:
    outer = _Reader(data)
    sizes = outer.take("<u4", 4)
    headers, gaps, low, high = (_Reader(_unzstd(outer.take("u1", int(size)).tobytes())) for size in sizes)
    while headers.left:
        row, count = headers.head()
        gap, used = read_bytes255(gaps.rest(), count)
        gaps.skip(used)
        positions = np.cumsum(gap + 1) - 1
        xors = np.stack([low.take("u1", count), high.take("u1", count)], axis=1).view("<u2")[:, 0]
        yield row, positions, base(row)[positions] ^ xors


def _dense_encode(rows: Sequence[TableRow], changes: list[TensorChanges]) -> bytes:
    out = []
    for part in changes:
        data = _zstd((part.old ^ part.new).tobytes())
        out += [_HEAD.pack(part.row, len(data)), data]
    return b"".join(out)


def _dense_decode(
    data: bytes, rows: Sequence[TableRow], base: Callable[[int], Bits]
) -> Iterator[tuple[int, NDArray[np.int64], Bits]]:
    reader = _Reader(data)
    while reader.left:
        row, size = reader.head()
        xors = np.frombuffer(_unzstd(reader.take("u1", size).tobytes()), "<u2")
        where = np.flatnonzero(xors)
        yield row, where, base(row)[where] ^ xors[where]


#: In the order in which tables show them.
BASELINES: tuple[Baseline, ...] = (
    Baseline("int32", "32-bit index, value (vLLM)", _int32_encode, _int32_decode),
    Baseline("dense", "dense XOR, zstd-1 (slime, Stitch, SGLang)", _dense_encode, _dense_decode),
    Baseline("sparrow", "LEB128 gaps, values (SparrowRL)", _leb_encode, _leb_decode),
    Baseline("pulse", "row and column gaps, values, zstd-1 (PULSE)", _coo_encode, _coo_decode),
    Baseline("nemo", "16-bit gaps, XOR, zstd-1 (NeMo-RL)", _xor16_encode, _xor16_decode),
    Baseline("xor", "byte gaps, XOR planes, zstd-1 (best of its kind)", _xor8_encode, _xor8_decode),
)


class _Reader:
    """Arrays one after another from bytes."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, dtype: str, count: int) -> NDArray[Any]:
        array = np.frombuffer(self._data, dtype, count, self._at)
        self._at += array.nbytes
        return array

    def head(self) -> tuple[int, int]:
        row, count = self.take("<u4", 2)
        return int(row), int(count)

    def rest(self) -> Bytes:
        return np.frombuffer(self._data, np.uint8, offset=self._at)

    def skip(self, count: int) -> None:
        self._at += count


def write_leb128(values: NDArray[np.int64]) -> Bytes:
    """Seven bits a byte, low bits first."""
    out = np.empty(5 * values.size, np.uint8)
    return out[: _write_leb128(values, out)].copy()


def read_leb128(data: Bytes, count: int) -> tuple[NDArray[np.int64], int]:
    """`count` numbers, and the bytes that they took."""
    out = np.empty(count, np.int64)
    return out, _read_leb128(data, out)


def write_bytes255(values: NDArray[np.int64]) -> Bytes:
    """A byte of 255 for each whole 255, then a byte for the rest."""
    out = np.empty(int((values // 255 + 1).sum()), np.uint8)
    _write_bytes255(values, out)
    return out


def read_bytes255(data: Bytes, count: int) -> tuple[NDArray[np.int64], int]:
    """`count` numbers, and the bytes that they took."""
    out = np.empty(count, np.int64)
    return out, _read_bytes255(data, out)


@numba.njit(nogil=True, cache=True)
def _write_leb128(values, out):  # type: ignore[no-untyped-def]
    at = 0
    for value in values:
        while value >= 0x80:
            out[at] = value & 0x7F | 0x80
            value >>= 7
            at += 1
        out[at] = value
        at += 1
    return at


@numba.njit(nogil=True, cache=True)
def _read_leb128(data, out):  # type: ignore[no-untyped-def]
    at = 0
    for i in range(out.size):
        value, shift = np.int64(0), 0
        while data[at] >= 0x80:
            value |= np.int64(data[at] & 0x7F) << shift
            shift += 7
            at += 1
        out[i] = value | np.int64(data[at]) << shift
        at += 1
    return at


@numba.njit(nogil=True, cache=True)
def _write_bytes255(values, out):  # type: ignore[no-untyped-def]
    at = 0
    for value in values:
        while value >= 255:
            out[at] = 255
            value -= 255
            at += 1
        out[at] = value
        at += 1


@numba.njit(nogil=True, cache=True)
def _read_bytes255(data, out):  # type: ignore[no-untyped-def]
    at = 0
    for i in range(out.size):
        value = np.int64(0)
        while data[at] == 255:
            value += 255
            at += 1
        out[i] = value + np.int64(data[at])
        at += 1
    return at


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)


def _unzstd(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)
