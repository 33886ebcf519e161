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
from p2psync.delta.history import ChangeHistory, Past, choose_units, count_chosen, put_back
from p2psync.delta.kernels.simd import BEYOND
from p2psync.delta.kernels.unit_loops import GROUP, address
from p2psync.delta.streams import Bytes, read_varint, unpack_streams
from p2psync.delta.tensors import Row, Units
from p2psync.delta.tight import symbols
from p2psync.delta.tight.class_index import PLACE_BYTES, place_changes
from p2psync.delta.tight.class_choice import Counts
from p2psync.delta.tight.tables import Readers, Tables, read_heads, reader_room
from p2psync.delta.tight.writer import MAX_BLOCKS, MAX_CHANGED, NAME, WIDTH
from p2psync.errors import FormatError

#: Memory for so many changes of two blocks is kept; for more it is taken each time.
_KEPT = 1 << 17
#: So many readings of a thread keep their memory: of a chunk with a history there are two.
_ROOMS = 2
#: Most blocks of a chunk, and changes in them.
MOST = MAX_BLOCKS, MAX_CHANGED
#: Which base the old units of a row are.
Base = Callable[[int], Units]
_local = threading.local()


class _Room:
    """Memory of one reading at a time, for a chunk: the states' tables, the changes of two blocks, a loop's own."""

    def __init__(self) -> None:
        self.tables = reader_room()
        self.items = np.empty(_KEPT + BEYOND, np.uint64)
        self.state = np.empty(PLACE_BYTES, np.uint8)
        self.units = np.empty(0, np.uint16)

    def for_items(self, count: int) -> NDArray[np.uint64]:
        """Room for so many changes, and what `place_changes` may look at after them."""
        room = self.items if count <= _KEPT else np.empty(count + BEYOND, np.uint64)
        return room[:count]

    def for_units(self, count: int) -> Units:
        """Room for those of so many units that are meant."""
        if self.units.size < count + GROUP:
            self.units = np.empty(count + GROUP, np.uint16)
        return self.units


class Side(NamedTuple):
    """What units of each block are meant: those that are `known` by the history (1), or the others (0)."""

    history: Past
    known: int

    def of(self, index: int, row: Row) -> ChangeHistory | None:
        """The history of a row. Raises `FormatError` for that of another tensor."""
        history = self.history(index)
        if history is not None and history.count != row.spec.count:
            raise FormatError(f"the history of {row.spec.name} is that of another tensor")
        return history

    def meant(self, index: int, row: Row, start: int, units: int) -> int:
        """How many of so many units of a row are meant. Raises as `of`."""
        history = self.of(index, row)
        if history is None:
            return 0 if self.known else units
        return count_chosen(history.known, start, units, self.known)


class _Heads(NamedTuple):
    """Of each block: its row, first unit, units and changes; as arrays, with a block of nothing after the last, its
    bytes' begin and end and how many of its units are meant (blocks, 3), and the changes of each class (blocks,
    classes)."""

    blocks: list[tuple[int, int, int, int]]
    spans: Counts
    sizes: Counts


def read_body(
    data: memoryview, rows: Sequence[Row], block_units: int, limit: int, base: Base | None
) -> Iterator[Block]:
    """Decode a body of at most `limit` bytes against the old units that `base` gives. Raises `FormatError`.

    Blocks come one by one; those that came before an error are valid, but not all. What has come may be added to the
    old units before the next is asked for.
    """
    meta, bits, rest = cut(data, 0, 3)
    part = Part(meta, bits, rows, block_units, limit)
    return with_rest(part.blocks(base), rest, rows, block_units, limit)


def cut(data: memoryview, at: int, count: int) -> list[memoryview]:
    """So many parts, whose lengths stand at `at`. Raises `FormatError` unless these are all of the data."""
    lengths = []
    for _ in range(count):
        length, at = read_varint(data, at)
        lengths.append(length)
    if at + sum(lengths) != len(data):
        raise FormatError("a chunk's length is not what its parts add up to")
    ends = list(accumulate(lengths, initial=at))
    return [data[begin:end] for begin, end in pairwise(ends)]


def with_rest(
    blocks: Iterator[Block], rest: memoryview, rows: Sequence[Row], block_units: int, limit: int
) -> Iterator[Block]:
    """The blocks, and those of the rest, a body of profile `fast` or nothing. Raises `FormatError`."""
    return _merge(blocks, iter(read_fast_body(rest, rows, block_units, limit))) if rest else blocks


