"""The tables and headers in front of the symbols of a `tight` chunk.

Tables: the classes, and the symbols of each class.

    1 byte    the first scale of the window
    8 bytes   the classes of its 16 scales, four bits each, the first in the low bits
    then, for each class from 0 to the highest of those:
    1 byte    its shift
    1 byte    number of buckets up to the last with a level, then for each kind and each of these buckets its level less
              that of the bucket before it, mod 256
    1 byte    number of extra symbols up to the last with a level, then the level of each

A level stands for a symbol's frequency (`ans`). Gaps are nearly geometric, so levels fall evenly from bucket to bucket,
and the bytes of their differences repeat.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels.simd import MAX_CLASSES, WINDOW
from p2psync.delta.kernels.unit_loops import kernel, plain
from p2psync.delta.tensors import ByteArray
from p2psync.delta.tight import ans, symbols
from p2psync.delta.tight.ans import MAX_LEVEL, STATES
from p2psync.delta.tight.class_choice import IntArray
from p2psync.delta.tight.symbols import BUCKETS, EXTRAS, KINDS, MAX_SHIFT, SYMBOLS
from p2psync.errors import FormatError

#: The width of a bucket is at most this share of the mean gap, and more than half of this share.
_BUCKET_SHARE = 0.36
#: For `symbols.read_symbols`: shifts, whether symbols include signs, tables, extra tables.
DecodeTables = tuple[NDArray[np.uint8], bool, NDArray[np.uint64], NDArray[np.uint64]]
#: Buffers for the tables and extra tables of `symbols.read_symbols`.
DecodeTableBuffers = tuple[NDArray[np.uint64], NDArray[np.uint64]]
#: For `symbols.write_symbols`: shifts, whether symbols include signs, codebook and next states of symbols and of extra
#: symbols.
EncodeTables = tuple[
    NDArray[np.uint8], bool, NDArray[np.uint64], NDArray[np.uint16], NDArray[np.uint64], NDArray[np.uint16]
]


@dataclass(frozen=True, slots=True, eq=False)
class SymbolTables:
    """The classes and symbol frequencies of one chunk.

    window: u8 (17), see `class_choice.best_window`. shifts: u8 (classes). levels: u8 (classes, SYMBOLS). extra_levels:
    u8 (classes, EXTRAS). frequencies, extra_frequencies: i64 of the same shapes, computed from the levels.
    """

    window: NDArray[np.uint8]
    shifts: NDArray[np.uint8]
    levels: NDArray[np.uint8]
    extra_levels: NDArray[np.uint8]
    frequencies: NDArray[np.int64]
    extra_frequencies: NDArray[np.int64]

    @classmethod
    def choose(
        cls, window: NDArray[np.uint8], totals: IntArray, sizes: IntArray, items: NDArray[np.uint64], signs: bool
    ) -> SymbolTables:
        """Choose the tables for some blocks, and prepare their items for `symbols.write_symbols`.

        totals: units of each class. sizes: i64 (blocks, classes), changes of each block. items: u64 (8, capacity), the
        changes of each class. signs: whether symbols include signs.
        """
        classes = totals.size
        # Over many blocks the mean gap of a class may be larger than any block, and so than any gap.
        gaps = np.clip(_BUCKET_SHARE * totals / np.maximum(sizes.sum(axis=0), 1), 1, 1 << MAX_SHIFT)
        shifts = np.log2(gaps).astype(np.uint8)
        levels, extra_levels = np.empty((classes, SYMBOLS), np.uint8), np.empty((classes, EXTRAS), np.uint8)
        frequencies = np.empty(levels.shape, np.int64), np.empty(extra_levels.shape, np.int64)
        _choose(sizes, items, shifts, signs, levels, extra_levels, *frequencies)
        return cls(window, shifts, levels, extra_levels, *frequencies)

    def to_bytes(self) -> bytes:
        """Encode the tables."""
        out = np.empty(self.window.size + self.shifts.size * (SYMBOLS + EXTRAS + 3), np.uint8)
        return out[: _pack(self.window, self.shifts, self.levels, self.extra_levels, out)].tobytes()

    @classmethod
    def from_bytes(cls, data: ByteArray) -> SymbolTables:
        """Decode tables. Raises `FormatError`."""
        window = np.empty(1 + WINDOW, np.uint8)
        shifts = np.empty(MAX_CLASSES, np.uint8)
        levels, extras = np.zeros((MAX_CLASSES, SYMBOLS), np.uint8), np.zeros((MAX_CLASSES, EXTRAS), np.uint8)
        frequencies, others = np.empty(levels.shape, np.int64), np.empty(extras.shape, np.int64)
        classes = _parse(plain(data), window, shifts, levels, extras, frequencies, others)
        if classes < 0:
            raise FormatError(f"a chunk's tables {_TABLE_ERRORS[~classes]}")
        used = slice(classes)
        return cls(window, shifts[used], levels[used], extras[used], frequencies[used], others[used])

    def decode_tables(self, signs: bool, buffers: DecodeTableBuffers | None = None) -> DecodeTables:
        """The tables that `symbols.read_symbols` takes.

        buffers: written to; not in use elsewhere. Raises `FormatError` if `signs` is False and an extra symbol has a
        sign.
        """
        if not signs and self.extra_levels[:, 2::2].any():
            raise FormatError("a chunk's tables have signs, which must be coded apart")
        tables, extra_tables = decode_table_buffers() if buffers is None else buffers
        _fill_decode_tables(self.shifts, signs, self.frequencies, self.extra_frequencies, tables, extra_tables)
        return self.shifts, signs, tables, extra_tables

    def encode_tables(self, signs: bool) -> EncodeTables:
        """The tables that `symbols.write_symbols` takes."""
        own, extra = _encode_table_buffers(self.frequencies), _encode_table_buffers(self.extra_frequencies)
        _fill_encode_tables(self.frequencies, self.extra_frequencies, *own, *extra)
        return self.shifts, signs, *own, *extra


def _encode_table_buffers(frequencies: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
    return np.empty(frequencies.shape, np.uint64), np.empty((len(frequencies), STATES), np.uint16)


@kernel
def _choose(
    sizes: IntArray,
    items: NDArray[np.uint64],
    shifts: NDArray[np.uint8],
    signs: bool,
    levels: NDArray[np.uint8],
    extra_levels: NDArray[np.uint8],
    frequencies: NDArray[np.int64],
    extra_frequencies: NDArray[np.int64],
) -> None:
    """Count the symbols of changes, put them into the items, and choose levels and frequencies.

    One compiled call, since the interpreter would find none of its data in the caches; see `change_finder` on loops of
    other files.
    """
    counts, extras = np.zeros(levels.shape, np.int64), np.zeros(extra_levels.shape, np.int64)
    symbols.count_symbols(sizes, items, shifts, signs, counts, extras)
    ans.choose_level_rows(counts, levels)
    ans.choose_level_rows(extras, extra_levels)
    # The result needs no check: the most frequent symbol always has a weight.
    ans.frequency_rows(levels, frequencies)
    ans.frequency_rows(extra_levels, extra_frequencies)


@kernel
def _fill_encode_tables(
    frequencies: NDArray[np.int64],
    extra_frequencies: NDArray[np.int64],
    codebook: NDArray[np.uint64],
    next_states: NDArray[np.uint16],
    extra_codebook: NDArray[np.uint64],
    extra_next_states: NDArray[np.uint16],
) -> None:
    """Fill the encode tables of symbols and of extra symbols."""
    ans.fill_encode_tables(frequencies, codebook, next_states)
    ans.fill_encode_tables(extra_frequencies, extra_codebook, extra_next_states)


@kernel
def _pack(
    window: NDArray[np.uint8],
    shifts: NDArray[np.uint8],
    levels: NDArray[np.uint8],
    extras: NDArray[np.uint8],
    out: NDArray[np.uint8],
) -> int:
    """Write the tables; returns the number of bytes."""
    out[0] = window[0]
    for k in range(WINDOW // 2):
        out[1 + k] = window[1 + 2 * k] | window[2 + 2 * k] << 4
    at = 1 + WINDOW // 2
    for c in range(shifts.size):
        used = 0
        for symbol in range(SYMBOLS):
            if levels[c, symbol]:
                used = max(used, symbol % BUCKETS + 1)
        out[at], out[at + 1] = shifts[c], used
        at += 2
        for kind in range(KINDS):
            before = 0
            for symbol in range(BUCKETS * kind, BUCKETS * kind + used):
                out[at] = levels[c, symbol] - before
                before = levels[c, symbol]
                at += 1
        most = 0
        for extra in range(EXTRAS):
            if extras[c, extra]:
                most = extra + 1
        out[at] = most
        for k in range(most):  # not an array's assignment, as in `change_finder`
            out[at + 1 + k] = extras[c, k]
        at += 1 + most
    return at


def write_tight_headers(block_keys: IntArray, sizes: IntArray, ends: IntArray) -> bytes:
    """Encode the headers of tight blocks.

    block_keys: i64 (blocks, 2), row and index on the grid. sizes: i64 (blocks, classes), changes of each class. ends:
    i64 (blocks), end of each block's symbol bytes.
    """
    headers = np.empty((len(block_keys), 3 + sizes.shape[1]), np.int64)
    _subtract_previous(block_keys, sizes, ends, headers)
    data = np.empty(5 * headers.size, np.uint8)
    return data[: _write_varints(headers.ravel(), data)].tobytes()


@kernel
def _subtract_previous(block_keys: IntArray, sizes: IntArray, ends: IntArray, headers: IntArray) -> None:
    """Set each block's header values: the differences to the previous block."""
    for k in range(len(headers)):
        first = k == 0
        row = 0 if first else block_keys[k - 1, 0]
        headers[k, 0] = block_keys[k, 0] - row
        index = -1 if first else block_keys[k - 1, 1]
        headers[k, 1] = block_keys[k, 1] - (index + 1 if block_keys[k, 0] == row else 0)
        for c in range(sizes.shape[1]):
            change = sizes[k, c] - (0 if first else sizes[k - 1, c])
            headers[k, 2 + c] = 2 * change if change >= 0 else -2 * change - 1
        headers[k, 2 + sizes.shape[1]] = ends[k] - (0 if first else ends[k - 1])


