"""Reading the profile `tight`: a chunk's body (`tight` says what it is made of) and the old units, back to blocks.

What Python does for each chunk and block is the one part that cores do not share, and so it is little: numbers, tables
and heads are read by compiled loops, and the memory that these need is kept for the thread.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2psync.delta import fast, symbols
from p2psync.delta.block import Block, block_span
from p2psync.delta.classes import Counts
from p2psync.delta.history import SignReader, Signs
from p2psync.delta.kernels import address
from p2psync.delta.lanes import BEYOND
from p2psync.delta.ranks import PLACE_BYTES, place_changes
from p2psync.delta.streams import Bytes, read_varint, unpack_streams
from p2psync.delta.tables import Readers, Tables, read_heads, reader_room
from p2psync.delta.tensors import Row, Units
from p2psync.delta.tight import MAX_BLOCKS, MAX_CHANGED, NAME, WIDTH, Past
from p2psync.errors import FormatError

#: Memory for so many changes of two blocks is kept; for more it is taken each time.
_KEPT = 1 << 17
#: Which base the old units of a row are.
Base = Callable[[int], Units]
_local = threading.local()


class _Room:
    """Memory of one reading at a time, for a chunk: the states' tables, the changes of two blocks, a loop's own."""

    def __init__(self) -> None:
        self.tables = reader_room()
        self.items = np.empty(_KEPT + BEYOND, np.uint64)
        self.state = np.empty(PLACE_BYTES, np.uint8)

    def for_items(self, count: int) -> NDArray[np.uint64]:
        """Room for so many changes, and what `place_changes` may look at after them."""
        room = self.items if count <= _KEPT else np.empty(count + BEYOND, np.uint64)
        return room[:count]


class _Heads(NamedTuple):
    """Of each block: its row, first unit, units and changes; as arrays, with a block of nothing after the last, its
    bytes' begin and end and its units (blocks, 3), and the changes of each class (blocks, classes)."""

    blocks: list[tuple[int, int, int, int]]
    spans: Counts
    sizes: Counts


def read_body(
    data: memoryview,
    rows: Sequence[Row],
    block_units: int,
    limit: int,
    base: Base | None,
    history: Past | None = None,
) -> Iterator[Block]:
    """Decode a body of at most `limit` bytes against the old units that `base` gives, and the history that it was made
    with, if any. Raises `FormatError`.

    Blocks come one by one; those that came before an error are valid, but not all. What has come may be added to the
    old units before the next is asked for.
    """
    length, at = read_varint(data, 0)
    size, at = read_varint(data, at)
    beside, at = read_varint(data, at)
    raw, gaps, surprises, way = 0, 0, 0, 0
    if history is not None:
        raw, at = read_varint(data, at)
        gaps, at = read_varint(data, at)
        surprises, at = read_varint(data, at)
        way, at = data[at] if at < len(data) else 0, at + 1
    parts = [at + sum(lengths) for lengths in ((), (length,), (length, size), (length, size, raw, gaps))]
    if parts[-1] + beside != len(data):
        raise FormatError("a chunk's length is not what its parts add up to")
    raw_tables, raw_heads = unpack_streams(data[parts[0] : parts[1]], 2, limit)
    tables = Tables.from_bytes(raw_tables)
    heads = _read_heads(raw_heads, rows, block_units, tables.shifts.size)
    if not heads.blocks or heads.spans[-1, 0] != size:
        raise FormatError("a chunk's blocks are not what its symbols are for")
    bits = np.empty(size + symbols.SLACK, np.uint8)
    bits[:size] = np.frombuffer(data[parts[1] : parts[2]], np.uint8)
    bits[size:] = 0
    blocks = _read_blocks(heads, rows, tables, bits, base, signed=history is None)
    if history is not None:
        middle = parts[2] + raw
        signs = Signs(bytes(data[parts[2] : middle]), way & 1, way >> 1, surprises, bytes(data[middle : parts[3]]))
        blocks = _turned(blocks, SignReader(signs, int(heads.sizes.sum())), rows, history)
    if beside:
        blocks = _merge(blocks, iter(fast.read_body(data[parts[3] :], rows, block_units, limit)))
    yield from blocks


