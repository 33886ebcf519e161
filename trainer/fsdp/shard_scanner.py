"""Finds the changes in a rank's shards, and carries them to the ranks that own the blocks.

A holder scans its shards against its snapshot, block by block of the codec's grid; of a block that lies across shards
each holder finds its part. Parts that another rank encodes travel to it as chunks of profile `fast`. The owner merges
the parts into the very blocks that a scan of the whole tensors finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from p2psync.delta.algebra import gather
from p2psync.delta.block import Block
from p2psync.delta.container import ChunkEncoder, decode_chunk
from p2psync.delta.digest import MODULUS, digest_change
from p2psync.delta.extract import Extraction, FoundChanges, found_block
from p2psync.delta.tensors import TableRow, Units
from p2psync.errors import FormatError
from p2psync.parallel import in_parallel
from p2psync.trainer.fsdp.rank_layout import RankLayout

#: Bytes of a chunk sent between ranks, before compression.
_CHUNK = 1 << 20
#: Takes (row, start, stop); returns the units [start, stop) of the row as they are now.
NewUnits = Callable[[int, int, int], Units]


@dataclass(slots=True)
class RankChanges:
    """The changes that a rank found in one round.

    mine: parts of blocks that it owns, rising. chunks: for each rank, the chunks to send to it. digest_change: of all
    changes, mod 2^128.
    """

    mine: list[Block] = field(default_factory=list)
    chunks: list[list[bytes]] = field(default_factory=list)
    digest_change: int = 0


class ShardScanner:
    """Scans one rank's shards."""

    def __init__(self, layout: RankLayout, rank: int, rows: Sequence[TableRow], old: Callable[[int], Units]) -> None:
        """old: returns the published bits of a row."""
        self._layout = layout
        self._rank = rank
        self._rows = rows
        self._old = old

    def find(self, segments: range, new: NewUnits) -> RankChanges:
        """Returns the changes in the shards, within these segments."""
        found = RankChanges(chunks=[[] for _ in range(self._layout.ranks)])
        encoders: dict[int, ChunkEncoder] = {}
        parts = list(self._held_parts(segments))
        for (owner, *_), (block, change) in zip(
            parts, in_parallel(lambda part: self._scan(*part[1:], new), parts), strict=True
        ):
            found.digest_change += change
            if block is None:
                continue
            if owner == self._rank:
                found.mine.append(block)
                continue
            encoder = encoders.setdefault(owner, self._encoder())
            found.chunks[owner] += [chunk.data for chunk in encoder.add_block(block)]
        for owner, encoder in encoders.items():
            found.chunks[owner] += [chunk.data for chunk in encoder.finish()]
        found.digest_change %= MODULUS
        return found

    def _encoder(self) -> ChunkEncoder:
        return ChunkEncoder(self._rows, block_units=self._layout.delta.block_units, chunk_bytes=_CHUNK)

    def _held_parts(self, segments: range) -> Iterator[tuple[int, int, int, int, int]]:
        """Yields (owner, row, first unit of the block, start, stop) of each part of a block that is held here."""
        grid, held = self._layout.delta, self._layout.held[self._rank]
        for segment in segments:
            owner = self._layout.delta_owners[segment]
            for part in grid.parts[segment]:
                span = grid.span(part.row)
                for start, stop in held.within(part.row, part.start, part.stop):
                    for first in range(start - start % span, stop, span):
                        yield owner, part.row, first, max(start, first), min(stop, first + span)

    def _scan(self, row: int, first: int, start: int, stop: int, new: NewUnits) -> tuple[Block | None, int]:
        """Returns the changes in [start, stop) of the block that begins at `first`, and what they add to the digest."""
        spec = self._rows[row].spec
        old, now = self._old(row)[start:stop], new(row, start, stop)
        found = Extraction(row, old, now).block(0, stop - start)
        if found is None:
            return None, 0
        olds = gather(old, found)
        change = digest_change(spec, start, found.positions, olds, olds + found.steps)
        count = min(self._layout.delta.span(row), spec.count - first)
        positions = found.positions
        if positions is None:
            if stop - start == count:
                return Block(row, first, count, None, found.steps), change
            positions = np.arange(stop - start, dtype=np.uint32)
        return Block(row, first, count, positions + np.uint32(start - first), found.steps), change


def decode_partial_blocks(
    chunks: Iterable[bytes], layout: RankLayout, rank: int, rows: Sequence[TableRow]
) -> Iterator[Block]:
    """Yields the partial blocks in chunks that were sent to an owner, or that a holder kept; all with positions.

    Raises `FormatError` for a block that `rank` does not own (-1: any rank).
    """
    grid = layout.delta
    for data in chunks:
        for block in decode_chunk(data, rows, grid.block_units):
            owner = grid.owner(layout.delta_owners, block.row, block.start)
            if owner != rank and rank >= 0:
                raise FormatError(f"{rows[block.row].spec.name}: a block of rank {owner} came to rank {rank}")
            if block.positions is not None:
                yield block
                continue
            # Where much changed the block travelled whole, with zeros for units that the sender does not hold.
            where = np.flatnonzero(block.steps).astype(np.uint32)
            yield Block(block.row, block.start, block.count, where, block.steps[where])


def merge_partial_blocks(parts: Iterable[Block], old: Callable[[int], Units]) -> Iterator[FoundChanges]:
    """Yields whole blocks, merged of parts from any ranks in any order. old: returns the published bits of a row.

    Raises `FormatError` where two ranks sent the same unit.
    """
    ordered = sorted(parts, key=lambda block: (block.row, block.start, _first(block)))
    for (row, start), group in groupby(ordered, key=lambda block: (block.row, block.start)):
        blocks = list(group)
        count = blocks[0].count
        if len(blocks) == 1 and blocks[0].positions is None:
            yield FoundChanges(blocks[0], old(row)[start : start + count].copy())
            continue
        if any(block.positions is None for block in blocks):
            raise FormatError("two ranks hold the same units")
        positions = np.concatenate([block.positions for block in blocks if block.positions is not None])
        steps = np.concatenate([block.steps for block in blocks])
        if (positions[1:] <= positions[:-1]).any():
            raise FormatError("two ranks hold the same units")
        olds = gather(old(row)[start : start + count], Block(row, 0, count, positions, steps))
        found = found_block(row, start, count, positions, olds, steps)
        if found is not None:
            yield found


def _first(block: Block) -> int:
    return 0 if block.positions is None or not block.positions.size else int(block.positions[0])
