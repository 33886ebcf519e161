"""The group of deltas, block by block: apply, compose and invert, exact mod 2^width.

`apply_block` adds steps to weights; composing adds sparse vectors and drops zeros; inverting negates. Weights are flat
unit arrays of whole tensors, of any alignment; nothing outside a block's range is ever touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.block import Block, block_range, block_span
from p2psync.delta.digest import MODULUS, digest_units, join_change, tensor_key
from p2psync.delta.kernels import unit_loops
from p2psync.delta.kernels.unit_loops import plain
from p2psync.delta.tensors import TableRow, TensorSpec, Units

_NO_KEY = np.zeros(2, np.uint64)
_OUTSIDE = "the block has positions outside its own range"


def apply_block(target: Units, block: Block) -> None:
    """Add the block's steps to `target` in place. Raises `ValueError` if the block does not lie within it."""
    window = _window(target, block, write=True)
    if block.positions is None:
        window += block.steps
    else:
        _add(window, block, block.positions, _NO_KEY)


def apply_with_digest(spec: TensorSpec, target: Units, block: Block) -> int:
    """`apply_block`; returns the change of the digest, mod 2^128, computed from the bits that `target` held.

    For an added or removed tensor this is not the whole change, since every unit counts, also without a step. Use
    `digest_units` of the whole tensor there.
    """
    if target.dtype != spec.unit:
        raise ValueError(f"{spec.name}: an array of {spec.unit} is wanted")
    window = _window(target, block, write=True)
    if block.positions is not None:
        return _add(window, block, block.positions, tensor_key(spec))
    before = digest_units(spec, window, block.start)
    window += block.steps
    return (digest_units(spec, window, block.start) - before) % MODULUS


def gather(target: Units, block: Block) -> Units:
    """A copy of the bits of `target` at the block's positions (all of its units if it is dense)."""
    window = _window(target, block, write=False)
    if block.positions is None:
        return np.array(window)
    out = np.empty(block.positions.size, target.dtype)
    if not unit_loops.gather_at(unit_loops.address(window), plain(block.positions), block.count, out):
        raise ValueError(_OUTSIDE)
    return out


def scatter(target: Units, block: Block, values: Units) -> None:
    """Write `values`, as `gather` returned them, to the block's positions, which undoes an apply."""
    window = _window(target, block, write=True)
    if values.size != block.steps.size or values.dtype != target.dtype:
        raise ValueError("the values do not fit the block")
    if block.positions is None:
        window[:] = values
    elif not unit_loops.scatter_at(unit_loops.address(window), plain(block.positions), block.count, plain(values)):
        raise ValueError(_OUTSIDE)


def compose(a: Block, b: Block) -> Block | None:
    """Compose `a` and then `b` into one block; None if they cancel out. Dense if one of them is dense.

    Raises `ValueError` unless both have the same row, start, count and unit.
    """
    if (a.row, a.start, a.count, a.steps.dtype) != (b.row, b.start, b.count, b.steps.dtype):
        raise ValueError("blocks of different ranges do not compose; reblock them first")
    if a.positions is None or b.positions is None:
        steps = densify(a) + densify(b)
        return Block(a.row, a.start, a.count, None, steps) if steps.any() else None
    positions = np.empty(a.positions.size + b.positions.size, np.uint32)
    steps = np.empty(positions.size, a.steps.dtype)
    n = unit_loops.merge_sums(plain(a.positions), plain(a.steps), plain(b.positions), plain(b.steps), positions, steps)
    return Block(a.row, a.start, a.count, positions[:n].copy(), steps[:n].copy()) if n else None


def invert(block: Block) -> Block:
    """The block that undoes `block`."""
    return Block(block.row, block.start, block.count, block.positions, np.negative(block.steps))


def split_block(block: Block, span: int) -> Iterator[Block]:
    """Cut a block at the multiples of `span` units of its tensor. Pieces without a change are left out."""
    end = block.start + block.count
    for low in range(block.start - block.start % span, end, span):
        first, last = max(low, block.start), min(low + span, end)
        piece = _cut(block, first - block.start, last - block.start)
        if piece.steps.size and piece.steps.any():
            yield piece


