"""The profile `tight`: positions and steps coded given the class of the old weight, which the receiver knows.

A chunk's body:

    varint   bytes of the meta part
    varint   bytes of the symbols
    varint   bytes of the rest
    then     the meta part (two `streams`: tables, heads), the symbols, the rest (a body of profile `fast`, or nothing)

`codes_tightly` says what classes and ranks are, `symbols` how changes are written, `tables` what stands before them;
`tight_read` is the way back; `tight_past` codes with a history. Tensors of 16-bit units that exist before and after are
coded so; all other blocks, and dense ones, are in the `fast` body. A chunk that would be no smaller for it is one of
profile `fast`.
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
from p2psync.delta.tensors import Row
from p2psync.delta.tight import symbols
from p2psync.delta.tight.change_finder import UNIT_BYTES, ChangeFinder, FindProgress
from p2psync.delta.tight.class_choice import IntArray
from p2psync.delta.tight.sample import ChangeSample
from p2psync.delta.tight.tables import SymbolTables, write_tight_headers

TIGHT = "tight"
TIGHT_CODE = 2
#: A chunk's first changes, so many, are coded both ways; where that saves less than this share of the bytes, all of the
#: chunk is.
_SAMPLE, _SURE = 1024, 0.93
#: A body of fewer bytes than this is always coded both ways.
_SMALL = 1 << 13
#: Bytes that a change of the first chunk takes, about.
FIRST_CHANGE_BYTES = 0.9


class TightWriter:
    """The chunks of one encoder, one after another. Blocks come in rising order."""

    def __init__(self, block_units: int, limit: int) -> None:
        """limit: bytes that a chunk should not be larger than."""
        self._block_units = block_units
        #: Bytes a change, in the last chunk.
        self._rate = FIRST_CHANGE_BYTES
        self._finder = ChangeFinder(limit, MAX_BODY_BLOCKS)
        #: Of the chunk at hand: the other blocks, and rows of ranked ones.
        self._coded: list[CodedBlock] = []
        self._rows: dict[int, Row] = {}

    def codes_tightly(self, row: Row) -> bool:
        """Whether the blocks of a row are ranked, unless they are dense."""
        return may_code_tightly(row)

    def add_sample(self, sample: ChangeSample) -> None:
        """Choose classes by such samples of all rows that are ranked; none may have been yet."""
        self._finder.add_sample(sample)

    def advance(self, index: int, row: Row, old: int, new: int, first: int, stop: int, sums: int = 0) -> FindProgress:
        """Find the changes of units `first` to `stop` of such a row, block after block, and rank them.

        old, new: the addresses of its first units. sums: see `ChangeFinder.advance`. Ends where the chunk at hand is full,
        which is to be closed before it goes on; or after a block that is dense, which is to be added.
        """
        self._rows[index] = row
        units = first, stop, block_span(UNIT_BYTES, self._block_units)
        return self._finder.advance(row.spec, index, old, new, units, self._rate, sums)

    def prepare(self, block: Block, row: Row) -> CodedBlock:
        """Code a block that is not ranked."""
        return code_block(block, row)

    def fits(self, coded: CodedBlock) -> bool:
        """Whether the chunk at hand, which has blocks, should take one more."""
        return self._finder.fits(coded.size, fast_bytes_bound(coded.block))

    def add(self, coded: CodedBlock) -> None:
        """Append a block that is not ranked."""
        self._coded.append(coded)
        self._finder.add_fast_block(coded.size, fast_bytes_bound(coded.block))

    def close(self) -> tuple[int, ByteParts]:
        """The profile's code and the parts of the body of the chunk at hand; a new one begins."""
        finder = self._finder
        code, parts = (TIGHT_CODE, self._body()) if finder.blocks else (FAST_CODE, [self._fast_body()])
        if finder.blocks:
            size = sum(map(len, parts))
            self._rate = min(3.0, size / finder.changed)
            if not is_surely_smaller(size, finder.changed, finder.fast_bound, self._tight_blocks(), self._block_units):
                body = self._fast_body()
                if len(body) <= size:
                    code, parts = FAST_CODE, [body]
        finder.begin()
        self._coded, self._rows = [], {}
        return code, parts

    def _tight_blocks(self) -> Iterator[tuple[Block, Row]]:
        blocks = (self._finder.block(number) for number in range(self._finder.blocks))
        return ((block, self._rows[block.row]) for block in blocks)

    def _fast_body(self) -> bytes:
        """All blocks, in profile `fast`."""
        coded = [*self._coded, *(code_block(*ranked) for ranked in self._tight_blocks())]
        return fast_body(sorted(coded, key=lambda one: (one.block.row, one.block.start)), self._block_units)

    def _body(self) -> ByteParts:
        finder = self._finder
        assert finder.window is not None
        found = finder.window, finder.places[:, :2], finder.counts, finder.items
        meta, bits = code_tight_part(*found, self._block_units)
        rest = fast_body(self._coded, self._block_units) if self._coded else b""
        return [*(varint(len(part)) for part in (meta, bits, rest)), meta, bits, rest]


