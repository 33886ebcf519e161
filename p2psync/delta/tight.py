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

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from p2psync.delta import fast, symbols
from p2psync.delta.block import Block, block_span
from p2psync.delta.heads import MAX_BLOCKS as MOST_BLOCKS
from p2psync.delta.history import History, Signs, SignWriter
from p2psync.delta.ranking import MAX_CHANGED, WIDTH, Ranking, Step
from p2psync.delta.rooms import MAX_BLOCKS
from p2psync.delta.sampling import Sample
from p2psync.delta.streams import pack_streams, varint
from p2psync.delta.tables import Tables, write_heads
from p2psync.delta.tensors import Row

__all__ = ["CODE", "CODE_HISTORY", "MAX_BLOCKS", "MAX_CHANGED", "NAME", "WIDTH", "Past", "TightWriter"]

NAME = "tight"
#: Of a chunk without and with a history.
CODE, CODE_HISTORY = 2, 3
#: A chunk's first changes, so many, are coded both ways; where that saves less than this share of the bytes, all of the
#: chunk is.
_SAMPLE, _SURE = 1024, 0.93
#: A body of fewer bytes than this is always coded both ways.
_SMALL = 1 << 13
#: Bytes that a change of the first chunk takes, about.
_RATE = 0.9
#: Gives the history of a row; None where it has none.
Past = Callable[[int], History | None]


class TightWriter:
    """The chunks of one encoder, one after another. Blocks come in rising order."""

    def __init__(self, block_units: int, limit: int, history: Past | None = None) -> None:
        """limit: bytes that a chunk should not be larger than. history: of each row, where receivers have it too."""
        self._block_units, self._history = block_units, history
        #: Bytes a change, in the last chunk.
        self._rate = _RATE
        self._ranking = Ranking(limit, MOST_BLOCKS)
        #: Of the chunk at hand: the other blocks, and rows of ranked ones.
        self._coded: list[fast.Coded] = []
        self._rows: dict[int, Row] = {}

    def ranks(self, row: Row) -> bool:
        """Whether the blocks of a row are ranked, unless they are dense."""
        return row.before and row.after and row.spec.width == WIDTH

    def look(self, sample: Sample) -> None:
        """Choose classes by such samples of all rows that are ranked; none may have been yet."""
        self._ranking.look(sample)

    def advance(self, index: int, row: Row, old: int, new: int, first: int, stop: int) -> Step:
        """Find the changes of units `first` to `stop` of such a row, block after block, and rank them.

        old, new: the addresses of its first units. Ends where the chunk at hand is full, which is to be closed before
        it goes on; or after a block that is dense, which is to be added.
        """
        self._rows[index] = row
        units = first, stop, block_span(WIDTH, self._block_units)
        return self._ranking.advance(row.spec, index, old, new, units, self._rate)

    def prepare(self, block: Block, row: Row) -> fast.Coded:
        """Code a block that is not ranked."""
        return fast.code_block(block, row)

    def fits(self, coded: fast.Coded) -> bool:
        """Whether the chunk at hand, which has blocks, should take one more."""
        return self._ranking.fits(coded.size, fast.most_bytes(coded.block))

    def add(self, coded: fast.Coded) -> None:
        """Append a block that is not ranked."""
        self._coded.append(coded)
        self._ranking.add_other(coded.size, fast.most_bytes(coded.block))

    def close(self) -> tuple[int, bytes]:
        """The profile's code and the body of the chunk at hand; a new one begins."""
        ranking, code = self._ranking, CODE if self._history is None else CODE_HISTORY
        found = (code, self._body()) if ranking.blocks else (fast.CODE, self._fast_body())
        if ranking.blocks:
            size, changed = len(found[1]), ranking.changed
            self._rate = min(3.0, size / changed)
            if size < _SMALL or size > ranking.worst or not self._saves(size / changed):
                body = self._fast_body()
                if len(body) <= size:
                    found = fast.CODE, body
        ranking.begin()
        self._coded, self._rows = [], {}
        return found

    def _saves(self, rate: float) -> bool:
        """Whether so many bytes a change are surely less than profile `fast` takes."""
        # Mostly its gaps alone tell, which is all of the sample that takes long to look at.
        return rate <= _SURE * self._gap_rate() or rate <= _SURE * self._fast_rate()

    def _gap_rate(self) -> float:
        """What gaps take of `_fast_rate`; 0 where that does not follow from one block."""
        block = self._ranking.block(0)
        assert block.positions is not None
        sample = replace(block, positions=block.positions[:_SAMPLE], steps=block.steps[:_SAMPLE])
        if sample.changed < _SAMPLE or fast.is_dense(sample):
            return 0.0
        return fast.gap_bytes(sample) / _SAMPLE

    def _fast_rate(self) -> float:
        """Bytes a change in profile `fast`, by the chunk's first blocks: one alone may be small, and mostly headers."""
        writer, changed = fast.FastWriter(self._block_units), 0
        for number in range(self._ranking.blocks):
            block, wanted = self._ranking.block(number), _SAMPLE - changed
            assert block.positions is not None
            part = replace(block, positions=block.positions[:wanted], steps=block.steps[:wanted])
            writer.add(fast.code_block(part, self._rows[block.row]))
            changed += part.changed
            if changed >= _SAMPLE:
                break
        return len(writer.finish()) / changed

    def _fast_body(self) -> bytes:
        """All blocks, in profile `fast`."""
        writer = fast.FastWriter(self._block_units)
        ranked = (self._ranking.block(number) for number in range(self._ranking.blocks))
        coded = [*self._coded, *(fast.code_block(block, self._rows[block.row]) for block in ranked)]
        for one in sorted(coded, key=lambda one: (one.block.row, one.block.start)):
            writer.add(one)
        return writer.finish()

    def _body(self) -> bytes:
        ranking = self._ranking
        window, items, counts = ranking.window, ranking.items, ranking.counts
        assert window is not None
        classes = int(window[-1]) + 1
        sizes, totals = counts[:, 0, :classes].copy(), counts[:, 1, :classes].sum(axis=0)
        signed = self._history is None
        tables = Tables.choose(window, totals, sizes, items, signed)
        bits = np.empty(symbols.most_bytes(ranking.changed, len(sizes)), np.uint8)
        ends = np.empty(len(sizes), np.int64)
        used = symbols.write_symbols(sizes, items, *tables.writers(signed), bits, ends)
        places = ranking.places[:, :2].copy()
        places[:, 1] //= block_span(WIDTH, self._block_units)
        meta = pack_streams([tables.to_bytes(), write_heads(places, sizes, ends)])
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
        for number in range(self._ranking.blocks):
            block = self._ranking.block(number)
            assert block.positions is not None
            writer.add(history(block.row), block.start, block.positions, block.steps)
        return writer.finish()
