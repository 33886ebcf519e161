"""The profile `fast`: byte gaps and short step codes, then a byte compressor. Needs no base to decode.

A chunk's body is 13 byte streams (`streams`), which the blocks fill one after another:

    0 headers  where each block lies and how it is coded (`block_headers`)
    1 gaps     modes CODES, PLANES: positions; 255 means add 255 and go on
    2 codes    mode CODES: two bits a step, each block filled up to a whole byte
    3 small    mode CODES: zigzag of the step, less 3
    4 wide     mode CODES: the step, a whole unit
    5…12       modes PLANES, DENSE: byte planes, the most significant byte of each unit in stream 5

A block is coded in the mode that takes the fewest bytes before compression, so no block is larger than its units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.algebra import densify
from p2psync.delta.block import Block, block_span
from p2psync.delta.block_headers import MAX_BODY_BLOCKS, BlockHeader, BlockHeaderWriter, BlockMode, read_block_headers
from p2psync.delta.fast import byte_loops
from p2psync.delta.kernels.unit_loops import kernel, plain
from p2psync.delta.streams import ByteParts, packed_parts, stored_bytes, unpack_streams
from p2psync.delta.tensors import ByteArray, TableRow, Units
from p2psync.errors import FormatError

FAST = "fast"
FAST_CODE = 1
_PLANES = 8
_STREAMS = 5 + _PLANES
#: Bytes of one block header, at most.
_MAX_HEADER_BYTES = 15


class CodedBlock(NamedTuple):
    """One block, coded but not yet compressed."""

    block: Block
    mode: BlockMode
    changed: int
    size: int
    """Bytes that the block adds to a chunk before compression, at most."""
    parts: tuple[bytes, ...] = ()
    """In mode CODES: gaps, codes, small, wide; in mode PLANES: gaps."""
    planes: NDArray[np.uint8] | None = None
    """In modes PLANES and DENSE: u8 (bytes of a unit, steps)."""


def code_block(block: Block, row: TableRow) -> CodedBlock:
    """Code one block in the mode that takes the fewest bytes before compression."""
    if block.positions is not None:
        whole = block.count * block.steps.itemsize
        n = block.positions.size
        if n < whole:
            sparse = _code_sparse(block, block.positions, row, whole)
            if sparse is not None:
                return sparse
        block = Block(block.row, block.start, block.count, None, densify(block))
    return CodedBlock(
        block,
        BlockMode.DENSE,
        block.changed,
        _MAX_HEADER_BYTES + block.steps.nbytes,
        (),
        _byte_planes(block.steps, row),
    )


def fast_bytes_bound(block: Block) -> int:
    """An upper bound of the `size` that `code_block` finds, in bytes, computed without coding.

    Either the whole block, or about a byte and a unit for each change.
    """
    changed = block.count if block.positions is None else block.steps.size
    return fast_bytes_bound_of(block.count, changed, block.steps.itemsize)


@kernel
def fast_bytes_bound_of(count: int, changed: int, width: int) -> int:
    """`fast_bytes_bound` of a block of `count` units of `width` bytes, of which `changed` are changed."""
    return _MAX_HEADER_BYTES + min(count * width, changed + count // byte_loops.ESCAPE + changed * width)


def may_be_dense(block: Block) -> bool:
    """Returns whether `code_block` may choose mode DENSE for a block."""
    return fast_bytes_bound(block) == _MAX_HEADER_BYTES + block.count * block.steps.itemsize


def gap_bytes(block: Block) -> int:
    """Bytes that the positions of a sparse block take if it is alone in a body."""
    assert block.positions is not None
    return stored_bytes(_gaps(block, block.positions))


def _gaps(block: Block, positions: NDArray[np.uint32]) -> bytes:
    out = np.empty(positions.size + block.count // byte_loops.ESCAPE + 2, np.uint8)
    return out[: byte_loops.write_gaps(plain(positions), out)].tobytes()


def _code_sparse(block: Block, positions: NDArray[np.uint32], row: TableRow, whole: int) -> CodedBlock | None:
    """Code a block with positions; None unless that takes fewer bytes than `whole`."""
    steps = plain(block.steps)
    n, width = steps.size, steps.itemsize
    gaps = _gaps(block, positions)
    padded = (n + 31) // 32
    codes, scratch = np.empty(8 * padded, np.uint8), np.empty(32 * padded, np.uint8)
    small, wide = np.empty(n, np.uint8), np.empty(n, steps.dtype)
    smalls, wides = byte_loops.write_steps(steps, codes, small, wide, scratch)
    packed = (n + 3) // 4
    size = packed + smalls + wides * width
    if len(gaps) + min(size, n * width) >= whole:
        return None
    if size > n * width:
        return CodedBlock(
            block, BlockMode.PLANES, n, _MAX_HEADER_BYTES + len(gaps) + n * width, (gaps,), _byte_planes(steps, row)
        )
    parts = (gaps, codes[:packed].tobytes(), small[:smalls].tobytes(), wide[:wides].tobytes())
    return CodedBlock(block, BlockMode.CODES, n, _MAX_HEADER_BYTES + len(gaps) + size, parts)


def _byte_planes(steps: Units, row: TableRow) -> NDArray[np.uint8]:
    planes = np.empty((steps.itemsize, steps.size), np.uint8)
    byte_loops.write_planes(plain(steps), _transform(row), planes)
    return planes


def _transform(row: TableRow) -> int:
    """The transform of a row's steps before they are cut into byte planes.

    Steps of tensors in both versions are zigzagged. Units of added or removed tensors are rotated, so that the sign bit
    stands apart from the exponent's byte.
    """
    if row.before and row.after:
        return byte_loops.ZIGZAG
    return byte_loops.ROTATED if row.after else byte_loops.NEGATED


class FastWriter:
    """Collects blocks, in rising order, and writes the bodies of chunks."""

    def __init__(self, block_units: int, limit: int = 0) -> None:
        """limit: bytes of a body before compression, as `fits` checks them."""
        self._block_units, self._limit = block_units, limit
        self._begin()

    def _begin(self) -> None:
        self._headers = BlockHeaderWriter()
        self._streams = [bytearray() for _ in range(_STREAMS - 1)]
        self._size = 0

    def prepare(self, block: Block, row: TableRow) -> CodedBlock:
        """Code a block."""
        return code_block(block, row)

    def fits(self, coded: CodedBlock) -> bool:
        """Returns whether the current chunk, which has blocks, should take one more."""
        return self._size + coded.size <= self._limit and self._headers.count < MAX_BODY_BLOCKS

    def add(self, coded: CodedBlock) -> None:
        """Append a block."""
        block, streams = coded.block, self._streams
        self._size += coded.size
        self._headers.add(block, block_span(block.steps.itemsize, self._block_units), coded.mode)
        for stream, part in zip(streams, coded.parts, strict=False):
            stream += part
        if coded.planes is not None:
            for stream, plane in zip(streams[4:], coded.planes, strict=False):
                stream += plane.data

    def close(self) -> tuple[int, ByteParts]:
        """End the current chunk: returns the profile's code and the parts of the body."""
        parts = packed_parts([self._headers.data, *self._streams])
        self._begin()
        return FAST_CODE, parts


