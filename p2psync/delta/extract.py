"""Extraction: which units of a tensor changed, and by what step.

Change means that the bits differ; nothing is ever compared as a floating-point number. The arrays may begin at any
byte (a memory-mapped safetensors file), and are only read.
"""

from __future__ import annotations

import functools
import threading

import numpy as np
from numpy.typing import NDArray

from p2psync.delta import kernels
from p2psync.delta.block import MAX_BLOCK_BYTES, Block
from p2psync.delta.digest import MODULUS, check_units, digest_units, join_change, tensor_key
from p2psync.delta.tensors import TensorSpec, Units

_local = threading.local()


def extract_block(row: int, old: Units | None, new: Units | None, start: int, count: int) -> Block | None:
    """The block of units [start, start + count) between two flat unit arrays of a whole tensor; None if none differ.

    `old=None` stands for zeros (an added tensor), `new=None` too (a removed one). The block is dense when every unit
    changed, or when a tensor was added or removed and more than half of its units are not zero. Raises `ValueError`
    for arrays that do not fit together, or for a block of more than `MAX_BLOCK_BYTES`.
    """
    before, after = _windows(old, new, start, count)
    if old is None or new is None:
        return _extract_whole(row, before, after, start)
    return _scan(row, before, after, start)[0]


def extract_with_digest(
    spec: TensorSpec, row: int, old: Units | None, new: Units | None, start: int, count: int
) -> tuple[Block | None, int]:
    """`extract_block`, and what these units add to the digest, mod 2^128.

    Of an added tensor every unit counts, also zeros, so the change may be non-zero where there is no block.
    """
    before, after = _windows(old, new, start, count)
    if old is None:
        return _extract_whole(row, before, after, start), digest_units(spec, after, start)
    if new is None:
        return _extract_whole(row, before, after, start), -digest_units(spec, before, start) % MODULUS
    check_units(spec, before)
    block, olds, steps = _scan(row, before, after, start)
    if block is None:
        return None, 0
    positions = block.positions if block.positions is not None else np.arange(count, dtype=np.uint32)
    return block, join_change(*kernels.sum_change(positions, olds, steps, positions.size, start, tensor_key(spec)))


def _windows(old: Units | None, new: Units | None, start: int, count: int) -> tuple[Units, Units]:
    given = old if old is not None else new
    if given is None:
        raise ValueError("a block of a tensor that is in neither version")
    if not 0 <= start <= start + count <= given.size or count * given.itemsize > MAX_BLOCK_BYTES:
        raise ValueError(f"block [{start}, {start + count}) of a tensor of {given.size} units")
    for array in (old, new):
        if array is not None and (array.shape != (given.size,) or array.dtype != given.dtype):
            raise ValueError("old and new are not flat arrays of the same length and unit")
        if array is not None and not array.flags.c_contiguous:
            raise ValueError("old and new must be contiguous")
    zeros = _zeros(given.dtype)[:count]
    return (
        zeros if old is None else old[start : start + count],
        zeros if new is None else new[start : start + count],
    )


def _scan(row: int, old: Units, new: Units, start: int) -> tuple[Block | None, Units, Units]:
    """The block, and the old bits and steps at its positions; the old bits only until this thread scans again."""
    positions, olds, steps = _scratch(old.size + kernels.GROUP, old.dtype)
    n = kernels.scan(kernels.address(old), kernels.address(new), old.size, positions, olds, steps)
    if not n:
        return None, olds[:0], steps[:0]
    kept = steps[:n].copy()
    where = None if n == old.size else positions[:n].copy()
    return Block(row, start, old.size, where, kept), olds[:n], kept


def _extract_whole(row: int, old: Units, new: Units, start: int) -> Block | None:
    """The block of a tensor that was added or removed: one side is zeros."""
    count = old.size
    changed = kernels.count_changed(kernels.address(old), kernels.address(new), count, old[:0].copy())
    if 2 * changed > count:
        return Block(row, start, count, None, np.subtract(new, old))
    return _scan(row, old, new, start)[0]


def _scratch(room: int, unit: np.dtype[np.unsignedinteger]) -> tuple[NDArray[np.uint32], Units, Units]:
    """Room for what a scan finds, kept for the thread: mapping it anew for each block costs as much as coding."""
    kept: dict[np.dtype[np.unsignedinteger], tuple[NDArray[np.uint32], Units, Units]] = _local.__dict__.setdefault(
        "arrays", {}
    )
    arrays = kept.get(unit)
    if arrays is None or arrays[0].size < room:
        arrays = kept[unit] = np.empty(room, np.uint32), np.empty(room, unit), np.empty(room, unit)
    return arrays


@functools.cache
def _zeros(unit: np.dtype[np.unsignedinteger]) -> Units:
    """What stands for an absent tensor: a block of zeros, read-only."""
    zeros = np.zeros(MAX_BLOCK_BYTES // unit.itemsize, unit)
    zeros.flags.writeable = False
    return zeros
