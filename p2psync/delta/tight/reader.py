"""Decodes bodies of profile `tight` (`writer` describes them) against the old units, back to blocks.

Python runs on one core at a time, so it does little for each chunk and block: compiled loops read numbers, tables and
headers, and their scratch memory is kept for the thread.
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
from p2psync.delta.streams import read_varint, unpack_streams
from p2psync.delta.tensors import ByteArray, TableRow, Units
from p2psync.delta.tight import symbols
from p2psync.delta.tight.change_finder import MAX_TIGHT_CHANGES, UNIT_BYTES
from p2psync.delta.tight.class_choice import IntArray
from p2psync.delta.tight.class_index import LOCATE_BYTES, locate_changes
from p2psync.delta.tight.scratch import MAX_TIGHT_BLOCKS
from p2psync.delta.tight.tables import DecodeTables, SymbolTables, decode_table_buffers, read_tight_headers
from p2psync.delta.tight.writer import TIGHT
from p2psync.errors import FormatError

#: Changes of two blocks that kept scratch memory holds; for more it is allocated each time.
_KEPT_ITEMS = 1 << 17
#: Scratch memories that a thread keeps: a chunk with a history is read by two readers at once.
_KEPT_SCRATCHES = 2
#: Tight blocks of a chunk, and changes in them, at most.
PART_LIMITS = MAX_TIGHT_BLOCKS, MAX_TIGHT_CHANGES
#: Returns the old units of a row.
BaseLookup = Callable[[int], Units]
_local = threading.local()


class _DecodeScratch:
    """Scratch memory of one reader: decode tables, changes of two blocks, a loop's scratch, selected units."""

    def __init__(self) -> None:
        self.tables = decode_table_buffers()
        self.items = np.empty(_KEPT_ITEMS + READ_AHEAD_ITEMS, np.uint64)
        self.state = np.empty(LOCATE_BYTES, np.uint8)
        self.units = np.empty(0, np.uint16)

    def items_for(self, count: int) -> NDArray[np.uint64]:
        """An array for `count` changes, with the entries behind it that `locate_changes` may read."""
        items = self.items if count <= _KEPT_ITEMS else np.empty(count + READ_AHEAD_ITEMS, np.uint64)
        return items[:count]

    def units_for(self, count: int) -> Units:
        """An array for the selected units among `count`."""
        if self.units.size < count + GROUP:
            self.units = np.empty(count + GROUP, np.uint16)
        return self.units


class UnitSelection(NamedTuple):
    """The units of each block that a part codes: those known by the history (known: 1), or the others (0)."""

    history: HistoryLookup
    known: int

    def of(self, index: int, row: TableRow) -> ChangeHistory | None:
        """The history of a row, or None. Raises `FormatError` if it is that of another tensor."""
        history = self.history(index)
        if history is not None and history.count != row.spec.count:
            raise FormatError(f"the history of {row.spec.name} is that of another tensor")
        return history

    def selected(self, index: int, row: TableRow, start: int, units: int) -> int:
        """The number of selected units among `units` from unit `start` of a row on. Raises as `of`."""
        history = self.of(index, row)
        if history is None:
            return 0 if self.known else units
        return count_selected(history.known, start, units, self.known)


class _BlockTable(NamedTuple):
    """The headers of a part's blocks.

    blocks: row, first unit, units and changes of each. spans: i64 (blocks + 1, 3), begin and end of its symbol bytes,
    and its selected units. sizes: i64 (blocks + 1, classes), changes of each class. The last entry of both is empty.
    """

    blocks: list[tuple[int, int, int, int]]
    spans: IntArray
    sizes: IntArray


def read_tight_body(
    data: memoryview, rows: Sequence[TableRow], block_units: int, limit: int, base: BaseLookup | None
) -> Iterator[Block]:
    """Decode a body of at most `limit` unpacked bytes against the old units that `base` returns. Raises `FormatError`.

    Blocks come one by one; those before an error are valid. The caller may add a block to the old units before it asks
    for the next.
    """
    meta, bits, rest = split_parts(data, 0, 3)
    part = TightPart(meta, bits, rows, block_units, limit)
    return merge_rest(part.blocks(base), rest, rows, block_units, limit)


def split_parts(data: memoryview, at: int, count: int) -> list[memoryview]:
    """Split data into `count` parts, whose lengths stand at `at`. Raises `FormatError` unless they fill the data."""
    lengths = []
    for _ in range(count):
        length, at = read_varint(data, at)
        lengths.append(length)
    if at + sum(lengths) != len(data):
        raise FormatError("a chunk's length is not what its parts add up to")
    ends = list(accumulate(lengths, initial=at))
    return [data[begin:end] for begin, end in pairwise(ends)]


