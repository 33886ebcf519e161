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

from p2psync.delta.block import Block, block_span
from p2psync.delta.block_headers import MAX_BODY_BLOCKS
from p2psync.delta.fast.codec import FAST_CODE, CodedBlock, code_block, fast_bytes_bound
from p2psync.delta.history import (
    ChangeHistory,
    HistoryLookup,
    add_to_selected,
    copy_selected,
    count_scales_by_history,
    split_changes,
)
from p2psync.delta.kernels.simd import MAX_CLASSES
from p2psync.delta.kernels.unit_loops import GROUP, address, gather_at, plain
from p2psync.delta.streams import ByteParts, varint
from p2psync.delta.tensors import Row, Units
from p2psync.delta.tight.change_finder import MAX_SPARSE_SHARE, MAX_TIGHT_CHANGES, UNIT_BYTES
from p2psync.delta.tight.class_choice import best_window, count_steps, empty_changes
from p2psync.delta.tight.class_index import SCAN_BYTES, scan_class_indices
from p2psync.delta.tight.scratch import MAX_TIGHT_BLOCKS, ScratchBuffers
from p2psync.delta.tight.sign_residuals import SignResidualWriter
from p2psync.delta.tight.writer import (
    FIRST_CHANGE_BYTES,
    code_tight_part,
    fast_body,
    is_surely_smaller,
    may_code_tightly,
)

HISTORY_CODE = 3
#: Bytes that the heads of a block take, about.
_HEADER_BYTES = 24
CodedPart = tuple[bytes, memoryview]
_NOTHING: CodedPart = b"", memoryview(b"")


class _ChangeList(NamedTuple):
    """Changes of a block: positions in it, u32, and steps, u16."""

    positions: NDArray[np.uint32]
    steps: Units


class PreparedBlock(NamedTuple):
    """A block on its way into a chunk. size, worst: bytes that it may take, and in profile `fast`.

    coded: of a block that is not ranked. Of others old, past: units and history of its tensor; sides: the changes of
    other units, and of known ones.
    """

    block: Block
    row: Row
    changed: int
    size: int
    fast_bound: int
    coded: CodedBlock | None = None
    old: Units = np.empty(0, np.uint16)
    history: ChangeHistory | None = None
    sides: tuple[_ChangeList, ...] = ()