def decode_table_buffers() -> DecodeTableBuffers:
    """New buffers for `SymbolTables.decode_tables`."""
    return np.empty((MAX_CLASSES, STATES), np.uint64), np.empty((MAX_CLASSES, STATES), np.uint64)


#: The errors of `_parse`, as the rest of a sentence about a chunk's tables.
_TABLE_ERRORS = (
    "are cut off",
    f"have more than {MAX_CLASSES} classes",
    "have a class of too many buckets",
    "have too many extra symbols",
    "have a level that is too high, or bytes after them",
    "have symbols of no weight",
)


@kernel
def _parse(
    data: NDArray[np.uint8],
    window: NDArray[np.uint8],
    shifts: NDArray[np.uint8],
    levels: NDArray[np.uint8],
    extras: NDArray[np.uint8],
    frequencies: NDArray[np.int64],
    extra_frequencies: NDArray[np.int64],
) -> int:
    """Read tables into arrays for `MAX_CLASSES` classes; `levels` and `extras` must be zeros.

    Returns the number of classes, or the complement of an index in `_TABLE_ERRORS`, which is less than 0.
    """
    at = 1 + WINDOW // 2
    if data.size < at:
        return -1
    window[0], classes = data[0], 0
    for k in range(WINDOW):
        window[1 + k] = (data[1 + k // 2] >> (4 * (k & 1))) & 15
        classes = max(classes, int(window[1 + k]) + 1)
    if classes > MAX_CLASSES:
        return -2
    highest = 0
    for c in range(classes):
        if at + 2 > data.size:
            return -1
        shift, used = int(data[at]), int(data[at + 1])
        if shift > MAX_SHIFT or used > BUCKETS:
            return -3
        shifts[c] = shift
        at += 2
        if at + KINDS * used + 1 > data.size:
            return -1
        for kind in range(KINDS):
            level = 0
            for bucket in range(used):
                level = (level + int(data[at])) & 255
                highest = max(highest, level)
                levels[c, kind * BUCKETS + bucket] = level
                at += 1
        extra = int(data[at])
        at += 1
        if extra > EXTRAS:
            return -4
        if at + extra > data.size:
            return -1
        for b in range(extra):
            highest = max(highest, int(data[at + b]))
            extras[c, b] = data[at + b]
        at += extra
    if at != data.size or highest > MAX_LEVEL:
        return -5
    for c in range(classes):
        if not (ans.frequencies_of(levels[c], frequencies[c]) and ans.frequencies_of(extras[c], extra_frequencies[c])):
            return -6
    return classes


@kernel
def _fill_decode_tables(
    shifts: NDArray[np.uint8],
    signs: bool,
    frequencies: NDArray[np.int64],
    extra_frequencies: NDArray[np.int64],
    tables: NDArray[np.uint64],
    extra_tables: NDArray[np.uint64],
) -> None:
    symbol_templates, extra_templates = np.empty(SYMBOLS, np.uint64), np.empty(EXTRAS, np.uint64)
    symbols.extra_templates(extra_templates)
    for c in range(shifts.size):
        symbols.symbol_templates(int(shifts[c]), signs, symbol_templates)
        ans.fill_decode_table(frequencies[c], symbol_templates, tables[c])
        ans.fill_decode_table(extra_frequencies[c], extra_templates, extra_tables[c])


def read_tight_headers(
    data: ByteArray, classes: int, most: int, max_changed: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Decode the headers of at most `most` tight blocks with at most `max_changed` changes.

    Returns, as i64: (blocks, 3), row difference, index or its difference, and symbol bytes, as they are coded; (blocks
    + 1, classes), changes of each class, and zeros; (blocks), changes of each block. Raises `FormatError`.
    """
    width = 3 + classes
    values = np.empty(min(data.size, most * width + 1), np.int64)
    found = _read_varints(plain(data), values)
    if found > most * width:
        raise FormatError(f"a chunk has more than {most} tight blocks")
    if found < 0 or found % width:
        raise FormatError("a chunk's block headers are cut off or have a number that is not in its shortest form")
    blocks = found // width
    coded, changed = np.empty((blocks, 3), np.int64), np.empty(blocks, np.int64)
    sizes = np.empty((blocks + 1, classes), np.int64)
    if not _sum_headers(values, coded, sizes, changed, max_changed):
        raise FormatError("a chunk has a block of more or fewer changes than it can have")
    return coded, sizes, changed


@kernel
def _sum_headers(values: IntArray, coded: IntArray, sizes: IntArray, changed: IntArray, most: int) -> bool:
    """Sum up the coded changes; False if a class has less than 0, a block has none, or there are more than `most`."""
    blocks, classes = len(changed), sizes.shape[1]
    at, total = 0, 0
    for c in range(classes):
        sizes[blocks, c] = 0
    for k in range(blocks):
        coded[k, 0], coded[k, 1], coded[k, 2] = values[at], values[at + 1], values[at + 2 + classes]
        block_changes = 0
        for c in range(classes):
            value = values[at + 2 + c]
            size = (sizes[k - 1, c] if k else 0) + (-((value + 1) >> 1) if value & 1 else value >> 1)
            if size < 0:
                return False
            sizes[k, c] = size
            block_changes += size
        changed[k] = block_changes
        total += block_changes
        at += 3 + classes
        if block_changes < 1 or total > most:
            return False
    return True


@kernel
def _read_varints(data: NDArray[np.uint8], values: IntArray) -> int:
    """Decode varints into `values`; returns their number, one more if it is full too early, −1 if one is malformed."""
    count, value, size = 0, 0, 0
    for byte in data:
        value |= (int(byte) & 0x7F) << (7 * size)
        size += 1
        if byte < 0x80:
            if (byte == 0 and size > 1) or size > 5:
                return -1
            if count == values.size:
                return count + 1
            values[count] = value
            count, value, size = count + 1, 0, 0
        elif size > 4:
            return -1
    return -1 if size else count


@kernel
def _write_varints(values: IntArray, out: NDArray[np.uint8]) -> int:
    """Encode values below 2^35 as varints; returns the number of bytes."""
    at = 0
    for value in values:
        while value >= 0x80:
            out[at] = value & 0x7F | 0x80
            value >>= 7
            at += 1
        out[at] = value
        at += 1
    return at
