"""Block sums: a checksum of each block's bits, computed during a scan at nearly the cost of the scan alone.

Definition. A block of units of width w is cut into tiles of 2048 units. All arithmetic is mod 2^w. Lane k (of 64) is
the sum of the units i with i mod 64 = k. Weighted lane k is the same sum, where a unit counts once for each tile that
ends after it. So 128 numbers of the unit's width stand for a block of up to 2 MiB.

What the sums detect. Any single unit that differs, so any single flipped bit; any number of differing units as long as
some lane holds exactly one of them. Two flipped bits in one block go unseen only if they are bit k of two units of one
lane, flip in opposite directions, and lie a multiple of 2^(w-k) tiles apart (the highest bit: in any, an even
number of tiles apart): of random pairs in one block of 16-bit units, one in about 1,400. What they do not detect: units
of one tile that swap places within their lane, and changes by an adversary. The digest detects swaps too, at some ten
times the cost.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.block import MAX_BLOCK_UNITS, block_count, block_span
from p2psync.delta.digest import unit_witness
from p2psync.delta.kernels import unit_loops
from p2psync.delta.tensors import TensorSpec, Units

#: (blocks, 2, 64) units: lanes and weighted lanes of each block of the largest grid.
BlockSums: TypeAlias = NDArray[Any]


def sum_blocks(spec: TensorSpec, units: Units) -> BlockSums:
    """The sums of consecutive blocks of a tensor, whose bits are `units`: flat, contiguous, of the spec's unit, from
    the first unit of a block on."""
    span = block_span(spec.width, MAX_BLOCK_UNITS)
    found = np.empty((-(-units.size // span), 2, unit_loops.GROUP), spec.unit)
    if found.size:
        unit_loops.sum_blocks(unit_loops.address(units), units.size, span, found, unit_witness(spec.unit))
    return found


class ScanSums:
    """Block sums of a tensor's old and new units, filled by compiled scans; zeros for a block that was not scanned."""

    def __init__(self, spec: TensorSpec) -> None:
        """Make zeroed sums for all blocks of a tensor on the largest grid."""
        self._rows = np.zeros((block_count(spec, MAX_BLOCK_UNITS), unit_loops.SUM_ROWS, unit_loops.GROUP), spec.unit)

    @property
    def address(self) -> int:
        """The address that scans write to; 0 for a tensor of no units. The object must outlive the scan."""
        return unit_loops.address(self._rows) if self._rows.size else 0

    @property
    def old(self) -> BlockSums:
        """The sums of the old units."""
        return self._rows[:, :2]

    @property
    def new(self) -> BlockSums:
        """The sums of the new units."""
        return self._rows[:, 2:4]

    def missed(self) -> list[int]:
        """Indices of blocks whose found steps do not add up to the difference of new and old units."""
        unit = self._rows.dtype
        difference = self._rows[:, 2].sum(axis=1, dtype=unit) - self._rows[:, 0].sum(axis=1, dtype=unit)
        return [int(index) for index in np.flatnonzero(difference != self._rows[:, 4, 0])]


def address_of_block(sums: int, spec_width: int, index: int) -> int:
    """The address of block `index` in a `ScanSums` at address `sums`; 0 if that is 0."""
    return sums + index * unit_loops.SUM_ROWS * unit_loops.GROUP * spec_width if sums else 0