class HistoryWriter:
    """The chunks of one encoder, one after another. Blocks come in rising order.

    Of a tensor whose row was begun the old units and the history are read until the chunk of its last block is closed.
    """

    def __init__(self, block_units: int, limit: int, history: HistoryLookup) -> None:
        """limit: bytes that a chunk should not be larger than; history: of each row, where receivers have it too."""
        self._block_units, self._history = block_units, history
        self._limit, self._most = limit, min(12 * limit, MAX_TIGHT_CHANGES)
        #: Bytes a change, in the last chunk.
        self._rate = FIRST_CHANGE_BYTES
        #: Of the row that was begun.
        self._old = np.empty(0, np.uint16)
        self._row_history: ChangeHistory | None = None
        self._scratch = np.empty((2, block_span(UNIT_BYTES, block_units) + GROUP), np.uint16)
        self._state = np.empty(SCAN_BYTES, np.uint8)
        self._begin()

    def _begin(self) -> None:
        self._pieces: list[PreparedBlock] = []
        self._tight_blocks: list[PreparedBlock] = []
        self._size = self._worst = 0
        self._units = np.zeros((2, 256), np.int64)
        self._changes = empty_changes(), empty_changes()

    def begin_row(self, index: int, row: Row, old: Units | None) -> None:
        """Blocks of this row follow. Raises `ValueError` if its history is that of another tensor."""
        if not may_code_tightly(row) or old is None:
            return
        self._old, self._row_history = old, self._history(index)
        if self._row_history is not None and self._row_history.count != row.spec.count:
            raise ValueError(f"the history of {row.spec.name} is that of another tensor")

    def prepare(self, block: Block, row: Row) -> PreparedBlock:
        """Find out how a block of the row that was begun is to be coded. Raises `ValueError` for places outside it, and
        steps of 0."""
        changed = block.changed
        if not may_code_tightly(row) or block.positions is None or changed > MAX_SPARSE_SHARE * block.count:
            coded = code_block(block, row)
            return PreparedBlock(block, row, coded.changed, coded.size, fast_bytes_bound(coded.block), coded)
        if int(block.positions.max()) >= block.count:
            raise ValueError("the block has positions outside its own range")
        if not block.steps.all():
            raise ValueError("the block has steps of 0")
        size = _HEADER_BYTES + int(self._rate * changed)
        sides = _split_changes(block, self._row_history)
        return PreparedBlock(
            block, row, changed, size, fast_bytes_bound(block), None, self._old, self._row_history, sides
        )

    def fits(self, piece: PreparedBlock) -> bool:
        """Whether the chunk at hand, which has blocks, should take one more."""
        # A block has up to two heads.
        if 2 * len(self._tight_blocks) >= MAX_TIGHT_BLOCKS - 1 or len(self._pieces) == MAX_BODY_BLOCKS:
            return False
        return self._size + piece.size <= self._limit and self._worst + piece.fast_bound <= self._most

    def add(self, piece: PreparedBlock) -> None:
        """Append a block."""
        self._pieces.append(piece)
        if piece.coded is None:
            self._tight_blocks.append(piece)
            self._see(piece)
        self._size += piece.size
        self._worst += piece.fast_bound

    def close(self) -> tuple[int, ByteParts]:
        """The code of its profile and the parts of the body of the chunk at hand; a new one begins."""
        found = None
        if self._tight_blocks:
            body, changed = self._body(), sum(piece.changed for piece in self._tight_blocks)
            self._rate = min(3.0, len(body) / changed)
            blocks = ((piece.block, piece.row) for piece in self._tight_blocks)
            found = HISTORY_CODE, body
            sure = is_surely_smaller(len(body), changed, self._worst, blocks, self._block_units)
        if found is None or not sure:
            coded = (piece.coded or code_block(piece.block, piece.row) for piece in self._pieces)
            body = fast_body(coded, self._block_units)
            found = (FAST_CODE, body) if found is None or len(body) <= len(found[1]) else found
        self._begin()
        return found[0], [found[1]]

    def _see(self, piece: PreparedBlock) -> None:
        """Add a block to the histograms, while its old units are in the cache."""
        block, place = piece.block, address(piece.old) + UNIT_BYTES * piece.block.start
        none = 0, np.zeros(-(-block.count // GROUP), np.uint64)
        start, known = none if piece.history is None else (block.start, piece.history.known)
        count_scales_by_history(place, known, start, block.count, self._units)
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

    def _known_part(self) -> tuple[CodedPart, bytes]:
        """The known units' meta part and symbols, and the signs: whichever way takes fewer bytes."""
        writer = SignResidualWriter()
        for piece in self._tight_blocks:
            if piece.history is not None:
                writer.add(piece.history, piece.block.start, *piece.sides[1])
        signs = writer.finish()
        told, untold = self._part(1, (True, False))
        if not untold[0] or sum(map(len, told)) <= sum(map(len, untold)) + len(signs):
            return told, b""
        return untold, signs

    def _part(self, wanted: int, signs: tuple[bool, ...]) -> list[CodedPart]:
        """Meta part and symbols of the changes among the known units (1), or the others (0): with signs and without."""
        window = best_window(self._units[wanted], self._changes[wanted])
        scratch, parts = ScratchBuffers.take(), []
        blocks, most = self._rank(wanted, window, scratch)
        for told in signs if blocks else ():
            # Items are not what they were afterwards.
            items = scratch.items if told is signs[-1] else scratch.items[:, :most].copy()
            places, counts = scratch.places[:blocks, :2], scratch.counts[:blocks]
            parts.append(code_tight_part(window, places, counts, items, self._block_units, signs=told))
        scratch.give()
        return parts if blocks else [_NOTHING] * len(signs)

    def _rank(self, wanted: int, window: NDArray[np.uint8], scratch: ScratchBuffers) -> tuple[int, int]:
        """Rank these changes; returns how many blocks have some, and the most of one class."""
        filled, blocks, changed = np.zeros(MAX_CLASSES, np.int64), 0, 0
        for piece in self._tight_blocks:
            more = piece.sides[wanted].steps.size
            if more:
                left, right, count = self._selected(piece, wanted)
                scratch.grow(filled, changed, count)
                found = (
                    scratch.positions,
                    scratch.olds,
                    scratch.steps,
                    changed,
                    scratch.counts[blocks],
                    scratch.items,
                    filled,
                )
                scan_class_indices(left, right, count, window, *found, self._state, 0)
                scratch.places[blocks] = piece.block.row, piece.block.start, count, more
                filled += scratch.counts[blocks, 0]
                blocks, changed = blocks + 1, changed + more
        return blocks, int(filled.max())

    def _selected(self, piece: PreparedBlock, wanted: int) -> tuple[int, int, int]:
        """Addresses of old and new units of one kind of a block, and how many they are."""
        block, history, (positions, steps) = piece.block, piece.history, piece.sides[wanted]
        place, (before, after) = address(piece.old) + UNIT_BYTES * block.start, self._scratch
        if history is None:
            after[: block.count] = piece.old[block.start : block.start + block.count]
            after[positions] += steps
            return place, address(after), block.count
        count = copy_selected(place, history.known, block.start, block.count, wanted, before)
        after[:count] = before[:count]
        add_to_selected(history.known, block.start, wanted, positions, steps, after)
        return address(before), address(after), count


def _split_changes(block: Block, history: ChangeHistory | None) -> tuple[_ChangeList, _ChangeList]:
    """A block's changes of other units, and of known ones."""
    assert block.positions is not None
    positions, steps = plain(block.positions), plain(block.steps)
    if history is None:
        return _ChangeList(positions, steps), _ChangeList(np.empty(0, np.uint32), np.empty(0, np.uint16))
    places, moves = np.empty((2, steps.size), np.uint32), np.empty((2, steps.size), np.uint16)
    known = split_changes(history.known, block.start, positions, steps, places, moves)
    rest = steps.size - known
    return _ChangeList(places[0, :rest], moves[0, :rest]), _ChangeList(places[1, :known], moves[1, :known])
