"""Profile `tight` with a history, which a receiver must have too: changes told apart by whether their units are known.

A unit is *known* if it changed before. Of each block the known units, and the others, are taken out of it, in order;
what changes among the ones and among the others is coded as profile `tight` codes a block, with classes, tables and
heads of their own. A known unit is likely to change, and mostly the way it went last. A chunk's body:

    varints  bytes of the others' meta part and symbols, of those of the known units, of the signs, of the rest
    then     these six parts

Where the symbols of the known units hold no signs, `surprises` tells these; else the signs take no bytes. Of either
kind of units nothing may be told. The rest is a body of profile `fast`, or nothing, as in `tight`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.block_headers import MAX_BLOCKS
from p2psync.delta.block import Block, block_span
from p2psync.delta.fast.codec import CodedBlock, FAST_CODE, code_block, most_bytes
from p2psync.delta.history import ChangeHistory, Past, add_chosen, choose_units, count_both_scales, part_changes
from p2psync.delta.kernels.simd import MAX_CLASSES
from p2psync.delta.kernels.unit_loops import GROUP, address, gather_at, plain
from p2psync.delta.streams import Parts, varint
from p2psync.delta.tensors import Row, Units
from p2psync.delta.tight.change_finder import DENSE
from p2psync.delta.tight.class_index import SCAN_BYTES, scan_ranked
from p2psync.delta.tight.class_choice import best_window, count_steps, empty_changes
from p2psync.delta.tight.scratch import Room
from p2psync.delta.tight.sign_residuals import SignWriter
from p2psync.delta.tight.writer import (
    FIRST_RATE,
    MAX_BLOCKS,
    MAX_CHANGED,
    WIDTH,
    code_ranked,
    fast_body,
    may_be_ranked,
    surely_less,
)

CODE = 3
#: Bytes that the heads of a block take, about.
_HEAD_BYTES = 24
Meta = tuple[bytes, memoryview]
_NOTHING: Meta = b"", memoryview(b"")


class _Changes(NamedTuple):
    """Changes of a block: positions in it, u32, and steps, u16."""

    positions: NDArray[np.uint32]
    steps: Units


class Piece(NamedTuple):
    """A block on its way into a chunk. size, worst: bytes that it may take, and in profile `fast`.

    coded: of a block that is not ranked. Of others old, past: units and history of its tensor; sides: the changes of
    other units, and of known ones.
    """

    block: Block
    row: Row
    changed: int
    size: int
    worst: int
    coded: CodedBlock | None = None
    old: Units = np.empty(0, np.uint16)
    past: ChangeHistory | None = None
    sides: tuple[_Changes, ...] = ()


class PastWriter:
    """The chunks of one encoder, one after another. Blocks come in rising order.

    Of a tensor whose row was begun the old units and the history are read until the chunk of its last block is closed.
    """

    def __init__(self, block_units: int, limit: int, history: Past) -> None:
        """limit: bytes that a chunk should not be larger than; history: of each row, where receivers have it too."""
        self._block_units, self._history = block_units, history
        self._limit, self._most = limit, min(12 * limit, MAX_CHANGED)
        #: Bytes a change, in the last chunk.
        self._rate = FIRST_RATE
        #: Of the row that was begun.
        self._old = np.empty(0, np.uint16)
        self._past: ChangeHistory | None = None
        self._scratch = np.empty((2, block_span(WIDTH, block_units) + GROUP), np.uint16)
        self._state = np.empty(SCAN_BYTES, np.uint8)
        self._begin()

    def _begin(self) -> None:
        self._pieces: list[Piece] = []
        self._ranked: list[Piece] = []
        self._size = self._worst = 0
        self._units = np.zeros((2, 256), np.int64)
        self._changes = empty_changes(), empty_changes()

    def begin_row(self, index: int, row: Row, old: Units | None) -> None:
        """Blocks of this row follow. Raises `ValueError` if its history is that of another tensor."""
        if not may_be_ranked(row) or old is None:
            return
        self._old, self._past = old, self._history(index)
        if self._past is not None and self._past.count != row.spec.count:
            raise ValueError(f"the history of {row.spec.name} is that of another tensor")

    def prepare(self, block: Block, row: Row) -> Piece:
        """Find out how a block of the row that was begun is to be coded. Raises `ValueError` for places outside it, and
        steps of 0."""
        changed = block.changed
        if not may_be_ranked(row) or block.positions is None or changed > DENSE * block.count:
            coded = code_block(block, row)
            return Piece(block, row, coded.changed, coded.size, most_bytes(coded.block), coded)
        if int(block.positions.max()) >= block.count:
            raise ValueError("the block has positions outside its own range")
        if not block.steps.all():
            raise ValueError("the block has steps of 0")
        size = _HEAD_BYTES + int(self._rate * changed)
        sides = _parted(block, self._past)
        return Piece(block, row, changed, size, most_bytes(block), None, self._old, self._past, sides)

    def fits(self, piece: Piece) -> bool:
        """Whether the chunk at hand, which has blocks, should take one more."""
        # A block has up to two heads.
        if 2 * len(self._ranked) >= MAX_BLOCKS - 1 or len(self._pieces) == MAX_BLOCKS:
            return False
        return self._size + piece.size <= self._limit and self._worst + piece.worst <= self._most

    def add(self, piece: Piece) -> None:
        """Append a block."""
        self._pieces.append(piece)
        if piece.coded is None:
            self._ranked.append(piece)
            self._see(piece)
        self._size += piece.size
        self._worst += piece.worst

    def close(self) -> tuple[int, Parts]:
        """The code of its profile and the parts of the body of the chunk at hand; a new one begins."""
        found = None
        if self._ranked:
            body, changed = self._body(), sum(piece.changed for piece in self._ranked)
            self._rate = min(3.0, len(body) / changed)
            blocks = ((piece.block, piece.row) for piece in self._ranked)
            found = CODE, body
            sure = surely_less(len(body), changed, self._worst, blocks, self._block_units)
        if found is None or not sure:
            coded = (piece.coded or code_block(piece.block, piece.row) for piece in self._pieces)
            body = fast_body(coded, self._block_units)
            found = (FAST_CODE, body) if found is None or len(body) <= len(found[1]) else found
        self._begin()
        return found[0], [found[1]]

    def _see(self, piece: Piece) -> None:
        """Add a block to the histograms, while its old units are in the cache."""
        block, place = piece.block, address(piece.old) + WIDTH * piece.block.start
        none = 0, np.zeros(-(-block.count // GROUP), np.uint64)
        start, known = none if piece.past is None else (block.start, piece.past.known)
        count_both_scales(place, known, start, block.count, self._units)
        for side, changes in zip(piece.sides, self._changes, strict=True):
            olds = np.empty(side.steps.size, np.uint16)
            gather_at(place, side.positions, block.count, olds)
            count_steps(olds, side.steps, changes)

    def _body(self) -> bytes:
        (others,) = self._part(0, (True,))
        known, signs = self._known_part()
        parts: list[bytes | memoryview] = [*others, *known, signs]
        coded = [piece.coded for piece in self._pieces if piece.coded is not None]
        parts.append(fast_body(coded, self._block_units) if coded else b"")
        return b"".join([*(varint(len(part)) for part in parts), *parts])

    def _known_part(self) -> tuple[Meta, bytes]:
        """The known units' meta part and symbols, and the signs: whichever way takes fewer bytes."""
        writer = SignWriter()
        for piece in self._ranked:
            if piece.past is not None:
                writer.add(piece.past, piece.block.start, *piece.sides[1])
        signs = writer.finish()
        told, untold = self._part(1, (True, False))
        if not untold[0] or sum(map(len, told)) <= sum(map(len, untold)) + len(signs):
            return told, b""
        return untold, signs

    def _part(self, wanted: int, signs: tuple[bool, ...]) -> list[Meta]:
        """Meta part and symbols of the changes among the known units (1), or the others (0): with signs and without."""
        window = best_window(self._units[wanted], self._changes[wanted])
        room, parts = Room.take(), []
        blocks, most = self._rank(wanted, window, room)
        for told in signs if blocks else ():
            # Items are not what they were afterwards.
            items = room.items if told is signs[-1] else room.items[:, :most].copy()
            places, counts = room.places[:blocks, :2], room.counts[:blocks]
            parts.append(code_ranked(window, places, counts, items, self._block_units, signs=told))
        room.give()
        return parts if blocks else [_NOTHING] * len(signs)

    def _rank(self, wanted: int, window: NDArray[np.uint8], room: Room) -> tuple[int, int]:
        """Rank these changes; returns how many blocks have some, and the most of one class."""
        filled, blocks, changed = np.zeros(MAX_CLASSES, np.int64), 0, 0
        for piece in self._ranked:
            more = piece.sides[wanted].steps.size
            if more:
                left, right, count = self._chosen(piece, wanted)
                room.grow(filled, changed, count)
                found = room.positions, room.olds, room.steps, changed, room.counts[blocks], room.items, filled
                scan_ranked(left, right, count, window, *found, self._state, 0)
                room.places[blocks] = piece.block.row, piece.block.start, count, more
                filled += room.counts[blocks, 0]
                blocks, changed = blocks + 1, changed + more
        return blocks, int(filled.max())

    def _chosen(self, piece: Piece, wanted: int) -> tuple[int, int, int]:
        """Addresses of old and new units of one kind of a block, and how many they are."""
        block, past, (positions, steps) = piece.block, piece.past, piece.sides[wanted]
        place, (before, after) = address(piece.old) + WIDTH * block.start, self._scratch
        if past is None:
            after[: block.count] = piece.old[block.start : block.start + block.count]
            after[positions] += steps
            return place, address(after), block.count
        count = choose_units(place, past.known, block.start, block.count, wanted, before)
        after[:count] = before[:count]
        add_chosen(past.known, block.start, wanted, positions, steps, after)
        return address(before), address(after), count


def _parted(block: Block, past: ChangeHistory | None) -> tuple[_Changes, _Changes]:
    """A block's changes of other units, and of known ones."""
    assert block.positions is not None
    positions, steps = plain(block.positions), plain(block.steps)
    if past is None:
        return _Changes(positions, steps), _Changes(np.empty(0, np.uint32), np.empty(0, np.uint16))
    places, moves = np.empty((2, steps.size), np.uint32), np.empty((2, steps.size), np.uint16)
    known = part_changes(past.known, block.start, positions, steps, places, moves)
    rest = steps.size - known
    return _Changes(places[0, :rest], moves[0, :rest]), _Changes(places[1, :known], moves[1, :known])
