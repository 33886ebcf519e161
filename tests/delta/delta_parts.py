"""Shared by the codec's tests: tensors of every dtype, with special bit patterns, and encode and apply helpers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from p2psync.delta.algebra import apply_with_digest
from p2psync.delta.block import Block
from p2psync.delta.container import ChunkEncoder, EncodedChunk, decode_chunk
from p2psync.delta.digest import MODULUS, digest_units
from p2psync.delta.tensors import DTYPE_BITS, TableRow, TensorSpec, Units

GRID = 1 << 16
DTYPES = sorted(DTYPE_BITS)
#: One dtype for each width of unit.
WIDTHS = ("F8_E4M3", "BF16", "F32", "F64")


def spec(dtype: str = "BF16", shape: tuple[int, ...] = (8,), name: str = "w") -> TensorSpec:
    return TensorSpec(0, name, dtype, shape)


def special(unit: np.dtype) -> Units:
    """Zeros of both signs, infinities, quiet and signalling NaNs with payloads, subnormals, of every float format."""
    bits = 8 * unit.itemsize
    top = 1 << (bits - 1)
    exponents = {8: (0x78, 0x7C), 16: (0x7F80, 0x7C00), 32: (0x7F800000,), 64: (0x7FF0000000000000,)}[bits]
    values = {0, 1, 2, top - 1}
    for exponent in exponents:
        values |= {exponent, exponent + 1, exponent - 1, exponent | (top >> 2)}
    return np.array(sorted(values | {value | top for value in values}), unit)


def random_units(rng: np.random.Generator, unit: np.dtype, count: int) -> Units:
    """Random bits, a quarter of them special."""
    units = rng.integers(0, np.iinfo(unit).max, count, unit, endpoint=True)
    where = rng.random(count) < 0.25
    units[where] = rng.choice(special(unit), int(where.sum()))
    return units


def change(rng: np.random.Generator, old: Units, density: float, kind: str) -> Units:
    """A copy of `old` in which about `density` of the units differ: by one, by a few, or by any step."""
    new = old.copy()
    where = np.flatnonzero(rng.random(old.size) < density)
    if kind == "any":
        new[where] = random_units(rng, old.dtype, where.size)
    else:
        steps = rng.integers(1, 2 if kind == "one" else 400, where.size).astype(old.dtype)
        new[where] += np.where(rng.random(where.size) < 0.5, steps, np.negative(steps))
    return new


def misaligned(units: Units, offset: int = 1) -> Units:
    """Copies units to an odd address, in memory that cannot be written, as in a memory map."""
    data = b"\0" * offset + units.tobytes()
    return np.frombuffer(data, units.dtype, units.size, offset)


Tensors = Sequence[Units | None]


def encode(
    rows: Sequence[TableRow], old: Tensors, new: Tensors, *, block_units: int = GRID, chunk_bytes: int = 1 << 16
) -> tuple[list[EncodedChunk], ChunkEncoder]:
    encoder = ChunkEncoder(rows, block_units=block_units, chunk_bytes=chunk_bytes)
    chunks = [chunk for k in range(len(rows)) for chunk in encoder.add(k, old[k], new[k])]
    return chunks + list(encoder.finish()), encoder


def encode_blocks(
    rows: Sequence[TableRow], blocks: Sequence[Block], *, block_units: int = GRID, chunk_bytes: int = 1 << 16
) -> list[EncodedChunk]:
    encoder = ChunkEncoder(rows, block_units=block_units, chunk_bytes=chunk_bytes)
    return [chunk for block in blocks for chunk in encoder.add_block(block)] + list(encoder.finish())


def decode(chunks: Sequence[EncodedChunk], rows: Sequence[TableRow], block_units: int = GRID) -> list[Block]:
    return [block for chunk in chunks for block in decode_chunk(chunk.data, rows, block_units)]


def apply_all(rows: Sequence[TableRow], old: Tensors, blocks: Sequence[Block]) -> list[Units]:
    """Apply blocks as an actor does: to copies of existing tensors, and to zeros for added ones."""
    live = [
        np.zeros(row.spec.count, row.spec.unit) if units is None else units.copy()
        for row, units in zip(rows, old, strict=True)
    ]
    for block in blocks:
        apply_with_digest(rows[block.row].spec, live[block.row], block)
    return live


def total_digest(rows: Sequence[TableRow], tensors: Tensors) -> int:
    parts = [digest_units(row.spec, units) for row, units in zip(rows, tensors, strict=True) if units is not None]
    return sum(parts) % MODULUS


def same(a: Block, b: Block) -> bool:
    """Checks that blocks are equal, bit for bit."""
    if (a.row, a.start, a.count, a.steps.dtype) != (b.row, b.start, b.count, b.steps.dtype):
        return False
    if (a.positions is None) != (b.positions is None):
        return False
    where = a.positions is None or b.positions is None or np.array_equal(a.positions, b.positions)
    return where and np.array_equal(a.steps, b.steps)


def sparse_block(
    rng: np.random.Generator, unit: np.dtype, count: int, changed: int, start: int = 0, row: int = 0
) -> Block:
    positions = np.sort(rng.choice(count, changed, replace=False)).astype(np.uint32)
    steps = random_units(rng, unit, changed)
    steps[steps == 0] = 1
    return Block(row, start, count, positions, steps)


@st.composite
def pairs(draw: st.DrawFn, most: int = 3 * GRID) -> tuple[TensorSpec, Units, Units]:
    """A tensor of any dtype and size, before and after a change of any density."""
    dtype = draw(st.sampled_from(DTYPES))
    count = draw(st.sampled_from([0, 1, 3, 63, 64, 65, 1000, 4097, GRID, GRID + 1, most]))
    elements = count if DTYPE_BITS[dtype] >= 8 else count * 4
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    one = spec(dtype, (elements,), draw(st.text(max_size=8)))
    old = random_units(rng, one.unit, one.count)
    density = draw(st.sampled_from([0.0, 0.001, 0.01, 0.2, 0.9, 1.0]))
    return one, old, change(rng, old, density, draw(st.sampled_from(["one", "little", "any"])))
