"""Where the work of encoding is cut into pieces that can be done side by side.

A *segment* is a run of whole blocks, across tensors where they are small; no chunk reaches over its end. The cuts
follow from the table alone, so the bytes of a delta depend neither on the number of cores nor on what it was made from.
The first segments are small, so that the first chunk leaves while little has been read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from p2psync.delta.block import block_count, block_span
from p2psync.delta.tensors import Row

#: Bytes of a model that a segment spans at most. Each costs a look at a sample of it, and a chunk that is not full. A
#: power of two: where tensors are halved and quartered among ranks, most segments are one rank's.
MAX_SEGMENT = 64 << 20
#: Less than this is not worth a chunk with tables of its own.
MIN_SEGMENT = 8 << 20
#: Between these bounds a segment spans this share of the model; each of the first few, this smaller share.
_SHARE, _FIRST_SHARE, _FIRST = 16, 64, 4


class Segments:
    """The segments of a table, numbered from 0."""

    def __init__(self, rows: Sequence[Row], block_units: int) -> None:
        total = sum(row.spec.nbytes for row in rows)
        shares = [_FIRST_SHARE] * _FIRST + [_SHARE]
        sizes = [min(MAX_SEGMENT, max(MIN_SEGMENT, total // share)) for share in shares]
        #: Of each row the first block of each of its parts, and the segments they are in.
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
        """The segments that a row has blocks in, and which blocks; none for a tensor of no units."""
        bounds = [*self._firsts[row], self._blocks[row]]
        for number, (first, end) in zip(self._numbers[row], pairwise(bounds), strict=True):
            yield number, range(first, end)

    def of(self, row: int, block: int) -> int:
        """The segment of a block."""
        return self._numbers[row][bisect_right(self._firsts[row], block) - 1]