class Part:
    """Blocks of one meta part and its symbols."""

    def __init__(
        self,
        meta: memoryview,
        bits: memoryview,
        rows: Sequence[Row],
        block_units: int,
        limit: int,
        side: Side | None = None,
        bounds: tuple[int, int] = MOST,
    ) -> None:
        """Read tables and heads, of at most `limit` bytes. side: the units that are meant; None: all. bounds: most
        blocks, and changes in them. Raises `FormatError`."""
        raw_tables, raw_heads = unpack_streams(meta, 2, limit)
        self._rows, self._side = rows, side
        self._tables = Tables.from_bytes(raw_tables)
        self._heads = _read_heads(raw_heads, rows, block_units, self._tables.shifts.size, bounds, side)
        if not self._heads.blocks or self._heads.spans[-1, 0] != len(bits):
            raise FormatError("a chunk's blocks are not what its symbols are for")
        self._bits = np.empty(len(bits) + symbols.SLACK, np.uint8)
        self._bits[: len(bits)] = np.frombuffer(bits, np.uint8)
        self._bits[len(bits) :] = 0
        #: The old units of the row at hand.
        self._kept: Units | None = None
        self._kept_row, self._address = -1, 0

    @property
    def size(self) -> tuple[int, int]:
        """How many blocks there are, and changes in them."""
        return len(self._heads.blocks), int(self._heads.sizes.sum())

    def blocks(self, base: Base | None, *, signs: bool = True) -> Iterator[Block]:
        """The blocks, one by one. signs: whether the symbols tell them; else all steps are upwards. Raises
        `FormatError`."""
        rooms: list[_Room] = _local.__dict__.setdefault("rooms", [])
        # Another reading of the thread may be at rest between two blocks, with the memory that was kept.
        room = rooms.pop() if rooms else _Room()
        try:
            readers = self._tables.readers(signs, room.tables)
            yield from self._with_room(readers, base, room)
        finally:
            rooms.append(room)
            del rooms[:-_ROOMS]

    def _with_room(self, readers: Readers, base: Base | None, room: _Room) -> Iterator[Block]:
        blocks, spans, sizes = self._heads
        for first in range(0, len(blocks), 2):
            # Two at a time; beside the last of an odd number stands one of no changes.
            pair = blocks[first : first + 2]
            items = room.for_items(sum(block[-1] for block in pair))
            two = slice(first, first + 2)
            if not symbols.read_symbols(self._bits, spans[two], sizes[two], *readers, items):
                raise FormatError("a chunk has broken symbols")
            for k, (row, start, units, changed) in enumerate(pair, first):
                mine = items[:changed] if k == first else items[items.size - changed :]
                place, count, history = self._units(row, start, units, base, room)
                positions, steps = np.empty(changed, np.uint32), np.empty(changed, np.uint16)
                found = place, count, self._tables.window, sizes[k], mine, positions, steps, room.state
                if not place_changes(*found) or not self._put_back(history, start, units, positions):
                    name = self._rows[row].spec.name
                    raise FormatError(f"a chunk changes units that {name} does not have: another base is wanted")
                yield Block(row, start, units, positions, steps)

    def _units(
        self, row: int, start: int, units: int, base: Base | None, room: _Room
    ) -> tuple[int, int, ChangeHistory | None]:
        """Where the units stand that are meant, of so many from `start` on; how many they are; the history that parts
        them from the others, if one does."""
        old = None if base is None else base(row)
        if old is not self._kept or row != self._kept_row:
            self._address, self._kept, self._kept_row = _address(self._rows, row, old), old, row
        place = self._address + WIDTH * start
        history = None if self._side is None else self._side.of(row, self._rows[row])
        if self._side is None or history is None:
            return place, units, None
        chosen = room.for_units(units)
        count = choose_units(place, history.known, start, units, self._side.known, chosen)
        return address(chosen), count, history

    def _put_back(self, history: ChangeHistory | None, start: int, units: int, positions: NDArray[np.uint32]) -> bool:
        if self._side is None or history is None:
            return True
        return put_back(history.known, start, units, self._side.known, positions)


def _merge(blocks: Iterator[Block], others: Iterator[Block]) -> Iterator[Block]:
    """Both in rising order. Raises `FormatError` if they have a block in common."""
    last = (-1, -1)
    for block in heapq.merge(blocks, others, key=place_of):
        if place_of(block) == last:
            raise FormatError("a chunk has a block twice")
        last = place_of(block)
        yield block


def place_of(block: Block) -> tuple[int, int]:
    """What blocks rise by: row and first unit."""
    return block.row, block.start


def _read_heads(
    data: Bytes, rows: Sequence[Row], block_units: int, classes: int, bounds: tuple[int, int], side: Side | None
) -> _Heads:
    table, sizes, changed = read_heads(data, classes, *bounds)
    spans = np.zeros((len(sizes), 3), np.int64)
    np.cumsum(table[:, 2], out=spans[1:, 0])
    spans[:-1, 1] = spans[1:, 0]
    spans[-1, 1] = spans[-1, 0]
    blocks: list[tuple[int, int, int, int]] = []
    meant: list[int] = []
    span = block_span(WIDTH, block_units)
    row, index, count = 0, -1, -1
    for step, offset, most in zip(*table[:, :2].T.tolist(), changed.tolist(), strict=True):
        row += step
        index = offset if step else index + 1 + offset
        if row >= len(rows):
            raise FormatError(f"a chunk has a block of row {row}, which is not in the table")
        if step or count < 0:
            spec = rows[row].spec
            if spec.width != WIDTH or not (rows[row].before and rows[row].after):
                raise FormatError(f"a chunk has a tight block of {spec.name}, which cannot be coded so")
            count = spec.count
        start = index * span
        units = min(span, count - start)
        if units <= 0:
            raise FormatError(f"a chunk has block {index} of row {row}, which is not in the table")
        meant.append(units if side is None else side.meant(row, rows[row], start, units))
        if most > meant[-1]:
            raise FormatError(f"a chunk has a block of {most} changes among {meant[-1]} units")
        blocks.append((row, start, units, most))
    spans[:-1, 2] = meant
    return _Heads(blocks, spans, sizes)


def _address(rows: Sequence[Row], row: int, old: Units | None) -> int:
    spec = rows[row].spec
    if old is None or old.shape != (spec.count,) or old.dtype != spec.unit or not old.flags.c_contiguous:
        raise FormatError(f"a chunk of profile {NAME} is read against the old units of {spec.name}")
    return address(old)
