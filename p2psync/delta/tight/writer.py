"""Encoder of profile `tight`: positions and steps coded by the class of the old weight, which the receiver knows.

A chunk's body:

    varint   bytes of the meta part
    varint   bytes of the symbols
    varint   bytes of the rest
    then     the meta part (two `streams`: tables, headers), the symbols, the rest (a body of profile `fast`, or
    nothing)

`class_index` defines classes and class indices, `symbols` the coding of changes, `tables` the tables and headers;
`reader` decodes, and `history_writer` encodes with a change history. Blocks of 16-bit tensors that exist before and
after are *tight blocks*, unless they are dense; all other blocks are in the `fast` body. A chunk that would be no
smaller is coded by profile `fast` as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.block import Block, block_span
from p2psync.delta.block_headers import MAX_BODY_BLOCKS
from p2psync.delta.fast.codec import (
    FAST_CODE,
    CodedBlock,
    FastWriter,
    code_block,
    fast_bytes_bound,
    gap_bytes,
    may_be_dense,
)
from p2psync.delta.streams import ByteParts, pack_streams, varint
from p2psync.delta.tensors import TableRow
from p2psync.delta.tight import symbols
from p2psync.delta.tight.change_finder import UNIT_BYTES, ChangeFinder, FindProgress
from p2psync.delta.tight.class_choice import IntArray
from p2psync.delta.tight.sample import ChangeSample
from p2psync.delta.tight.tables import SymbolTables, write_tight_headers

TIGHT = "tight"
TIGHT_CODE = 2
#: Changes at the start of a chunk that are coded by both profiles. If `tight` takes more than `_SURE_SHARE` of the
#: bytes of `fast` there, the whole chunk is coded by both.
_SAMPLE_CHANGES, _SURE_SHARE = 1024, 0.93
#: Bodies of fewer bytes than this are always coded by both profiles.
_SMALL_BYTES = 1 << 13
#: Estimated bytes of a change in the first chunk.
FIRST_CHANGE_BYTES = 0.9


class TightWriter:
    """Collects blocks, in rising order, and writes the bodies of one encoder's chunks."""

    def __init__(self, block_units: int, limit: int) -> None:
        """limit: intended maximum bytes of a chunk."""
        self._block_units = block_units
        #: Bytes of a change in the last chunk.
        self._rate = FIRST_CHANGE_BYTES
        self._finder = ChangeFinder(limit, MAX_BODY_BLOCKS)
        #: Of the current chunk: blocks of profile `fast`, and the rows of tight blocks.
        self._fast_blocks: list[CodedBlock] = []
        self._rows: dict[int, TableRow] = {}

    def codes_tightly(self, row: TableRow) -> bool:
        """Returns whether blocks of a row become tight blocks, unless they are dense."""
        return may_code_tightly(row)

    def add_sample(self, sample: ChangeSample) -> None:
        """Add a sample to the choice of classes; before the first `advance`."""
        self._finder.add_sample(sample)

    def advance(
        self, index: int, row: TableRow, old: int, new: int, first: int, stop: int, sums: int = 0
    ) -> FindProgress:
        """Find the changes of units `first` to `stop` of such a row, block after block, and add its tight blocks.

        old, new: addresses of the row's first units. sums: see `ChangeFinder.advance`. Returns early if the current
        chunk is full, which the caller then closes before it goes on, or after a dense block, which the caller adds.
        """
        self._rows[index] = row
        units = first, stop, block_span(UNIT_BYTES, self._block_units)
        return self._finder.advance(row.spec, index, old, new, units, self._rate, sums)

    def prepare(self, block: Block, row: TableRow) -> CodedBlock:
        """Code a block by profile `fast`."""
        return code_block(block, row)

    def fits(self, coded: CodedBlock) -> bool:
        """Returns whether the current chunk, which has blocks, has space for one more."""
        return self._finder.fits(coded.size, fast_bytes_bound(coded.block))

    def add(self, coded: CodedBlock) -> None:
        """Append a block of profile `fast`."""
        self._fast_blocks.append(coded)
        self._finder.add_fast_block(coded.size, fast_bytes_bound(coded.block))

    def close(self) -> tuple[int, ByteParts]:
        """End the current chunk: returns its profile's code and the parts of its body."""
        finder = self._finder
        code, parts = (TIGHT_CODE, self._body()) if finder.blocks else (FAST_CODE, [self._fast_body()])
        if finder.blocks:
            size = sum(map(len, parts))
            self._rate = min(3.0, size / finder.changed)
            if not is_surely_smaller(size, finder.changed, finder.fast_bound, self._tight_blocks(), self._block_units):
                body = self._fast_body()
                if len(body) <= size:
                    code, parts = FAST_CODE, [body]
        finder.begin_chunk()
        self._fast_blocks, self._rows = [], {}
        return code, parts

    def _tight_blocks(self) -> Iterator[tuple[Block, TableRow]]:
        blocks = (self._finder.block(number) for number in range(self._finder.blocks))
        return ((block, self._rows[block.row]) for block in blocks)

    def _fast_body(self) -> bytes:
        """The body of all blocks in profile `fast`."""
        coded = [*self._fast_blocks, *(code_block(*pair) for pair in self._tight_blocks())]
        return fast_body(sorted(coded, key=lambda one: (one.block.row, one.block.start)), self._block_units)

    def _body(self) -> ByteParts:
        finder = self._finder
        assert finder.window is not None
        found = finder.window, finder.block_table[:, :2], finder.counts, finder.items
        meta, bits = code_tight_part(*found, self._block_units)
        rest = fast_body(self._fast_blocks, self._block_units) if self._fast_blocks else b""
        return [*(varint(len(part)) for part in (meta, bits, rest)), meta, bits, rest]


