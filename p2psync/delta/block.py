"""Blocks, and the grid that they lie on.

The blocks of a tensor lie on a fixed grid, so that a block's range follows from its index, and two deltas on the same
grid are composed block by block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.tensors import TensorSpec, Units
from p2psync.errors import FormatError

MIN_BLOCK_UNITS = 1 << 15
MAX_BLOCK_UNITS = 1 << 20
#: A block never spans more bytes of its tensor than this: blocks of wide units span fewer units.
MAX_BLOCK_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The change of one run of units of one tensor.

    row: index of the tensor in the manifest's table. start: first unit of the block in its tensor. count: units that
    the block spans. positions: strictly rising offsets from `start` of the changed units, or None for *dense*: a step
    for every unit. steps: (new − old) mod 2^width, of the tensor's unit, one for each position (or unit).
    """

    row: int
    start: int
    count: int
    positions: NDArray[np.uint32] | None
    steps: Units

    @property
    def changed(self) -> int:
        """Units whose bits differ."""
        return int(np.count_nonzero(self.steps)) if self.positions is None else self.positions.size


def check_block_units(block_units: int) -> None:
    """Raise `FormatError` unless `block_units` is a power of two from 2^15 to 2^20."""
    if block_units & (block_units - 1) or not MIN_BLOCK_UNITS <= block_units <= MAX_BLOCK_UNITS:
        raise FormatError(f"blocks of {block_units} units; a power of two from 2^15 to 2^20 is wanted")


def block_span(width: int, block_units: int) -> int:
    """Units of a full block in a tensor of `width` bytes a unit: `block_units`, or fewer of wide units."""
    return min(block_units, MAX_BLOCK_BYTES // width)


def block_count(spec: TensorSpec, block_units: int) -> int:
    """Blocks on the grid of a tensor; 0 for a tensor of no units."""
    return -(-spec.count // block_span(spec.width, block_units))


def block_range(spec: TensorSpec, block_units: int, index: int) -> tuple[int, int]:
    """(start, count) of block `index` of a tensor, in units. The last block may be short."""
    span = block_span(spec.width, block_units)
    start = index * span
    return start, min(span, spec.count - start)
