"""What stands before the symbols of a `tight` chunk: the classes, and the symbols of each.

    1 byte    the first scale of the window
    8 bytes   the classes of its 16 scales, four bits each, the first in the low bits
    then, for each class from 0 to the highest of those:
    1 byte    its shift
    1 byte    how many buckets have a level at all, then for each kind and each of these buckets its level less that of
              the bucket before it, mod 256
    1 byte    how many extra symbols have a level at all, then for each of these its level

A level tells how often a symbol occurs (`ans`). Levels fall at an even pace from bucket to bucket, as gaps are nearly
geometric, and so do the bytes of their differences repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psync.delta import ans, symbols
from p2psync.delta.ans import MAX_LEVEL, STATES
from p2psync.delta.classes import Counts
from p2psync.delta.kernels import kernel, plain
from p2psync.delta.lanes import MAX_CLASSES, WINDOW
from p2psync.delta.streams import Bytes
from p2psync.delta.symbols import BUCKETS, EXTRAS, KINDS, MAX_SHIFT, SYMBOLS
from p2psync.errors import FormatError

#: Gaps are cut into buckets that are at most this share of the mean gap, and more than half of it.
_BUCKET = 0.36
#: Shifts, whether there are signs, and for each class the tables of `symbols.read_symbols`.
Readers = tuple[NDArray[np.uint8], bool, NDArray[np.uint64], NDArray[np.uint64]]
#: Memory for the tables of `symbols.read_symbols`.
ReaderRoom = tuple[NDArray[np.uint64], NDArray[np.uint64]]
#: The same for `symbols.write_symbols`: books and states to follow, of symbols and of extra symbols.
Writers = tuple[NDArray[np.uint8], bool, NDArray[np.uint64], NDArray[np.uint16], NDArray[np.uint64], NDArray[np.uint16]]


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Classes and codes of one chunk.

    window: u8 (17). shifts: u8 (classes). levels: u8 (classes, SYMBOLS) and (classes, EXTRAS); the frequencies that
    follow from them: i64 of the same shapes.
    """

    window: NDArray[np.uint8]
    shifts: NDArray[np.uint8]
    levels: NDArray[np.uint8]
    extra_levels: NDArray[np.uint8]
    frequencies: NDArray[np.int64]
    extra_frequencies: NDArray[np.int64]

    @classmethod
    def choose(cls, window: NDArray[np.uint8], totals: Counts, sizes: Counts, items: NDArray[np.uint64]) -> Tables:
        """The tables that suit blocks best; totals: units of each class; sizes: changes, (blocks, classes).

        Items, the changes of all blocks, are left as `write_symbols` wants them.
        """
        classes = totals.size
        # Over many blocks the mean gap of a class may be larger than any block, and so than any gap.
        gaps = np.clip(_BUCKET * totals / np.maximum(sizes.sum(axis=0), 1), 1, 1 << MAX_SHIFT)
        shifts = np.log2(gaps).astype(np.uint8)
        counts, extras = np.zeros((classes, SYMBOLS), np.int64), np.zeros((classes, EXTRAS), np.int64)
        symbols.count_symbols(sizes, items, shifts, counts, extras)
        levels, extra_levels = np.zeros(counts.shape, np.uint8), np.zeros(extras.shape, np.uint8)
        for c in range(classes):
            ans.choose_levels(counts[c], levels[c])
            ans.choose_levels(extras[c], extra_levels[c])
        return cls.of(window, shifts, levels, extra_levels)

    @classmethod
    def of(
        cls,
        window: NDArray[np.uint8],
        shifts: NDArray[np.uint8],
        levels: NDArray[np.uint8],
        extra_levels: NDArray[np.uint8],
    ) -> Tables:
        """With the frequencies that follow from the levels. Raises `FormatError` where none do."""
        frequencies = np.zeros(levels.shape, np.int64), np.zeros(extra_levels.shape, np.int64)
        for both in zip((levels, extra_levels), frequencies, strict=True):
            for mine, theirs in zip(*both, strict=True):
                if not ans.share_states(mine, theirs):
                    raise FormatError("a chunk has symbols of no weight")
        return cls(window, shifts, levels, extra_levels, *frequencies)

    def to_bytes(self) -> bytes:
        """The wire form."""
        out = bytearray(self.window[:1].tobytes())
        out += (self.window[1::2] | self.window[2::2] << 4).astype(np.uint8).tobytes()
        for shift, levels, extras in zip(self.shifts, self.levels, self.extra_levels, strict=True):
            rows = levels.reshape(KINDS, BUCKETS)
            used, extra = _used(rows.any(axis=0)), _used(extras)
            rises = np.diff(rows[:, :used], axis=1, prepend=np.uint8(0))
            out += bytes((shift, used)) + rises.tobytes() + bytes((extra,)) + extras[:extra].tobytes()
        return bytes(out)

    @classmethod
    def from_bytes(cls, data: Bytes) -> Tables:
        """The inverse of `to_bytes`. Raises `FormatError`."""
        window = np.empty(1 + WINDOW, np.uint8)
        shifts = np.empty(MAX_CLASSES, np.uint8)
        levels, extras = np.zeros((MAX_CLASSES, SYMBOLS), np.uint8), np.zeros((MAX_CLASSES, EXTRAS), np.uint8)
        frequencies, others = np.empty(levels.shape, np.int64), np.empty(extras.shape, np.int64)
        classes = _parse(plain(data), window, shifts, levels, extras, frequencies, others)
        if classes < 0:
            raise FormatError(f"a chunk's tables {_WRONG[~classes]}")
        used = slice(classes)
        return cls(window, shifts[used], levels[used], extras[used], frequencies[used], others[used])

    def readers(self, signs: bool, room: ReaderRoom | None = None) -> Readers:
        """What the reading loop needs; room: memory for it, which must not be in use."""
        tables, extra_tables = reader_room() if room is None else room
        _fill_readers(self.shifts, signs, self.frequencies, self.extra_frequencies, tables, extra_tables)
        return self.shifts, signs, tables, extra_tables

    def writers(self, signs: bool) -> Writers:
        """What the writing loop needs."""
        return self.shifts, signs, *_writers(self.frequencies), *_writers(self.extra_frequencies)