def may_code_tightly(row: Row) -> bool:
    """Whether blocks of a row that are not dense may be ranked."""
    return row.before and row.after and row.spec.width == UNIT_BYTES


def code_tight_part(
    window: NDArray[np.uint8],
    places: IntArray,
    counts: IntArray,
    items: NDArray[np.uint64],
    block_units: int,
    *,
    signs: bool = True,
) -> tuple[bytes, memoryview]:
    """The meta part and the symbols of blocks that are ranked by the classes of `window`.

    places: (blocks, 2), row and first unit; counts: (blocks, 2, 8), changes and units of each class; items: (8, room),
    the changes of each class, which are not what they were afterwards. signs: whether the symbols tell them.
    """
    classes = int(window[-1]) + 1
    sizes, totals = counts[:, 0, :classes].copy(), counts[:, 1, :classes].sum(axis=0)
    tables = SymbolTables.choose(window, totals, sizes, items, signs)
    bits = np.empty(symbols.symbol_bytes_bound(int(sizes.sum()), len(sizes)), np.uint8)
    ends = np.empty(len(sizes), np.int64)
    used = symbols.write_symbols(sizes, items, *tables.encode_tables(signs), bits, ends)
    indices = places // (1, block_span(UNIT_BYTES, block_units))
    return pack_streams([tables.to_bytes(), write_tight_headers(indices, sizes, ends)]), bits[bits.size - used :].data


def fast_body(coded: Iterable[CodedBlock], block_units: int) -> bytes:
    """A body of profile `fast`, of blocks in rising order."""
    writer = FastWriter(block_units)
    for one in coded:
        writer.add(one)
    return b"".join(writer.close()[1])


def is_surely_smaller(
    size: int, changed: int, fast_bound: int, blocks: Iterator[tuple[Block, Row]], block_units: int
) -> bool:
    """Whether `size` bytes are surely less than profile `fast` takes, of so many changes and at most `fast_bound` bytes.

    blocks: those that are ranked, which have these changes, and their rows; not all are looked at.
    """
    if size < _SMALL or size > fast_bound:
        return False
    rate, (first, row) = size / changed, next(blocks)
    # Mostly its gaps alone tell, which is all of the sample that takes long to look at.
    return rate <= _SURE * _gap_rate(first) or rate <= _SURE * _fast_rate(chain([(first, row)], blocks), block_units)


def _gap_rate(block: Block) -> float:
    """What gaps take of `_fast_rate`; 0 where that does not follow from one block."""
    assert block.positions is not None
    sample = replace(block, positions=block.positions[:_SAMPLE], steps=block.steps[:_SAMPLE])
    if sample.changed < _SAMPLE or may_be_dense(sample):
        return 0.0
    return gap_bytes(sample) / _SAMPLE


def _fast_rate(blocks: Iterable[tuple[Block, Row]], block_units: int) -> float:
    """Bytes a change in profile `fast`, by the chunk's first blocks: one alone may be small, and mostly headers."""
    coded, changed = [], 0
    for block, row in blocks:
        wanted = _SAMPLE - changed
        assert block.positions is not None
        part = replace(block, positions=block.positions[:wanted], steps=block.steps[:wanted])
        coded.append(code_block(part, row))
        changed += part.changed
        if changed >= _SAMPLE:
            break
    return len(fast_body(coded, block_units)) / changed
