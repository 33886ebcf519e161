"""Block headers: where the blocks of a chunk lie in the table, and how each is coded.

For each block, varints: `4 · (row − previous row) + mode`, the previous row being 0 at first; its index on the grid,
less the previous block's index and 1 if that is of the same row; and, unless it is dense, the number of its positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from p2psync.delta.block import Block, block_count, block_range, block_span
from p2psync.delta.streams import read_varint, varint
from p2psync.delta.tensors import ByteArray, TableRow
from p2psync.errors import FormatError

#: Blocks of one body, at most: a block takes a few bytes on the wire, and half a kilobyte in memory.
MAX_BODY_BLOCKS = 1 << 15


class BlockMode(IntEnum):
    """The coding of a block's positions and steps."""

    CODES = 0
    """Gaps; steps as two-bit codes with escapes."""
    PLANES = 1
    """Gaps; steps as byte planes."""
    DENSE = 2
    """No positions; a step for every unit, as byte planes."""


_MODES = tuple(BlockMode)


class BlockHeader(NamedTuple):
    """A header that was read and checked against the table.

    row: in the table. start: first unit. units: units of the block. width: bytes of a unit. size: number of steps.
    """

    row: int
    start: int
    units: int
    width: int
    mode: BlockMode
    size: int


class BlockHeaderWriter:
    """Writes the headers of one chunk's blocks, which come in rising order."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.count = 0
        self._row = 0
        self._index = -1

    def add(self, block: Block, span: int, mode: BlockMode) -> None:
        """Append the header of a block that is coded in `mode`; `span`: units of a full block of its tensor."""
        index = block.start // span
        step = block.row - self._row
        self.data += varint(4 * step + mode)
        self.data += varint(index - self._index - 1 if step == 0 else index)
        if mode is not BlockMode.DENSE:
            self.data += varint(block.steps.size)
        self.count += 1
        self._row, self._index = block.row, index


def read_block_headers(data: ByteArray, rows: Sequence[TableRow], block_units: int) -> list[BlockHeader]:
    """Read and check all headers of a body.

    Raises `FormatError` unless rows and indices rise, within the table and the tensors' grids, and sizes lie within
    the blocks.
    """
    view = memoryview(data.data)
    headers: list[BlockHeader] = []
    row, index, at = 0, -1, 0
    blocks = span = width = -1
    while at < len(view):
        if len(headers) == MAX_BODY_BLOCKS:
            raise FormatError(f"a chunk has more than {MAX_BODY_BLOCKS} blocks")
        word, at = read_varint(view, at)
        offset, at = read_varint(view, at)
        step, kind = divmod(word, 4)
        if kind > BlockMode.DENSE:
            raise FormatError(f"a chunk has a block of unknown mode {kind}")
        row += step
        if row >= len(rows):
            raise FormatError(f"a chunk has a block of row {row}; the table has {len(rows)}")
        spec = rows[row].spec
        if step or blocks < 0:
            blocks, width = block_count(spec, block_units), spec.width
            span = block_span(width, block_units)
        index = offset if step else index + 1 + offset
        if index >= blocks:
            raise FormatError(f"a chunk has block {index} of {spec.name}, which has {blocks}")
        start = index * span
        size = units = span if index + 1 < blocks else block_range(spec, block_units, index)[1]
        if kind != BlockMode.DENSE:
            size, at = read_varint(view, at)
            if not 0 < size <= units:
                raise FormatError(f"a chunk has a block of {size} positions among {units} units")
        headers.append(BlockHeader(row, start, units, width, _MODES[kind], size))
    if not headers:
        raise FormatError("a chunk has no block")
    return headers