def _writers(frequencies: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
    book, follow = np.zeros(frequencies.shape, np.uint64), np.zeros((len(frequencies), STATES), np.uint16)
    for c in range(len(frequencies)):
        ans.fill_writer(frequencies[c], book[c], follow[c])
    return book, follow


def write_heads(places: Sequence[tuple[int, int]], sizes: Counts, ends: Counts) -> bytes:
    """The heads of blocks at (row, index on the grid): changes of each class, (blocks, classes), and bytes' ends."""
    out = np.zeros((len(places), 3 + sizes.shape[1]), np.int64)
    place = np.array(places, np.int64)
    out[:, 0] = np.diff(place[:, 0], prepend=0)
    same = out[:, 0] == 0
    out[:, 1] = place[:, 1] - np.where(same, np.concatenate([[-1], place[:-1, 1]]) + 1, 0)
    change = np.diff(sizes, axis=0, prepend=0)
    out[:, 2:-1] = np.where(change >= 0, 2 * change, -2 * change - 1)
    out[:, -1] = np.diff(ends, prepend=0)
    data = np.empty(5 * out.size, np.uint8)
    return data[: _write_varints(out.ravel(), data)].tobytes()


def reader_room() -> ReaderRoom:
    """For `Tables.readers`."""
    return np.empty((MAX_CLASSES, STATES), np.uint64), np.empty((MAX_CLASSES, STATES), np.uint64)


#: What can be wrong with the bytes of tables.
_WRONG = (
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
    """Read tables into arrays for the most classes that there may be; `levels` and `extras` are zeros.

    Returns how many classes there are, or the complement of a place in `_WRONG`, which is less than 0.
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
        if not (ans.share_states(levels[c], frequencies[c]) and ans.share_states(extras[c], extra_frequencies[c])):
            return -6
    return classes


@kernel
def _fill_readers(
    shifts: NDArray[np.uint8],
    signs: bool,
    frequencies: NDArray[np.int64],
    extra_frequencies: NDArray[np.int64],
    tables: NDArray[np.uint64],
    extra_tables: NDArray[np.uint64],
) -> None:
    templates, extra_templates = np.empty(SYMBOLS, np.uint64), np.empty(EXTRAS, np.uint64)
    symbols.extra_templates(extra_templates)
    for c in range(shifts.size):
        symbols.templates(int(shifts[c]), signs, templates)
        ans.fill_reader(frequencies[c], templates, tables[c])
        ans.fill_reader(extra_frequencies[c], extra_templates, extra_tables[c])


def read_heads(data: Bytes, classes: int, most: int, most_changed: int) -> tuple[Counts, Counts, Counts]:
    """What `write_heads` wrote of `most` blocks and `most_changed` changes at most.

    Row steps, indices and bytes as the bytes tell them, (blocks, 3); changes of each class, (blocks + 1, classes), of
    which the last are zeros; changes of each block. Raises `FormatError`.
    """
    width = 3 + classes
    values = np.empty(min(data.size, most * width + 1), np.int64)
    found = _read_varints(plain(data), values)
    if found > most * width:
        raise FormatError(f"a chunk has more than {most} tight blocks")
    if found < 0 or found % width:
        raise FormatError("a chunk's heads are cut off or have a number that is not in its shortest form")
    blocks = found // width
    places, changed = np.empty((blocks, 3), np.int64), np.empty(blocks, np.int64)
    sizes = np.empty((blocks + 1, classes), np.int64)
    if not _sum_heads(values, places, sizes, changed, most_changed):
        raise FormatError("a chunk has a block of more or fewer changes than it can have")
    return places, sizes, changed


@kernel
def _sum_heads(values: Counts, places: Counts, sizes: Counts, changed: Counts, most: int) -> bool:
    """Sum up the changes that heads tell; False if some are less than 0, a block has none, or there are too many."""
    blocks, classes = len(changed), sizes.shape[1]
    at, total = 0, 0
    for c in range(classes):
        sizes[blocks, c] = 0
    for k in range(blocks):
        places[k, 0], places[k, 1], places[k, 2] = values[at], values[at + 1], values[at + 2 + classes]
        here = 0
        for c in range(classes):
            value = values[at + 2 + c]
            size = (sizes[k - 1, c] if k else 0) + (-((value + 1) >> 1) if value & 1 else value >> 1)
            if size < 0:
                return False
            sizes[k, c] = size
            here += size
        changed[k] = here
        total += here
        at += 3 + classes
        if here < 1 or total > most:
            return False
    return True


@kernel
def _read_varints(data: NDArray[np.uint8], values: Counts) -> int:
    """The varints that `data` is made of, until `values` is full; returns how many, or −1 where it is made of none."""
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
def _write_varints(values: Counts, out: NDArray[np.uint8]) -> int:
    """Varints of values below 2^35; returns how many bytes they take."""
    at = 0
    for value in values:
        while value >= 0x80:
            out[at] = value & 0x7F | 0x80
            value >>= 7
            at += 1
        out[at] = value
        at += 1
    return at


def _used(lengths: NDArray[np.uint8]) -> int:
    """How many entries there are up to the last that is not zero."""
    return int(np.flatnonzero(lengths)[-1]) + 1 if lengths.any() else 0
