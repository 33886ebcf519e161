"""The profile `tight`: positions and steps coded given the class of the old weight, which the receiver knows.

A chunk's body:

    varint   bytes of the meta part
    varint   bytes of the symbols
    varint   bytes of the rest
    then     the meta part (two `streams`: tables, heads), the symbols, the rest (a body of profile `fast`, or nothing)

With a *history* (`history`), which a receiver must have too, the symbols hold no signs; after the three lengths come:

    varint   bytes of raw signs
    varint   bytes of the gaps between surprises
    varint   how many surprises there are
    1 byte   2 · parameter of the gaps' code + whether the last direction is the usual one
    then     meta part, symbols, raw signs, gaps, rest

`ranks` says what classes and ranks are, `symbols` how changes are written, `tables` what stands before them;
`tight_read` is the way back. Tensors of 16-bit units that exist before and after are coded so; all other blocks, and
dense ones, are in the `fast` body. A chunk that would be no smaller for it is a chunk of profile `fast`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2psync.delta import fast, symbols
from p2psync.delta.block import Block, block_span
from p2psync.delta.classes import Classes, Counts
from p2psync.delta.heads import MAX_BLOCKS as MOST_BLOCKS
from p2psync.delta.history import History, Signs, SignWriter
from p2psync.delta.kernels import scan
from p2psync.delta.lanes import MAX_CLASSES
from p2psync.delta.ranks import SCAN_BYTES, scan_ranked
from p2psync.delta.streams import pack_streams, varint
from p2psync.delta.tables import Tables, write_heads
from p2psync.delta.tensors import Row, Units

NAME = "tight"
#: Of a chunk without and with a history.
CODE, CODE_HISTORY = 2, 3
WIDTH = 2
#: Most changed units in the symbols of one chunk: what decoding it takes is bounded by this.
MAX_CHANGED = 1 << 22
#: Most tight blocks of one chunk.
MAX_BLOCKS = 1 << 14
#: A chunk's first changes, so many, are coded both ways; where that saves less than this share of the bytes, all of the
#: chunk is.
_SAMPLE, _SURE = 4096, 0.93
#: A body of fewer bytes than this is always coded both ways.
_SMALL = 1 << 13
#: Where more than this share of a block changes, ranks save no bits and cost time.
_DENSE = 0.75
#: Bytes that a head takes, about, and a change of the first chunk.
_HEAD_BYTES, _RATE = 16, 0.9
#: Changes of a class that room is kept for, and what is added so that rows lie apart.
_ROOM, _SHIFTED = 1 << 21, 72
_local = threading.local()
#: Gives the history of a row; None where it has none.
Past = Callable[[int], History | None]


class _Ranked(NamedTuple):
    """A block class after class: changes (`counts[0]`) and units (`counts[1]`) of each."""

    block: Block
    row: Row
    counts: Counts


class Prepared(NamedTuple):
    """A block on its way into a chunk: coded as in `fast`, or ranked."""

    block: Block
    changed: int
    size: int
    """Bytes that it may add to a chunk."""
    worst: int
    """Bytes that it may add to one of profile `fast`."""
    coded: fast.Coded | None = None
    ranked: _Ranked | None = None
    fresh: bool = False
    """Whether new classes begin with it, so that it cannot join the chunk at hand."""


class TightWriter:
    """The chunks of one encoder, one after another. Blocks come in rising order."""

    def __init__(self, block_units: int, limit: int, history: Past | None = None) -> None:
        """limit: bytes that a chunk should not be larger than. history: of each row, where receivers have it too."""
        self._block_units, self._limit, self._history = block_units, limit, history
        self._classes = Classes()
        #: Bytes a change, in the last chunk.
        self._rate = _RATE
        self._found: Counts
        self._fresh = self._dense = False
        #: What was prepared, but is not in a chunk yet.
        self._next: _Ranked | None = None
        #: The changes (`symbols`) of the chunk at hand, class after class; after them those of the block scanned last.
        self._items: NDArray[np.uint64] | None = None
        self._filled = np.zeros(MAX_CLASSES, np.int64)
        self._state = np.empty(SCAN_BYTES, np.uint8)
        self._begin()

    def _begin(self) -> None:
        self._ranked: list[_Ranked] = []
        self._window: NDArray[np.uint8] | None = None
        self._order: list[Block] = []
        self._coded: list[fast.Coded] = []
        self._size = self._worst = self._changed = 0

    def scan(self, old: int, new: int, count: int, positions: NDArray[np.uint32], olds: Units, steps: Units) -> int:
        """`kernels.scan`, which of 16-bit units also ranks what it finds, for the block that is prepared next."""
        if steps.itemsize != WIDTH:
            return scan(old, new, count, positions, olds, steps)
        classes = self._classes
        first = classes.window is None
        # After a block that was too dense to be ranked another one is likely.
        ranked = not first and not self._dense
        found = (self._rank if ranked else scan)(old, new, count, positions, olds, steps)
        self._dense = found > _DENSE * count
        if found and not self._dense:
            classes.see(old, count, olds[:found], steps[:found])
            if first or classes.stale():
                self._fresh, ranked = True, False
            if not ranked:
                self._rank(old, new, count, positions, olds, steps)
        return found

    def _rank(self, old: int, new: int, count: int, positions: NDArray[np.uint32], olds: Units, steps: Units) -> int:
        classes = self._classes
        window, items, state = classes.window, self._room(count), self._state
        assert window is not None
        counts = np.empty((2, MAX_CLASSES), np.int64)
        found = scan_ranked(old, new, count, window, positions, olds, steps, counts, items, self._filled, state)
        self._found = counts[:, : classes.number]
        return found

    def _room(self, count: int) -> NDArray[np.uint64]:
        """Where changes go, with room for `count` more of each class."""
        wanted = self._changed + count
        if self._items is None:
            self._items = _take_room(wanted)
        elif self._items.shape[1] < wanted:
            self._items = _longer(self._items, self._filled, wanted)
        return self._items

    def prepare(self, block: Block, row: Row) -> Prepared:
        """Look at a block that was found by the last `scan`."""
        positions, worst = block.positions, fast.most_bytes(block)
        if (
            positions is None
            or positions.size > _DENSE * block.count
            or block.steps.itemsize != WIDTH
            or not (row.before and row.after)
        ):
            coded = fast.code_block(block, row)
            return Prepared(block, coded.changed, coded.size, worst, coded)
        ranked = _Ranked(block, row, self._found)
        fresh, self._fresh, self._next = self._fresh, False, ranked
        size = _HEAD_BYTES + int(self._rate * positions.size)
        return Prepared(block, positions.size, size, worst, None, ranked, fresh)

    def fits(self, prepared: Prepared) -> bool:
        """Whether the chunk at hand, which has blocks, should take one more."""
        if prepared.fresh and self._ranked:
            return False
        # What profile `fast` would take at most: no chunk ever takes more.
        worst = self._worst + prepared.worst
        if len(self._ranked) == MAX_BLOCKS or len(self._order) == MOST_BLOCKS:
            return False
        return self._size + prepared.size <= self._limit and worst <= min(12 * self._limit, MAX_CHANGED)

    def add(self, prepared: Prepared) -> None:
        """Append a block."""
        self._order.append(prepared.block)
        self._size += prepared.size
        self._worst += prepared.worst
        if prepared.coded is not None:
            self._coded.append(prepared.coded)
        ranked = prepared.ranked
        if ranked is not None:
            # The classes may be others by the time that the chunk is closed.
            if not self._ranked:
                self._window = self._classes.window
            self._ranked.append(ranked)
            sizes = ranked.counts[0]
            self._filled[: sizes.size] += sizes
            self._changed += prepared.changed
            self._next = None

    def close(self) -> tuple[int, bytes]:
        """The profile's code and the body of the chunk at hand; a new one begins."""
        rows = {ranked.block.row: ranked.row for ranked in self._ranked}
        code = CODE if self._history is None else CODE_HISTORY
        found = (code, self._body()) if self._ranked else (fast.CODE, self._fast_body(rows))
        if self._ranked:
            size, changed = len(found[1]), self._changed
            self._rate = min(3.0, size / changed)
            if size < _SMALL or size > self._worst or size / changed > _SURE * self._fast_rate():
                body = self._fast_body(rows)
                if len(body) <= size:
                    found = fast.CODE, body
        self._forget()
        self._begin()
        self._classes.begin()
        return found

    def _forget(self) -> None:
        """Give up the changes of the chunk at hand; those of a block that is to come into the next one come first."""
        if self._items is not None:
            if self._next is None:
                _give_room(self._items)
                self._items = None
            else:
                for row, first, size in zip(self._items, self._filled, self._next.counts[0], strict=False):
                    row[:size] = row[first : first + size].copy()
        self._filled[:] = 0

    def _fast_rate(self) -> float:
        """Bytes a change in profile `fast`, by the chunk's first blocks: one alone may be small, and mostly headers."""
        writer, changed = fast.FastWriter(self._block_units), 0
        for ranked in self._ranked:
            block, wanted = ranked.block, _SAMPLE - changed
            assert block.positions is not None
            part = replace(block, positions=block.positions[:wanted], steps=block.steps[:wanted])
            writer.add(fast.code_block(part, ranked.row))
            changed += part.changed
            if changed >= _SAMPLE:
                break
        return len(writer.finish()) / changed

    def _fast_body(self, rows: dict[int, Row]) -> bytes:
        """All blocks, in profile `fast`."""
        writer = fast.FastWriter(self._block_units)
        coded = iter(self._coded)
        ranked = {id(ranked.block) for ranked in self._ranked}
        for block in self._order:
            writer.add(fast.code_block(block, rows[block.row]) if id(block) in ranked else next(coded))
        return writer.finish()

    def _body(self) -> bytes:
        assert self._window is not None
        counts = np.stack([ranked.counts for ranked in self._ranked])
        sizes, totals = np.ascontiguousarray(counts[:, 0]), counts[:, 1].sum(axis=0)
        items = self._items
        assert items is not None
        tables = Tables.choose(self._window, totals, sizes, items)
        bits = np.empty(symbols.most_bytes(self._changed, len(sizes)), np.uint8)
        ends = np.empty(len(sizes), np.int64)
        used = symbols.write_symbols(sizes, items, *tables.writers(signs=self._history is None), bits, ends)
        heads = write_heads([self._place(ranked.block) for ranked in self._ranked], sizes, ends)
        meta = pack_streams([tables.to_bytes(), heads])
        rest = b""
        if self._coded:
            writer = fast.FastWriter(self._block_units)
            for coded in self._coded:
                writer.add(coded)
            rest = writer.finish()
        lengths = [varint(len(meta)), varint(used), varint(len(rest))]
        if self._history is None:
            return b"".join([*lengths, meta, bits[bits.size - used :].data, rest])
        signs = self._signs(self._history)
        lengths += [varint(len(signs.raw)), varint(len(signs.gaps)), varint(signs.surprises)]
        way = bytes([2 * signs.rice + signs.usual])
        return b"".join([*lengths, way, meta, bits[bits.size - used :].data, signs.raw, signs.gaps, rest])

    def _signs(self, history: Past) -> Signs:
        writer = SignWriter()
        for ranked in self._ranked:
            block = ranked.block
            assert block.positions is not None
            writer.add(history(block.row), block.start, block.positions, block.steps)
        return writer.finish()

    def _place(self, block: Block) -> tuple[int, int]:
        return block.row, block.start // block_span(WIDTH, self._block_units)


def _take_room(wanted: int) -> NDArray[np.uint64]:
    """Room for so many changes of each class: what this thread has kept, if that is enough.

    What is kept is nobody's until it is taken: encoders of one thread may take turns. Only what is written to takes
    memory.
    """
    kept: NDArray[np.uint64] | None = _local.__dict__.pop("items", None)
    if kept is not None and kept.shape[1] >= wanted:
        return kept
    # Rows of a power of two would meet in the same lines of a cache.
    return np.empty((MAX_CLASSES, max(wanted, _ROOM) + _SHIFTED), np.uint64)


def _give_room(items: NDArray[np.uint64]) -> None:
    _local.items = items


def _longer(items: NDArray[np.uint64], filled: Counts, wanted: int) -> NDArray[np.uint64]:
    """The same with more room, and the first `filled[c]` entries of each class."""
    longer = _take_room(2 * wanted)
    for c in range(MAX_CLASSES):
        longer[c, : filled[c]] = items[c, : filled[c]]
    return longer