def _turned(blocks: Iterator[Block], signs: SignReader, rows: Sequence[Row], history: Past) -> Iterator[Block]:
    """The blocks, with their signs."""
    for block in blocks:
        past = history(block.row)
        if past is not None and past.count != rows[block.row].spec.count:
            raise FormatError(f"the history of {rows[block.row].spec.name} is that of another tensor")
        assert block.positions is not None
        signs.apply(past, block.start, block.positions, block.steps)
        yield block
    signs.finish()


def _merge(blocks: Iterator[Block], others: Iterator[Block]) -> Iterator[Block]:
    """Both in rising order. Raises `FormatError` if they have a block in common."""
    last = (-1, -1)
    for block in heapq.merge(blocks, others, key=_place):
        if _place(block) == last:
            raise FormatError("a chunk has a block twice")
        last = _place(block)
        yield block


def _place(block: Block) -> tuple[int, int]:
    return block.row, block.start


def _read_heads(data: Bytes, rows: Sequence[Row], block_units: int, classes: int) -> _Heads:
    table, sizes, changed = read_heads(data, classes, MAX_BLOCKS, MAX_CHANGED)
    spans = np.zeros((len(sizes), 3), np.int64)
    np.cumsum(table[:, 2], out=spans[1:, 0])
    spans[:-1, 1] = spans[1:, 0]
    spans[-1, 1] = spans[-1, 0]
    blocks: list[tuple[int, int, int, int]] = []
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
        if most > units:
            raise FormatError(f"a chunk has a block of {most} changes among {units} units")
        blocks.append((row, start, units, most))
    spans[:-1, 2] = [units for _, _, units, _ in blocks]
    return _Heads(blocks, spans, sizes)


def _read_blocks(
    heads: _Heads, rows: Sequence[Row], tables: Tables, bits: Bytes, base: Base | None, *, signed: bool
) -> Iterator[Block]:
    rooms: list[_Room] = _local.__dict__.setdefault("rooms", [])
    # Another reading of the thread may be at rest between two blocks, with the memory that was kept.
    room = rooms.pop() if rooms else _Room()
    try:
        readers = tables.readers(signed, room.tables)
        yield from _with_room(heads, rows, tables.window, readers, bits, base, room)
    finally:
        rooms[:] = [room]


def _with_room(
    heads: _Heads,
    rows: Sequence[Row],
    window: NDArray[np.uint8],
    readers: Readers,
    bits: Bytes,
    base: Base | None,
    room: _Room,
) -> Iterator[Block]:
    blocks, spans, sizes = heads
    kept, kept_row, place = None, -1, 0
    for first in range(0, len(blocks), 2):
        # Two at a time; beside the last of an odd number stands one of no changes.
        pair = blocks[first : first + 2]
        items = room.for_items(sum(block[-1] for block in pair))
        if not symbols.read_symbols(bits, spans[first : first + 2], sizes[first : first + 2], *readers, items):
            raise FormatError("a chunk has broken symbols")
        for k, (row, start, units, changed) in enumerate(pair, first):
            old = None if base is None else base(row)
            if old is not kept or row != kept_row:
                place = _address(rows, row, old)
                kept, kept_row = old, row
            positions, steps = np.empty(changed, np.uint32), np.empty(changed, np.uint16)
            mine = items[:changed] if k == first else items[items.size - changed :]
            if not place_changes(place + WIDTH * start, units, window, sizes[k], mine, positions, steps, room.state):
                raise FormatError(
                    f"a chunk changes units that {rows[row].spec.name} does not have: another base is wanted"
                )
            yield Block(row, start, units, positions, steps)


def _address(rows: Sequence[Row], row: int, old: Units | None) -> int:
    spec = rows[row].spec
    if old is None or old.shape != (spec.count,) or old.dtype != spec.unit or not old.flags.c_contiguous:
        raise FormatError(f"a chunk of profile {NAME} is read against the old units of {spec.name}")
    return address(old)