def merge_blocks(parts: Sequence[Block], start: int, count: int) -> Block:
    """Merge one or more blocks of one row into one block over units [start, start + count).

    The parts rise, are disjoint and lie within the range; else raises `ValueError`. The result is dense if all parts
    are dense and leave no gap.
    """
    row = parts[0].row
    end = start
    for part in parts:
        if part.row != row or part.start < end or part.start + part.count > start + count:
            raise ValueError("parts to be merged overlap, leave the range, or are of different rows")
        end = part.start + part.count
    if len(parts) == 1 and (parts[0].start, parts[0].count) == (start, count):
        return parts[0]
    if all(part.positions is None for part in parts) and sum(part.count for part in parts) == count:
        return Block(row, start, count, None, np.concatenate([part.steps for part in parts]))
    sparse = [_sparse(part) for part in parts]
    positions = [p + np.uint32(part.start - start) for (p, _), part in zip(sparse, parts, strict=True)]
    return Block(row, start, count, np.concatenate(positions), np.concatenate([steps for _, steps in sparse]))


def reblock(blocks: Iterable[Block], rows: Sequence[TableRow], block_units: int) -> Iterator[Block]:
    """Cut and merge blocks to the grid of another block size. Blocks come in rising order of (row, start)."""
    waiting: list[Block] = []
    key = (-1, -1)
    for block in blocks:
        span = block_span(rows[block.row].spec.width, block_units)
        for piece in split_block(block, span):
            piece_key = (piece.row, piece.start // span)
            if waiting and piece_key != key:
                yield _flush(waiting, rows, block_units, key)
                waiting = []
            key = piece_key
            waiting.append(piece)
    if waiting:
        yield _flush(waiting, rows, block_units, key)


def _flush(parts: list[Block], rows: Sequence[TableRow], block_units: int, key: tuple[int, int]) -> Block:
    return merge_blocks(parts, *block_range(rows[key[0]].spec, block_units, key[1]))


def _window(target: Units, block: Block, *, write: bool) -> Units:
    if target.ndim != 1 or not target.flags.c_contiguous or target.dtype != block.steps.dtype:
        raise ValueError(f"a flat, contiguous array of {block.steps.dtype} is wanted")
    if write and not target.flags.writeable:
        raise ValueError("the weights are read-only")
    if not 0 <= block.start <= block.start + block.count <= target.size:
        raise ValueError(f"block [{block.start}, +{block.count}) is outside a tensor of {target.size} units")
    wanted = block.count if block.positions is None else block.positions.size
    if block.steps.size != wanted:
        raise ValueError("the block has more or fewer steps than positions")
    return target[block.start : block.start + block.count]


def _add(window: Units, block: Block, positions: NDArray[np.uint32], key: NDArray[np.uint64]) -> int:
    """Add steps and return the change of the digest; `key` is the tensor's."""
    first, second, high, done = unit_loops.add_sparse(
        unit_loops.address(window), plain(positions), plain(block.steps), block.start, block.count, key
    )
    if not done:
        raise ValueError(_OUTSIDE)
    return join_change(first, second, high)


def densify(block: Block) -> Units:
    """A block's steps for every unit that it spans, 0 for units without a change. Raises `ValueError` as `scatter`."""
    if block.positions is None:
        return block.steps
    steps = np.zeros(block.count, block.steps.dtype)
    if not unit_loops.scatter_at(unit_loops.address(steps), plain(block.positions), block.count, plain(block.steps)):
        raise ValueError(_OUTSIDE)
    return steps


def _sparse(block: Block) -> tuple[NDArray[np.uint32], Units]:
    if block.positions is not None:
        return block.positions, block.steps
    where = np.flatnonzero(block.steps).astype(np.uint32)
    return where, block.steps[where]


def _cut(block: Block, first: int, last: int) -> Block:
    start, count = block.start + first, last - first
    if block.positions is None:
        return Block(block.row, start, count, None, block.steps[first:last])
    low, high = np.searchsorted(block.positions, [first, last])
    positions = block.positions[low:high] - np.uint32(first)
    return Block(block.row, start, count, positions, block.steps[low:high])
