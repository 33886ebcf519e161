"""Reading the profile `tight`: a chunk's body (`tight` says what it is made of) and the old units, back to blocks.

What Python does for each chunk and block is the one part that cores do not share, and so it is little: numbers, tables
and heads are read by compiled loops, and the memory that these need is kept for the thread.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.block import Block, block_span
from p2psync.delta.fast.codec import read_fast_body
from p2psync.delta.history import ChangeHistory, HistoryLookup, copy_selected, count_selected, restore_positions
from p2psync.delta.kernels.simd import READ_AHEAD_ITEMS
from p2psync.delta.kernels.unit_loops import GROUP, address
from p2psync.delta.streams import ByteArray, read_varint, unpack_streams
from p2psync.delta.tensors import Row, Units
from p2psync.delta.tight import symbols
from p2psync.delta.tight.change_finder import MAX_TIGHT_CHANGES, UNIT_BYTES
from p2psync.delta.tight.class_choice import IntArray
from p2psync.delta.tight.class_index import LOCATE_BYTES, locate_changes
from p2psync.delta.tight.scratch import MAX_TIGHT_BLOCKS
from p2psync.delta.tight.tables import DecodeTables, SymbolTables, decode_table_buffers, read_tight_headers
from p2psync.delta.tight.writer import TIGHT
from p2psync.errors import FormatError

#: Memory for so many changes of two blocks is kept; for more it is taken each time.
_KEPT_ITEMS = 1 << 17
#: So many readings of a thread keep their memory: of a chunk with a history there are two.
_KEPT_SCRATCHES = 2
#: Most blocks of a chunk, and changes in them.
PART_LIMITS = MAX_TIGHT_BLOCKS, MAX_TIGHT_CHANGES
#: Which base the old units of a row are.
BaseLookup = Callable[[int], Units]
_local = threading.local()


class _DecodeScratch:
    """Memory of one reading at a time, for a chunk: the states' tables, the changes of two blocks, a loop's own."""

    def __init__(self) -> None:
        self.tables = decode_table_buffers()
        self.items = np.empty(_KEPT_ITEMS + READ_AHEAD_ITEMS, np.uint64)
        self.state = np.empty(LOCATE_BYTES, np.uint8)
        self.units = np.empty(0, np.uint16)

    def for_items(self, count: int) -> NDArray[np.uint64]:
        """Room for so many changes, and what `locate_changes` may look at after them."""
        scratch = self.items if count <= _KEPT_ITEMS else np.empty(count + READ_AHEAD_ITEMS, np.uint64)
        return scratch[:count]

    def for_units(self, count: int) -> Units:
        """Room for those of so many units that are meant."""
        if self.units.size < count + GROUP:
            self.units = np.empty(count + GROUP, np.uint16)
        return self.units


class UnitSelection(NamedTuple):
    """What units of each block are meant: those that are `known` by the history (1), or the others (0)."""

    history: HistoryLookup
    known: int

    def of(self, index: int, row: Row) -> ChangeHistory | None:
        """The history of a row. Raises `FormatError` for that of another tensor."""
        history = self.history(index)
        if history is not None and history.count != row.spec.count:
            raise FormatError(f"the history of {row.spec.name} is that of another tensor")
        return history

    def selected(self, index: int, row: Row, start: int, units: int) -> int:
        """How many of so many units of a row are meant. Raises as `of`."""
        history = self.of(index, row)
        if history is None:
            return 0 if self.known else units
        return count_selected(history.known, start, units, self.known)


class _BlockTable(NamedTuple):
    """Of each block: its row, first unit, units and changes; as arrays, with a block of nothing after the last, its
    bytes' begin and end and how many of its units are meant (blocks, 3), and the changes of each class (blocks,
    classes)."""

    blocks: list[tuple[int, int, int, int]]
    spans: IntArray
    sizes: IntArray


def read_tight_body(
    data: memoryview, rows: Sequence[Row], block_units: int, limit: int, base: BaseLookup | None
) -> Iterator[Block]:
    """Decode a body of at most `limit` bytes against the old units that `base` gives. Raises `FormatError`.

    Blocks come one by one; those that came before an error are valid, but not all. What has come may be added to the
    old units before the next is asked for.
    """
    meta, bits, rest = split_parts(data, 0, 3)
    part = TightPart(meta, bits, rows, block_units, limit)
    return merge_rest(part.blocks(base), rest, rows, block_units, limit)


def split_parts(data: memoryview, at: int, count: int) -> list[memoryview]:
    """So many parts, whose lengths stand at `at`. Raises `FormatError` unless these are all of the data."""
    lengths = []
    for _ in range(count):
        length, at = read_varint(data, at)
        lengths.append(length)
    if at + sum(lengths) != len(data):
        raise FormatError("a chunk's length is not what its parts add up to")
    ends = list(accumulate(lengths, initial=at))
    return [data[begin:end] for begin, end in pairwise(ends)]


def merge_rest(
    blocks: Iterator[Block], rest: memoryview, rows: Sequence[Row], block_units: int, limit: int
) -> Iterator[Block]:
    """The blocks, and those of the rest, a body of profile `fast` or nothing. Raises `FormatError`."""
    return _merge(blocks, iter(read_fast_body(rest, rows, block_units, limit))) if rest else blocks


class TightPart:
    """Blocks of one meta part and its symbols."""

    def __init__(
        self,
        meta: memoryview,
        bits: memoryview,
        rows: Sequence[Row],
        block_units: int,
        limit: int,
        side: UnitSelection | None = None,
        bounds: tuple[int, int] = PART_LIMITS,
    ) -> None:
        """Read tables and heads, of at most `limit` bytes. side: the units that are meant; None: all. bounds: most
        blocks, and changes in them. Raises `FormatError`."""
        raw_tables, raw_headers = unpack_streams(meta, 2, limit)
        self._rows, self._side = rows, side
        self._tables = SymbolTables.from_bytes(raw_tables)
        self._headers = _read_block_table(raw_headers, rows, block_units, self._tables.shifts.size, bounds, side)
        if not self._headers.blocks or self._headers.spans[-1, 0] != len(bits):
            raise FormatError("a chunk's blocks are not what its symbols are for")
        self._bits = np.empty(len(bits) + symbols.READ_SLACK_BYTES, np.uint8)
        self._bits[: len(bits)] = np.frombuffer(bits, np.uint8)
        self._bits[len(bits) :] = 0
        #: The old units of the row at hand.
        self._kept: Units | None = None
        self._kept_row, self._address = -1, 0

    @property
    def size(self) -> tuple[int, int]:
        """How many blocks there are, and changes in them."""
        return len(self._headers.blocks), int(self._headers.sizes.sum())

    def blocks(self, base: BaseLookup | None, *, signs: bool = True) -> Iterator[Block]:
        """The blocks, one by one. signs: whether the symbols tell them; else all steps are upwards. Raises
        `FormatError`."""
        kept_scratch: list[_DecodeScratch] = _local.__dict__.setdefault("rooms", [])
        # Another reading of the thread may be at rest between two blocks, with the memory that was kept.
        scratch = kept_scratch.pop() if kept_scratch else _DecodeScratch()
        try:
            decode_tables = self._tables.decode_tables(signs, scratch.tables)
            yield from self._read_blocks(decode_tables, base, scratch)
        finally:
            kept_scratch.append(scratch)
            del kept_scratch[:-_KEPT_SCRATCHES]

    def _read_blocks(
        self, decode_tables: DecodeTables, base: BaseLookup | None, scratch: _DecodeScratch
    ) -> Iterator[Block]:
        blocks, spans, sizes = self._headers
        for first in range(0, len(blocks), 2):
            # Two at a time; beside the last of an odd number stands one of no changes.
            pair = blocks[first : first + 2]
            items = scratch.for_items(sum(block[-1] for block in pair))
            two = slice(first, first + 2)
            if not symbols.read_symbols(self._bits, spans[two], sizes[two], *decode_tables, items):
                raise FormatError("a chunk has broken symbols")
            for k, (row, start, units, changed) in enumerate(pair, first):
                mine = items[:changed] if k == first else items[items.size - changed :]
                place, count, history = self._units(row, start, units, base, scratch)
                positions, steps = np.empty(changed, np.uint32), np.empty(changed, np.uint16)
                found = place, count, self._tables.window, sizes[k], mine, positions, steps, scratch.state
                if not locate_changes(*found) or not self._restore_positions(history, start, units, positions):
                    name = self._rows[row].spec.name
                    raise FormatError(f"a chunk changes units that {name} does not have: another base is wanted")
                yield Block(row, start, units, positions, steps)

    def _units(
        self, row: int, start: int, units: int, base: BaseLookup | None, scratch: _DecodeScratch
    ) -> tuple[int, int, ChangeHistory | None]:
        """Where the units stand that are meant, of so many from `start` on; how many they are; the history that parts
        them from the others, if one does."""
        old = None if base is None else base(row)
        if old is not self._kept or row != self._kept_row:
            self._address, self._kept, self._kept_row = _address(self._rows, row, old), old, row
        place = self._address + UNIT_BYTES * start
        history = None if self._side is None else self._side.of(row, self._rows[row])
        if self._side is None or history is None:
            return place, units, None
        chosen = scratch.for_units(units)
        count = copy_selected(place, history.known, start, units, self._side.known, chosen)
        return address(chosen), count, history

    def _restore_positions(
        self, history: ChangeHistory | None, start: int, units: int, positions: NDArray[np.uint32]
    ) -> bool:
        if self._side is None or history is None:
            return True
        return restore_positions(history.known, start, units, self._side.known, positions)


def _merge(blocks: Iterator[Block], others: Iterator[Block]) -> Iterator[Block]:
    """Both in rising order. Raises `FormatError` if they have a block in common."""
    last = (-1, -1)
    for block in heapq.merge(blocks, others, key=block_key):
        if block_key(block) == last:
            raise FormatError("a chunk has a block twice")
        last = block_key(block)
        yield block


def block_key(block: Block) -> tuple[int, int]:
    """What blocks rise by: row and first unit."""
    return block.row, block.start


def _read_block_table(
    data: ByteArray,
    rows: Sequence[Row],
    block_units: int,
    classes: int,
    bounds: tuple[int, int],
    side: UnitSelection | None,
) -> _BlockTable:
    table, sizes, changed = read_tight_headers(data, classes, *bounds)
    spans = np.zeros((len(sizes), 3), np.int64)
    np.cumsum(table[:, 2], out=spans[1:, 0])
    spans[:-1, 1] = spans[1:, 0]
    spans[-1, 1] = spans[-1, 0]
    blocks: list[tuple[int, int, int, int]] = []
    selected: list[int] = []
    span = block_span(UNIT_BYTES, block_units)
    row, index, count = 0, -1, -1
    for step, offset, most in zip(*table[:, :2].T.tolist(), changed.tolist(), strict=True):
        row += step
        index = offset if step else index + 1 + offset
        if row >= len(rows):
            raise FormatError(f"a chunk has a block of row {row}, which is not in the table")
        if step or count < 0:
            spec = rows[row].spec
            if spec.width != UNIT_BYTES or not (rows[row].before and rows[row].after):
                raise FormatError(f"a chunk has a tight block of {spec.name}, which cannot be coded so")
            count = spec.count
        start = index * span
        units = min(span, count - start)
        if units <= 0:
            raise FormatError(f"a chunk has block {index} of row {row}, which is not in the table")
        selected.append(units if side is None else side.selected(row, rows[row], start, units))
        if most > selected[-1]:
            raise FormatError(f"a chunk has a block of {most} changes among {selected[-1]} units")
        blocks.append((row, start, units, most))
    spans[:-1, 2] = selected
    return _BlockTable(blocks, spans, sizes)


def _address(rows: Sequence[Row], row: int, old: Units | None) -> int:
    spec = rows[row].spec
    if old is None or old.shape != (spec.count,) or old.dtype != spec.unit or not old.flags.c_contiguous:
        raise FormatError(f"a chunk of profile {TIGHT} is read against the old units of {spec.name}")
    return address(old)