def may_code_tightly(row: TableRow) -> bool:
    """Returns whether blocks of a row may be tight blocks, unless they are dense."""
    return row.before and row.after and row.spec.width == UNIT_BYTES


def code_tight_part(
    window: NDArray[np.uint8],
    starts: IntArray,
    counts: IntArray,
    items: NDArray[np.uint64],
    block_units: int,
    *,
    signs: bool = True,
) -> tuple[bytes, memoryview]:
    """The meta part and the symbols of tight blocks.

    window: classes, see `class_choice.best_window`. starts: i64 (blocks, 2), row and first unit. counts: i64 (blocks,
    2, 8), changes and units of each class. items: u64 (8, capacity), the changes of each class, overwritten. signs:
    whether the symbols include signs.
    """
    classes = int(window[-1]) + 1
    sizes, totals = counts[:, 0, :classes].copy(), counts[:, 1, :classes].sum(axis=0)
    tables = SymbolTables.choose(window, totals, sizes, items, signs)
    bits = np.empty(symbols.symbol_bytes_bound(int(sizes.sum()), len(sizes)), np.uint8)
    ends = np.empty(len(sizes), np.int64)
    used = symbols.write_symbols(sizes, items, *tables.encode_tables(signs), bits, ends)
    block_keys = starts // (1, block_span(UNIT_BYTES, block_units))
    return pack_streams([tables.to_bytes(), write_tight_headers(block_keys, sizes, ends)]), bits[
        bits.size - used :
    ].data


def fast_body(coded: Iterable[CodedBlock], block_units: int) -> bytes:
    """A body of profile `fast`, of blocks in rising order."""
    writer = FastWriter(block_units)
    for one in coded:
        writer.add(one)
    return b"".join(writer.close()[1])


def is_surely_smaller(
    size: int, changed: int, fast_bound: int, blocks: Iterator[tuple[Block, TableRow]], block_units: int
) -> bool:
    """Returns whether a body of `size` bytes is surely smaller than one of profile `fast`.

    changed: changes in the tight blocks. fast_bound: bytes in profile `fast`, at most. blocks: the tight blocks and
    their rows; only the first are read.
    """
    if size < _SMALL_BYTES or size > fast_bound:
        return False
    rate, (first, row) = size / changed, next(blocks)
    # The gaps alone mostly decide, and are cheaper to code than the whole sample.
    return rate <= _SURE_SHARE * _gap_rate(first) or rate <= _SURE_SHARE * _fast_rate(
        chain([(first, row)], blocks), block_units
    )


def _gap_rate(block: Block) -> float:
    """Bytes of gaps for a change in profile `fast`, by one block; 0 if the block is too small or dense."""
    assert block.positions is not None
    sample = replace(block, positions=block.positions[:_SAMPLE_CHANGES], steps=block.steps[:_SAMPLE_CHANGES])
    if sample.changed < _SAMPLE_CHANGES or may_be_dense(sample):
        return 0.0
    return gap_bytes(sample) / _SAMPLE_CHANGES


def _fast_rate(blocks: Iterable[tuple[Block, TableRow]], block_units: int) -> float:
    """Bytes of a change in profile `fast`, by the chunk's first blocks; a single small one would be mostly headers."""
    coded, changed = [], 0
    for block, row in blocks:
        wanted = _SAMPLE_CHANGES - changed
        assert block.positions is not None
        part = replace(block, positions=block.positions[:wanted], steps=block.steps[:wanted])
        coded.append(code_block(part, row))
        changed += part.changed
        if changed >= _SAMPLE_CHANGES:
            break
    return len(fast_body(coded, block_units)) / changed
