"""Lays a version out over the ranks: which segments each rank owns, and which units it keeps for that. Pure.

Ranks *hold* their shards. They *own* segments of the table (`store.segments`): whole runs of blocks, each encoded by
one rank alone, so that its bytes are those that one process would make. Segments are cut by the table and shards by the
number of ranks, so an owner does not hold all that it encodes; the holders send it the changes. Owners follow from the
table and the shards alone: every rank computes the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from p2psync.delta.block import block_span
from p2psync.delta.tensors import TableRow, TensorSpec
from p2psync.store.encoding import block_and_chunk
from p2psync.store.segments import Segments
from p2psync.trainer.fsdp.unit_ranges import UnitRanges

#: Bytes of the model, for each rank, whose changes are in memory at a time. More takes memory, less takes more rounds.
ROUND_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Units [start, stop) of a row, which are whole blocks of one segment."""

    row: int
    start: int
    stop: int


class SegmentGrid:
    """The segments of a table, for deltas or for anchors; numbered from 0."""

    def __init__(self, specs: Sequence[TensorSpec], *, anchor: bool) -> None:
        rows = [TableRow(spec, not anchor, True) for spec in specs]
        self.specs = list(specs)
        self.block_units = block_and_chunk(rows, anchor=anchor)[0]
        self.segments = Segments(rows, self.block_units)
        #: The parts of each segment, in the order of the table.
        self.parts: list[list[SegmentRange]] = []
        for index, spec in enumerate(specs):
            span = self.span(index)
            for number, blocks in self.segments.parts(index):
                while len(self.parts) <= number:
                    self.parts.append([])
                self.parts[number].append(SegmentRange(index, blocks.start * span, min(spec.count, blocks.stop * span)))

    def span(self, row: int) -> int:
        """Returns the units of a whole block of a row."""
        return block_span(self.specs[row].width, self.block_units)

    def owner(self, owners: Sequence[int], row: int, unit: int) -> int:
        """Returns the rank that owns the block of a unit. owners: the rank of each segment."""
        return owners[self.segments.of(row, unit // self.span(row))]

    def size(self, segment: int) -> int:
        """Returns the bytes of a segment."""
        return sum((part.stop - part.start) * self.specs[part.row].width for part in self.parts[segment])

    def share(self, segment: int, held: UnitRanges) -> int:
        """Returns how many of a segment's bytes are in `held`."""
        parts = self.parts[segment]
        return sum(held.units(part.row, part.start, part.stop) * self.specs[part.row].width for part in parts)

    def unit_ranges(self, owners: Sequence[int], rank: int) -> UnitRanges:
        """Returns the units of the segments that a rank owns. owners: the rank of each segment."""
        mine = (parts for parts, owner in zip(self.parts, owners, strict=True) if owner == rank)
        return UnitRanges.of((part.row, part.start, part.stop) for parts in mine for part in parts)


class RankLayout:
    """The shares of all ranks. held: of each rank, the unit ranges of its shards; together every unit once."""

    def __init__(self, specs: Sequence[TensorSpec], held: Sequence[UnitRanges]) -> None:
        """specs: sorted, as in a manifest's table. Raises `ValueError` unless every unit is held by one rank."""
        _check(specs, held)
        self.specs = list(specs)
        self.held = list(held)
        self.ranks = len(held)
        self.delta = SegmentGrid(specs, anchor=False)
        self.anchor = SegmentGrid(specs, anchor=True)
        #: The rank that owns each segment of a delta, and of an anchor.
        self.delta_owners = _balance_owners(self.delta, held)
        owned = [self.delta.unit_ranges(self.delta_owners, rank) for rank in range(self.ranks)]
        # An anchor's segments have other borders: the owner of most of one keeps current bits of nearly all of it.
        self.anchor_owners = [_largest_holder(self.anchor, segment, owned) for segment in range(len(self.anchor.parts))]
        anchors = [self.anchor.unit_ranges(self.anchor_owners, rank) for rank in range(self.ranks)]
        #: The units that each rank keeps up to date with every version, and those that it must fetch besides for an
        #: anchor.
        self.kept_current = [mine | theirs for mine, theirs in zip(held, owned, strict=True)]
        self.lacking_for_anchor = [whole - kept for whole, kept in zip(anchors, self.kept_current, strict=True)]

    def kept(self, rank: int) -> UnitRanges:
        """Returns all units that a rank's snapshot has space for."""
        return self.kept_current[rank] | self.lacking_for_anchor[rank]

    def rounds(self) -> Iterator[range]:
        """Yields runs of a delta's segments, all of them in order, each of some `ROUND_BYTES` a rank."""
        first, size = 0, 0
        for segment in range(len(self.delta.parts)):
            size += self.delta.size(segment)
            if size >= ROUND_BYTES * self.ranks:
                yield range(first, segment + 1)
                first, size = segment + 1, 0
        if first < len(self.delta.parts):
            yield range(first, len(self.delta.parts))


def _check(specs: Sequence[TensorSpec], held: Sequence[UnitRanges]) -> None:
    for row, spec in enumerate(specs):
        at = 0
        for start, stop in sorted(span for mine in held for span in mine.row(row)):
            if start != at:
                raise ValueError(f"{spec.name}: unit {min(start, at)} is held by no rank, or by two")
            at = stop
        if at != spec.count:
            raise ValueError(f"{spec.name}: ranks hold {at} units of {spec.count}")


def _balance_owners(grid: SegmentGrid, held: Sequence[UnitRanges]) -> list[int]:
    """Returns the owner of each segment: ranks that hold much of what they own, of equal bytes to within a segment.

    Segments go in order to the rank that holds most of one, as long as it has no more than its part of all bytes, nor
    runs far ahead of the others.
    """
    ranks = range(len(held))
    sizes = [grid.size(segment) for segment in range(len(grid.parts))]
    load, fair = [0] * len(held), sum(sizes) / len(held)
    owners = []
    for segment, size in enumerate(sizes):
        least = min(load)
        may = [rank for rank in ranks if load[rank] + size / 2 <= fair or load[rank] == least]
        shares = {rank: grid.share(segment, held[rank]) for rank in may}
        owner = max(may, key=lambda rank: (shares[rank], -load[rank], -rank))
        owners.append(owner)
        load[owner] += size
    return owners


def _largest_holder(grid: SegmentGrid, segment: int, owned: Sequence[UnitRanges]) -> int:
    """Returns the rank that has most of a segment; the first one of equals."""
    return max(range(len(owned)), key=lambda rank: (grid.share(segment, owned[rank]), -rank))