def merge_rest(
    blocks: Iterator[Block], rest: memoryview, rows: Sequence[TableRow], block_units: int, limit: int
) -> Iterator[Block]:
    """The blocks merged with those of the rest, a body of profile `fast` or nothing. Raises `FormatError`."""
    return _merge(blocks, iter(read_fast_body(rest, rows, block_units, limit))) if rest else blocks


class TightPart:
    """The tight blocks of one meta part (tables and headers) and its symbols."""

    def __init__(
        self,
        meta: memoryview,
        bits: memoryview,
        rows: Sequence[TableRow],
        block_units: int,
        limit: int,
        selection: UnitSelection | None = None,
        bounds: tuple[int, int] = PART_LIMITS,
    ) -> None:
        """Read tables and headers, of at most `limit` unpacked bytes.

        selection: the units that the part codes; None: all. bounds: blocks, and changes in them, at most. Raises
        `FormatError`.
        """
        raw_tables, raw_headers = unpack_streams(meta, 2, limit)
        self._rows, self._selection = rows, selection
        self._tables = SymbolTables.from_bytes(raw_tables)
        self._headers = _read_block_table(raw_headers, rows, block_units, self._tables.shifts.size, bounds, selection)
        if not self._headers.blocks or self._headers.spans[-1, 0] != len(bits):
            raise FormatError("a chunk's headers do not match its symbols")
        self._bits = np.empty(len(bits) + symbols.READ_SLACK_BYTES, np.uint8)
        self._bits[: len(bits)] = np.frombuffer(bits, np.uint8)
        self._bits[len(bits) :] = 0
        #: The old units of the current row.
        self._kept: Units | None = None
        self._kept_row, self._address = -1, 0

    @property
    def size(self) -> tuple[int, int]:
        """Number of blocks, and of changes in them."""
        return len(self._headers.blocks), int(self._headers.sizes.sum())

    def blocks(self, base: BaseLookup | None, *, signs: bool = True) -> Iterator[Block]:
        """Decode the blocks, one by one. signs: whether the symbols include signs; else all steps are positive.

        Raises `FormatError`.
        """
        kept_scratch: list[_DecodeScratch] = _local.__dict__.setdefault("scratch", [])
        # Another reader of this thread may be suspended between two blocks, and hold the kept memory.
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
            # Two at a time; the last of an odd number is paired with the empty entry.
            pair = blocks[first : first + 2]
            items = scratch.items_for(sum(block[-1] for block in pair))
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
                    raise FormatError(f"a chunk changes units that {name} does not have: it needs another base")
                yield Block(row, start, units, positions, steps)

    def _units(
        self, row: int, start: int, units: int, base: BaseLookup | None, scratch: _DecodeScratch
    ) -> tuple[int, int, ChangeHistory | None]:
        """The selected units among `units` from `start` on: their address, their number, and the history that selects
        them, if one does."""
        old = None if base is None else base(row)
        if old is not self._kept or row != self._kept_row:
            self._address, self._kept, self._kept_row = _address(self._rows, row, old), old, row
        place = self._address + UNIT_BYTES * start
        history = None if self._selection is None else self._selection.of(row, self._rows[row])
        if self._selection is None or history is None:
            return place, units, None
        chosen = scratch.units_for(units)
        count = copy_selected(place, history.known, start, units, self._selection.known, chosen)
        return address(chosen), count, history

    def _restore_positions(
        self, history: ChangeHistory | None, start: int, units: int, positions: NDArray[np.uint32]
    ) -> bool:
        if self._selection is None or history is None:
            return True
        return restore_positions(history.known, start, units, self._selection.known, positions)


def _merge(blocks: Iterator[Block], others: Iterator[Block]) -> Iterator[Block]:
    """Merge both in rising order. Raises `FormatError` if a block is in both."""
    last = (-1, -1)
    for block in heapq.merge(blocks, others, key=block_key):
        if block_key(block) == last:
            raise FormatError("a chunk has a block twice")
        last = block_key(block)
        yield block


def block_key(block: Block) -> tuple[int, int]:
    """The key that blocks are ordered by: row and first unit."""
    return block.row, block.start


def _read_block_table(
    data: ByteArray,
    rows: Sequence[TableRow],
    block_units: int,
    classes: int,
    bounds: tuple[int, int],
    selection: UnitSelection | None,
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
        selected.append(units if selection is None else selection.selected(row, rows[row], start, units))
        if most > selected[-1]:
            raise FormatError(f"a chunk has a block of {most} changes among {selected[-1]} units")
        blocks.append((row, start, units, most))
    spans[:-1, 2] = selected
    return _BlockTable(blocks, spans, sizes)


def _address(rows: Sequence[TableRow], row: int, old: Units | None) -> int:
    spec = rows[row].spec
    if old is None or old.shape != (spec.count,) or old.dtype != spec.unit or not old.flags.c_contiguous:
        raise FormatError(f"a chunk of profile {TIGHT} is read against the old units of {spec.name}")
    return address(old)