def read_fast_body(
    data: memoryview,
    rows: Sequence[TableRow],
    block_units: int,
    limit: int,
    base: Callable[[int], Units] | None = None,
) -> list[Block]:
    """Decode a body of at most `limit` bytes before compression. `base` is not used. Raises `FormatError`."""
    streams = unpack_streams(data, _STREAMS, limit)
    headers = read_block_headers(streams[0], rows, block_units)
    positions = _read_positions(streams[1], [header for header in headers if header.mode is not BlockMode.DENSE])
    steps = _read_steps(headers, rows, streams)
    return [
        Block(
            header.row,
            header.start,
            header.units,
            None if header.mode is BlockMode.DENSE else next(positions),
            next(steps),
        )
        for header in headers
    ]


def _read_positions(gaps: ByteArray, headers: list[BlockHeader]) -> Iterator[NDArray[np.uint32]]:
    sizes = np.array([header.size for header in headers], np.int64)
    spans = np.array([header.units for header in headers], np.int64)
    total = int(sizes.sum())
    if total > gaps.size:
        raise FormatError("a chunk has fewer gaps than positions")
    out = np.empty(total + 1, np.uint32)
    if status := byte_loops.read_gaps(gaps, sizes, spans, out):
        raise FormatError(
            "a chunk has " + ("more or fewer gaps than positions" if status == -1 else "a position outside its block")
        )
    return iter(np.split(out[:total], np.cumsum(sizes)[:-1])) if headers else iter(())


def _read_steps(headers: list[BlockHeader], rows: Sequence[TableRow], streams: list[ByteArray]) -> Iterator[Units]:
    """The steps of each block, in order; raises `FormatError` unless every stream is used up exactly."""
    at = [0] * _STREAMS
    steps: list[Units] = []
    for (coded, _), group in groupby(headers, key=lambda header: (header.mode is BlockMode.CODES, header.width)):
        if coded:
            steps += _read_codes(list(group), rows, streams, at)
        else:
            steps += [_read_planes(header, rows[header.row], streams, at) for header in group]
    if any(at[k] != streams[k].size for k in range(2, _STREAMS)):
        raise FormatError("a chunk has bytes that belong to no block")
    return iter(steps)


def _read_codes(
    headers: list[BlockHeader], rows: Sequence[TableRow], streams: list[ByteArray], at: list[int]
) -> list[Units]:
    sizes = np.array([header.size for header in headers], np.int64)
    packed = int(((sizes + 3) >> 2).sum())
    codes, small, wide = (streams[k][at[k] :] for k in (2, 3, 4))
    if packed > codes.size:
        raise FormatError("a chunk has fewer step codes than positions")
    out = np.empty(int(sizes.sum()), rows[headers[0].row].spec.unit)
    smalls, wides = byte_loops.read_steps(codes, small, wide, sizes, out)
    if smalls < 0:
        raise FormatError("a chunk has a broken step")
    for k, used in zip((2, 3, 4), (packed, smalls, wides), strict=True):
        at[k] += used
    return np.split(out, np.cumsum(sizes)[:-1])


def _read_planes(header: BlockHeader, row: TableRow, streams: list[ByteArray], at: list[int]) -> Units:
    parts = []
    for k in range(5, 5 + header.width):
        parts.append(streams[k][at[k] : at[k] + header.size])
        at[k] += header.size
        if parts[-1].size != header.size:
            raise FormatError("a chunk has fewer steps than positions")
    out = np.empty(header.size, row.spec.unit)
    byte_loops.read_planes(np.stack(parts), _transform(row), out)
    if header.mode is BlockMode.PLANES and not out.all():
        raise FormatError("a chunk has a step of zero")
    return out
