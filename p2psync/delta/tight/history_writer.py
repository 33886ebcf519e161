"""Encoder of history-conditioned `tight` chunks: changes coded apart by whether their units changed before.

Every receiver must have the same change history. A unit is *known* if it changed before. The known units of each block,
in order, form one sequence, and the other units another. The changes in either sequence are coded as profile `tight`
codes a block, in a part with classes, tables and headers of its own. A known unit is likely to change again, and mostly
in its last direction. A chunk's body:

    varints  bytes of the others' meta part and symbols, of those of the known units, of the signs, of the rest
    then     these six parts

The signs of known units are either in their symbols, and then the signs take no bytes, or coded as `sign_residuals`.
One of the two parts may be empty. The rest is a body of profile `fast`, or nothing, as in `tight`.
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
from p2psync.delta.tensors import TableRow, Units
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
#: Bytes of a block's headers in both parts, about.
_HEADER_BYTES = 24
CodedPart = tuple[bytes, memoryview]
_NOTHING: CodedPart = b"", memoryview(b"")


class _ChangeList(NamedTuple):
    """Changes of a block: positions in it (u32), and steps (u16)."""

    positions: NDArray[np.uint32]
    steps: Units


class PreparedBlock(NamedTuple):
    """A block to be added to a chunk.

    size: estimated bytes. fast_bound: bytes in profile `fast`, at most. coded: the coded block, unless it is a tight
    block. For a tight block: old and history, the old units and the history of its tensor; changes, those of other
    units and those of known units.
    """

    block: Block
    row: TableRow
    changed: int
    size: int
    fast_bound: int
    coded: CodedBlock | None = None
    old: Units = np.empty(0, np.uint16)
    history: ChangeHistory | None = None
    changes: tuple[_ChangeList, ...] = ()


class HistoryWriter:
    """Collects blocks, in rising order, and writes the bodies of one encoder's chunks.

    Reads a tensor's old units and history from `begin_row` on until the chunk of its last block is closed.
    """

    def __init__(self, block_units: int, limit: int, history: HistoryLookup) -> None:
        """limit: intended maximum bytes of a chunk. history: returns a row's history, if receivers have it too."""
        self._block_units, self._history = block_units, history
        self._limit, self._most = limit, min(12 * limit, MAX_TIGHT_CHANGES)
        #: Bytes of a change in the last chunk.
        self._rate = FIRST_CHANGE_BYTES
        #: Of the current row.
        self._old = np.empty(0, np.uint16)
        self._row_history: ChangeHistory | None = None
        self._scratch = np.empty((2, block_span(UNIT_BYTES, block_units) + GROUP), np.uint16)
        self._state = np.empty(SCAN_BYTES, np.uint8)
        self._begin()

    def _begin(self) -> None:
        self._prepared: list[PreparedBlock] = []
        self._tight: list[PreparedBlock] = []
        self._size = self._fast_bound = 0
        self._units = np.zeros((2, 256), np.int64)
        self._changes = empty_changes(), empty_changes()

    def begin_row(self, index: int, row: TableRow, old: Units | None) -> None:
        """Begin a row, whose blocks follow. Raises `ValueError` if its history is that of another tensor."""
        if not may_code_tightly(row) or old is None:
            return
        self._old, self._row_history = old, self._history(index)
        if self._row_history is not None and self._row_history.count != row.spec.count:
            raise ValueError(f"the history of {row.spec.name} is that of another tensor")

    def prepare(self, block: Block, row: TableRow) -> PreparedBlock:
        """Prepare a block of the current row: as a tight block, or coded by profile `fast`.

        Raises `ValueError` for positions outside the block, and for steps of 0.
        """
        changed = block.changed
        if not may_code_tightly(row) or block.positions is None or changed > MAX_SPARSE_SHARE * block.count:
            coded = code_block(block, row)
            return PreparedBlock(block, row, coded.changed, coded.size, fast_bytes_bound(coded.block), coded)
        if int(block.positions.max()) >= block.count:
            raise ValueError("the block has positions outside its own range")
        if not block.steps.all():
            raise ValueError("the block has steps of 0")
        size = _HEADER_BYTES + int(self._rate * changed)
        changes = _split_changes(block, self._row_history)
        return PreparedBlock(
            block, row, changed, size, fast_bytes_bound(block), None, self._old, self._row_history, changes
        )

    def fits(self, prepared: PreparedBlock) -> bool:
        """Returns whether the current chunk, which has blocks, has space for one more."""
        # A block has up to two headers.
        if 2 * len(self._tight) >= MAX_TIGHT_BLOCKS - 1 or len(self._prepared) == MAX_BODY_BLOCKS:
            return False
        return self._size + prepared.size <= self._limit and self._fast_bound + prepared.fast_bound <= self._most

    def add(self, prepared: PreparedBlock) -> None:
        """Append a block."""
        self._prepared.append(prepared)
        if prepared.coded is None:
            self._tight.append(prepared)
            self._count(prepared)
        self._size += prepared.size
        self._fast_bound += prepared.fast_bound

    def close(self) -> tuple[int, ByteParts]:
        """End the current chunk: returns its profile's code and the parts of its body."""
        result = None
        if self._tight:
            body, changed = self._body(), sum(prepared.changed for prepared in self._tight)
            self._rate = min(3.0, len(body) / changed)
            blocks = ((prepared.block, prepared.row) for prepared in self._tight)
            result = HISTORY_CODE, body
            is_smaller = is_surely_smaller(len(body), changed, self._fast_bound, blocks, self._block_units)
        if result is None or not is_smaller:
            coded = (prepared.coded or code_block(prepared.block, prepared.row) for prepared in self._prepared)
            body = fast_body(coded, self._block_units)
            result = (FAST_CODE, body) if result is None or len(body) <= len(result[1]) else result
        self._begin()
        return result[0], [result[1]]

    def _count(self, prepared: PreparedBlock) -> None:
        """Add a block to the histograms, while its old units are in the cache."""
        block, start_address = prepared.block, address(prepared.old) + UNIT_BYTES * prepared.block.start
        none = 0, np.zeros(-(-block.count // GROUP), np.uint64)
        start, known = none if prepared.history is None else (block.start, prepared.history.known)
        count_scales_by_history(start_address, known, start, block.count, self._units)
        for changes, histogram in zip(prepared.changes, self._changes, strict=True):
            olds = np.empty(changes.steps.size, np.uint16)
            gather_at(start_address, changes.positions, block.count, olds)
            count_steps(olds, changes.steps, histogram)

    def _body(self) -> bytes:
        (others,) = self._part(0, (True,))
        known, signs = self._known_part()
        parts: list[bytes | memoryview] = [*others, *known, signs]
        coded = [prepared.coded for prepared in self._prepared if prepared.coded is not None]
        parts.append(fast_body(coded, self._block_units) if coded else b"")
        return b"".join([*(varint(len(part)) for part in parts), *parts])

    def _known_part(self) -> tuple[CodedPart, bytes]:
        """The known units' part and their signs: signs in the symbols or as residuals, whichever takes fewer bytes."""
        writer = SignResidualWriter()
        for prepared in self._tight:
            if prepared.history is not None:
                writer.add(prepared.history, prepared.block.start, *prepared.changes[1])
        signs = writer.finish()
        with_signs, without_signs = self._part(1, (True, False))
        if not without_signs[0] or sum(map(len, with_signs)) <= sum(map(len, without_signs)) + len(signs):
            return with_signs, b""
        return without_signs, signs

    def _part(self, wanted: int, signs: tuple[bool, ...]) -> list[CodedPart]:
        """Meta part and symbols of the changes of known units (1) or of other units (0), for each entry of `signs`."""
        window = best_window(self._units[wanted], self._changes[wanted])
        scratch, parts = ScratchBuffers.take(), []
        blocks, most = self._index_changes(wanted, window, scratch)
        for include_signs in signs if blocks else ():
            # Coding overwrites the items, so all but the last get a copy.
            items = scratch.items if include_signs is signs[-1] else scratch.items[:, :most].copy()
            starts, counts = scratch.block_table[:blocks, :2], scratch.counts[:blocks]
            parts.append(code_tight_part(window, starts, counts, items, self._block_units, signs=include_signs))
        scratch.give()
        return parts if blocks else [_NOTHING] * len(signs)

    def _index_changes(self, wanted: int, window: NDArray[np.uint8], scratch: ScratchBuffers) -> tuple[int, int]:
        """Compute the class indices of these changes; returns the number of their blocks, and the most of one class."""
        filled, blocks, changed = np.zeros(MAX_CLASSES, np.int64), 0, 0
        for prepared in self._tight:
            more = prepared.changes[wanted].steps.size
            if more:
                left, right, count = self._selected(prepared, wanted)
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
                scratch.block_table[blocks] = prepared.block.row, prepared.block.start, count, more
                filled += scratch.counts[blocks, 0]
                blocks, changed = blocks + 1, changed + more
        return blocks, int(filled.max())

    def _selected(self, prepared: PreparedBlock, wanted: int) -> tuple[int, int, int]:
        """The selected units of a block: addresses of the old and the new ones, and their number."""
        block, history, (positions, steps) = prepared.block, prepared.history, prepared.changes[wanted]
        start_address, (before, after) = address(prepared.old) + UNIT_BYTES * block.start, self._scratch
        if history is None:
            after[: block.count] = prepared.old[block.start : block.start + block.count]
            after[positions] += steps
            return start_address, address(after), block.count
        count = copy_selected(start_address, history.known, block.start, block.count, wanted, before)
        after[:count] = before[:count]
        add_to_selected(history.known, block.start, wanted, positions, steps, after)
        return address(before), address(after), count


def _split_changes(block: Block, history: ChangeHistory | None) -> tuple[_ChangeList, _ChangeList]:
    """A block's changes of other units, and of known units."""
    assert block.positions is not None
    positions, steps = plain(block.positions), plain(block.steps)
    if history is None:
        return _ChangeList(positions, steps), _ChangeList(np.empty(0, np.uint32), np.empty(0, np.uint16))
    split_positions, split_steps = np.empty((2, steps.size), np.uint32), np.empty((2, steps.size), np.uint16)
    known = split_changes(history.known, block.start, positions, steps, split_positions, split_steps)
    other = steps.size - known
    return (
        _ChangeList(split_positions[0, :other], split_steps[0, :other]),
        _ChangeList(split_positions[1, :known], split_steps[1, :known]),
    )
