"""Segments: the parts of a table that are encoded in parallel.

A *segment* is a run of whole blocks, across tensors if they are small; no chunk crosses its end. The cuts follow from
the table alone, so the bytes of a delta depend neither on the number of cores nor on the source of the changes. The
first segments are small, so that the first chunk leaves early.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from p2psync.delta.block import block_count, block_span
from p2psync.delta.tensors import TableRow

#: Bytes of a segment, at most. Each segment costs a sample and a chunk that is not full. A power of two, so that most
#: segments belong to one rank if tensors are halved and quartered among ranks.
MAX_SEGMENT_BYTES = 64 << 20
#: Bytes of a segment, at least: fewer are not worth a chunk with tables of its own.
MIN_SEGMENT_BYTES = 8 << 20
#: Between these bounds a segment is 1 / _PARTS of the model; each of the first _FIRST segments is 1 / _FIRST_PARTS.
_PARTS, _FIRST_PARTS, _FIRST = 16, 64, 4


class Segments:
    """The segments of a table, numbered from 0."""

    def __init__(self, rows: Sequence[TableRow], block_units: int) -> None:
        total = sum(row.spec.nbytes for row in rows)
        parts = [_FIRST_PARTS] * _FIRST + [_PARTS]
        sizes = [min(MAX_SEGMENT_BYTES, max(MIN_SEGMENT_BYTES, total // part)) for part in parts]
        #: For each row, the first block of each of its parts, and the parts' segments.
        self._firsts: list[list[int]] = []
        self._numbers: list[list[int]] = []
        self._blocks: list[int] = []
        #: Bytes of each segment.
        self.sizes = [0]
        number, filled = 0, 0
        for row in rows:
            spec = row.spec
            bytes_each, blocks, at = block_span(spec.width, block_units) * spec.width, block_count(spec, block_units), 0
            self._firsts.append([])
            self._numbers.append([])
            self._blocks.append(blocks)
            while at < blocks:
                size = sizes[min(number, _FIRST)]
                if filled and filled >= size:
                    number, filled = number + 1, 0
                    self.sizes.append(0)
                    continue
                self._firsts[-1].append(at)
                self._numbers[-1].append(number)
                taken = min(blocks - at, max(1, -(-(size - filled) // bytes_each)))
                filled += min(taken * bytes_each, spec.nbytes - at * bytes_each)
                self.sizes[number] = filled
                at += taken

    def parts(self, row: int) -> Iterator[tuple[int, range]]:
        """The segments of a row's blocks, and the blocks in each; none for a tensor of no units."""
        bounds = [*self._firsts[row], self._blocks[row]]
        for number, (first, end) in zip(self._numbers[row], pairwise(bounds), strict=True):
            yield number, range(first, end)

    def of(self, row: int, block: int) -> int:
        """The segment of block `block` of a row."""
        return self._numbers[row][bisect_right(self._firsts[row], block) - 1]
