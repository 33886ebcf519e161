"""Extraction of a tensor's changed units and their steps.

Change means that the bits differ; nothing is ever compared as a floating-point number. The arrays may begin at any
byte (a memory-mapped safetensors file), and are only read.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.block import MAX_BLOCK_BYTES, Block
from p2psync.delta.digest import MODULUS, digest_change, digest_units, join_change, tensor_key, unit_witness
from p2psync.delta.kernels import unit_loops
from p2psync.delta.tensors import TensorSpec, Units

_Arrays = tuple[NDArray[np.uint32], Units, Units]
_local = threading.local()
#: A read-only block of zeros that stands for an absent tensor. It is made at import, since loops get its bare address:
#: it must outlive every call.
_ZEROS = np.zeros(MAX_BLOCK_BYTES, np.uint8)
_ZEROS.flags.writeable = False


@dataclass(frozen=True, slots=True, eq=False)
class FoundChanges:
    """A block whose changes were found elsewhere (on a device), and the old bits of the changed units.

    block: on the codec's grid, as `extract_block` returns it: dense if every unit changed. olds: the old bits, one for
    each step. No other object writes to the arrays.
    """

    block: Block
    olds: Units

    def digest_change(self, spec: TensorSpec) -> int:
        """The block's change of the digest, mod 2^128. Raises `ValueError` if the arrays differ in length."""
        return digest_change(spec, self.block.start, self.block.positions, self.olds, self.olds + self.block.steps)


def found_block(
    row: int, start: int, count: int, positions: NDArray[np.uint32], olds: Units, steps: Units
) -> FoundChanges | None:
    """The changes that a scan of units [start, start + count) found; None if there are none."""
    if not positions.size:
        return None
    return FoundChanges(Block(row, start, count, None if positions.size == count else positions, steps), olds)


def extract_block(row: int, old: Units | None, new: Units | None, start: int, count: int) -> Block | None:
    """The block of units [start, start + count) between two flat unit arrays of a whole tensor; None if none differ.

    `old=None` stands for zeros (an added tensor), `new=None` too (a removed one). The block is dense when every unit
    changed, or when a tensor was added or removed and more than half of its units are not zero. Raises `ValueError`
    for arrays that do not fit together, or for a block of more than `MAX_BLOCK_BYTES`.
    """
    return Extraction(row, old, new).block(start, count)


def extract_with_digest(
    spec: TensorSpec, row: int, old: Units | None, new: Units | None, start: int, count: int
) -> tuple[Block | None, int]:
    """Returns the block of `extract_block`, and the change of the digest by these units, mod 2^128.

    Of an added tensor every unit counts, also zeros, so the change may be non-zero where there is no block.
    """
    return Extraction(row, old, new).block_with_digest(spec, start, count)


class Extraction:
    """Extracts many blocks of one tensor, and checks the arrays once."""

    def __init__(self, row: int, old: Units | None, new: Units | None) -> None:
        """Raises `ValueError` unless at least one array is given, and both have one length and unit."""
        given = old if old is not None else new
        if given is None:
            raise ValueError("neither old nor new units are given")
        for array in (old, new):
            if array is not None and (array.shape != (given.size,) or array.dtype != given.dtype):
                raise ValueError("old and new are not flat arrays of the same length and unit")
            if array is not None and not array.flags.c_contiguous:
                raise ValueError("old and new must be contiguous")
        self._row, self._old, self._new = row, old, new
        self._size, self._unit = given.size, given.dtype
        #: The tensor that the digest is of, and its key.
        self._spec: TensorSpec | None = None
        self._key: NDArray[np.uint64]
        #: The old bits of the last `block_with_digest`; valid until this thread scans again.
        self.olds: Units = np.empty(0, self._unit)
        self._old_address = 0 if old is None else unit_loops.address(old)
        self._new_address = 0 if new is None else unit_loops.address(new)

    @property
    def addresses(self) -> tuple[int, int]:
        """Addresses of the first old and new unit; 0 for an absent array. The arrays must outlive their use."""
        return self._old_address, self._new_address

    def block(self, start: int, count: int) -> Block | None:
        """See `extract_block`."""
        self._check(start, count)
        if self._old is None or self._new is None:
            return self._whole(start, count)
        return self._sparse(start, count, self._scan(start, count))

    def block_with_digest(self, spec: TensorSpec, start: int, count: int, sums: int = 0) -> tuple[Block | None, int]:
        """See `extract_with_digest`. sums: see `unit_loops.scan`; not written if an array is absent."""
        self._check(start, count)
        if spec is not self._spec:
            if self._unit != spec.unit:
                raise ValueError(f"{spec.name}: arrays of {spec.unit} are wanted")
            self._spec, self._key = spec, tensor_key(spec)
        if self._old is None or self._new is None:
            change = 0
            if self._new is not None:
                change = digest_units(spec, self._new[start : start + count], start)
            if self._old is not None:
                change = -digest_units(spec, self._old[start : start + count], start) % MODULUS
            return self._whole(start, count), change
        found = self._scan(start, count, sums)
        positions, olds, steps = found
        self.olds = olds
        if not positions.size:
            return None, 0
        parts = unit_loops.sum_change(positions, olds, steps, positions.size, start, self._key)
        return self._sparse(start, count, found), join_change(*parts)

    def _check(self, start: int, count: int) -> None:
        if not 0 <= start <= start + count <= self._size or count * self._unit.itemsize > MAX_BLOCK_BYTES:
            raise ValueError(f"block [{start}, {start + count}) of a tensor of {self._size} units")

    def _scan(self, start: int, count: int, sums: int = 0) -> _Arrays:
        """Positions, old bits and steps of the changes; valid until this thread scans again."""
        positions, olds, steps = _scratch(count + unit_loops.GROUP, self._unit)
        n = unit_loops.scan(*self._addresses(start), count, positions, olds, steps, sums)
        return positions[:n], olds[:n], steps[:n]

    def _sparse(self, start: int, count: int, found: _Arrays) -> Block | None:
        positions, _, steps = found
        if not positions.size:
            return None
        return Block(self._row, start, count, None if positions.size == count else positions.copy(), steps.copy())

    def _whole(self, start: int, count: int) -> Block | None:
        """The block of an added or removed tensor."""
        old, new = self._addresses(start)
        if 2 * unit_loops.count_changed(old, new, count, unit_witness(self._unit)) <= count:
            return self._sparse(start, count, self._scan(start, count))
        if self._new is not None:
            return Block(self._row, start, count, None, self._new[start : start + count].copy())
        assert self._old is not None
        return Block(self._row, start, count, None, np.negative(self._old[start : start + count]))

    def _addresses(self, start: int) -> tuple[int, int]:
        offset = start * self._unit.itemsize
        return (
            unit_loops.address(_ZEROS) if self._old is None else self._old_address + offset,
            unit_loops.address(_ZEROS) if self._new is None else self._new_address + offset,
        )


def _scratch(size: int, unit: np.dtype[np.unsignedinteger]) -> _Arrays:
    """Arrays for a scan's finds, kept for the thread: mapping new memory for each block costs as much as coding."""
    kept: dict[np.dtype[np.unsignedinteger], _Arrays] = _local.__dict__.setdefault("arrays", {})
    arrays = kept.get(unit)
    if arrays is None or arrays[0].size < size:
        arrays = kept[unit] = np.empty(size, np.uint32), np.empty(size, unit), np.empty(size, unit)
    return arrays
