"""What stands before the symbols of a `tight` chunk: the classes, and the codes of each.

    1 byte    the first scale of the window
    8 bytes   the classes of its 16 scales, four bits each, the first in the low bits
    then, for each class from 0 to the highest of those:
    1 byte    its shift
    1 byte    how many buckets have codes at all, then for each kind and each of these buckets the length of the code
    1 byte    how many extra symbols have codes at all, then for each of these the length of the code

A length of 0 says that the symbol does not occur.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psync.delta import symbols
from p2psync.delta.classes import Counts
from p2psync.delta.lanes import MAX_CLASSES, WINDOW
from p2psync.delta.streams import Bytes
from p2psync.delta.symbols import BUCKETS, CODE_BITS, EXTRA_BITS, EXTRAS, KINDS, MAX_SHIFT, SYMBOLS
from p2psync.errors import FormatError

#: Gaps are cut into buckets that are at most this share of the mean gap, and more than half of it.
_BUCKET = 0.36
#: Shifts, and for each class what each beginning of the bits stands for: symbols, and extra symbols.
Readers = tuple[NDArray[np.uint8], NDArray[np.uint32], NDArray[np.uint16]]


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Classes and codes of one chunk.

    window: u8 (17). shifts: u8 (classes). lengths: u8 (classes, SYMBOLS) and (classes, EXTRAS); the books that follow
    from them: u32 of the same shapes.
    """

    window: NDArray[np.uint8]
    shifts: NDArray[np.uint8]
    lengths: NDArray[np.uint8]
    extra_lengths: NDArray[np.uint8]
    book: NDArray[np.uint32]
    extra_book: NDArray[np.uint32]

    @classmethod
    def choose(cls, window: NDArray[np.uint8], shifts: NDArray[np.uint8], counts: Counts, extras: Counts) -> Tables:
        """The codes that suit best what was counted of each symbol, and extra symbol, of each class."""
        lengths, extra_lengths = np.zeros(counts.shape, np.uint8), np.zeros(extras.shape, np.uint8)
        for c in range(shifts.size):
            symbols.code_lengths(counts[c], CODE_BITS, lengths[c])
            symbols.code_lengths(extras[c], EXTRA_BITS, extra_lengths[c])
        return cls.of(window, shifts, lengths, extra_lengths)

    @classmethod
    def of(
        cls,
        window: NDArray[np.uint8],
        shifts: NDArray[np.uint8],
        lengths: NDArray[np.uint8],
        extra_lengths: NDArray[np.uint8],
    ) -> Tables:
        """With the codes that follow from the lengths. Raises `FormatError` where there are more than fit."""
        book, extra_book = np.zeros(lengths.shape, np.uint32), np.zeros(extra_lengths.shape, np.uint32)
        for c in range(shifts.size):
            if not (
                symbols.assign_codes(lengths[c], book[c]) and symbols.assign_codes(extra_lengths[c], extra_book[c])
            ):
                raise FormatError("a chunk has codes that overlap")
        return cls(window, shifts, lengths, extra_lengths, book, extra_book)

    def to_bytes(self) -> bytes:
        """The wire form."""
        out = bytearray(self.window[:1].tobytes())
        out += (self.window[1::2] | self.window[2::2] << 4).astype(np.uint8).tobytes()
        for shift, lengths, extras in zip(self.shifts, self.lengths, self.extra_lengths, strict=True):
            rows = lengths.reshape(KINDS, BUCKETS)
            used, extra = _used(rows.any(axis=0)), _used(extras)
            out += bytes((shift, used)) + rows[:, :used].tobytes() + bytes((extra,)) + extras[:extra].tobytes()
        return bytes(out)

    @classmethod
    def from_bytes(cls, data: Bytes) -> Tables:
        """The inverse of `to_bytes`. Raises `FormatError`."""
        half = WINDOW // 2
        packed = data[1 : 1 + half]
        if packed.size != half:
            raise FormatError("a chunk's tables are cut off")
        window = np.empty(1 + WINDOW, np.uint8)
        window[0], window[1::2], window[2::2] = data[0], packed & 15, packed >> 4
        classes = int(window[1:].max()) + 1
        if classes > MAX_CLASSES:
            raise FormatError(f"a chunk's tables have {classes} classes; at most {MAX_CLASSES} are possible")
        at = 1 + half
        shifts = np.empty(classes, np.uint8)
        lengths, extras = np.zeros((classes, SYMBOLS), np.uint8), np.zeros((classes, EXTRAS), np.uint8)
        for c in range(classes):
            shift, at = _take(data, at, 1)
            used, at = _take(data, at, 1)
            if shift[0] > MAX_SHIFT or used[0] > BUCKETS:
                raise FormatError("a chunk's tables have a class of too many buckets")
            shifts[c] = shift[0]
            part, at = _take(data, at, KINDS * int(used[0]))
            lengths[c].reshape(KINDS, BUCKETS)[:, : used[0]] = part.reshape(KINDS, -1)
            extra, at = _take(data, at, 1)
            if extra[0] > EXTRAS:
                raise FormatError("a chunk's tables have too many extra symbols")
            extras[c, : extra[0]], at = _take(data, at, int(extra[0]))
        if at != data.size or lengths.max() > CODE_BITS or extras.max() > EXTRA_BITS:
            raise FormatError("a chunk's tables have codes that are too long, or bytes after them")
        return cls.of(window, shifts, lengths, extras)

    def readers(self) -> Readers:
        """What the reading loop needs."""
        classes = self.shifts.size
        tables = np.zeros((classes, 1 << CODE_BITS), np.uint32)
        extras = np.zeros((classes, 1 << EXTRA_BITS), np.uint16)
        for c in range(classes):
            symbols.fill_table(self.book[c], self.lengths[c], int(self.shifts[c]), tables[c])
            symbols.fill_extra(self.extra_book[c], self.extra_lengths[c], extras[c])
        return self.shifts, tables, extras


def choose_shifts(totals: Counts, changed: Counts) -> NDArray[np.uint8]:
    """The shift of each class, of so many units of which so many changed."""
    return _finest(totals, changed).astype(np.uint8)


def shifts_do(shifts: NDArray[np.uint8], totals: Counts, changed: Counts) -> bool:
    """Whether shifts that were chosen before these numbers were known are about as good as others would be."""
    off = np.abs(_finest(totals, changed) - shifts - 0.5)
    return not np.any((off > 1.0) & (changed > changed.sum() / 16)) and not np.any((off > 2.0) & (changed > 0))


def _finest(totals: Counts, changed: Counts) -> NDArray[np.float64]:
    finest: NDArray[np.float64] = np.log2(np.clip(_BUCKET * totals / np.maximum(changed, 1), 1, 1 << MAX_SHIFT))
    return finest


def _used(lengths: NDArray[np.uint8]) -> int:
    """How many entries there are up to the last that is not zero."""
    return int(np.flatnonzero(lengths)[-1]) + 1 if lengths.any() else 0


def _take(data: Bytes, at: int, size: int) -> tuple[Bytes, int]:
    if at + size > data.size:
        raise FormatError("a chunk's tables are cut off")
    return data[at : at + size], at + size
