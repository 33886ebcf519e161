"""A record of what the bits of a snapshot must be, block by block, kept apart from them so that damage shows.

Of each block of each tensor the record holds two fingerprints. The *sums* (`p2psync.delta.kernels.block_sums`) are
compared at each publish, of every block, with those that the encoder's scan takes of the old bits on its way: no delta
is signed whose old bits are not those that were published. The *digest* is compared by the scrub, a block at a time,
whenever there is time; it also tells what the sums do not.

The record never rests on the snapshot's bits alone. It is taken while their digest is compared with the signed one,
sums first. From then on new sums are those of the source, as the scan read it, and digests follow the steps of the
delta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from p2psync.delta.block import MAX_BLOCK_UNITS, Block, block_count, block_range, block_span
from p2psync.delta.digest import MODULUS, digest_units
from p2psync.delta.kernels.block_sums import BlockSums, ScanSums, sum_blocks
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.errors import DigestMismatchError
from p2psync.parallel import in_parallel

#: Blocks that one task reads while a record is taken: with so many, a task's overhead is lost in its reading.
_TASK_BLOCKS = 8
#: Returns the bits of one tensor.
UnitsOf: TypeAlias = Callable[[TensorSpec], Units]
#: The sums that the scans of a publish took, by tensor.
Scans: TypeAlias = Mapping[TensorSpec, ScanSums]


class BitRecord:
    """The sums and digests of all blocks of some tensors."""

    def __init__(self, specs: Sequence[TensorSpec], units_of: UnitsOf) -> None:
        """Take the record of the bits as they are: reads all of them, on all cores."""
        self._specs = list(specs)
        self._sums: dict[TensorSpec, BlockSums] = {}
        self._digests: dict[TensorSpec, list[int]] = {spec: [] for spec in self._specs}
        found: dict[TensorSpec, list[BlockSums]] = {spec: [] for spec in self._specs}
        for spec, sums, digests in in_parallel(lambda task: _read(*task, units_of), _tasks(self._specs)):
            found[spec].append(sums)
            self._digests[spec] += digests
        for spec, parts in found.items():
            self._sums[spec] = np.concatenate(parts) if parts else sum_blocks(spec, np.empty(0, spec.unit))
        #: The block that is scrubbed next: index of the tensor, and of the block in it.
        self._next = (0, 0)

    @property
    def digest(self) -> int:
        """The digest of all bits, mod 2^128, as the record has it."""
        return sum(sum(digests) for digests in self._digests.values()) % MODULUS

    def check(self, spec: TensorSpec, scan: ScanSums) -> None:
        """Compare a scan's old bits with the record, and the steps that it found with the sums of old and new bits.

        Raises `DigestMismatchError` for a damaged block, or a change that the scan missed.
        """
        self.compare(spec, scan.old)
        if missed := scan.missed():
            raise DigestMismatchError(f"{spec.name}: the scan of block {missed[0]} missed a change: not published")

    def compare(self, spec: TensorSpec, sums: BlockSums) -> None:
        """Compare the sums of all blocks of a tensor with the record. Raises `DigestMismatchError`."""
        wrong = np.flatnonzero((sums != self._sums[spec]).any(axis=(1, 2)))
        if wrong.size:
            raise _damaged(spec, int(wrong[0]))

    def block_applied(self, spec: TensorSpec, block: Block, change: int) -> None:
        """Take in a block of a delta that was applied and adds `change` to the digest; `set_sums` follows."""
        span = block_span(spec.width, MAX_BLOCK_UNITS)
        self._digests[spec][block.start // span] += change

    def set_sums(self, spec: TensorSpec, sums: BlockSums) -> None:
        """Replace the sums of a tensor."""
        self._sums[spec] = sums.copy()

    def scrub(self, units_of: UnitsOf) -> int:
        """Digest one block, the next one in turn; returns its bytes. Raises `DigestMismatchError` for a damaged one."""
        row, index = self._next
        while row < len(self._specs) and index >= len(self._digests[self._specs[row]]):
            row, index = row + 1, 0
        if row >= len(self._specs):
            self._next = (0, 0)
            return 0
        self._next = (row, index + 1)
        spec = self._specs[row]
        start, count = block_range(spec, MAX_BLOCK_UNITS, index)
        if (digest_units(spec, units_of(spec)[start : start + count], start) - self._digests[spec][index]) % MODULUS:
            raise _damaged(spec, index)
        return count * spec.width


def _tasks(specs: Sequence[TensorSpec]) -> Iterator[tuple[TensorSpec, int, int]]:
    for spec in specs:
        blocks = block_count(spec, MAX_BLOCK_UNITS)
        for first in range(0, blocks, _TASK_BLOCKS):
            yield spec, first, min(blocks, first + _TASK_BLOCKS)


def _read(spec: TensorSpec, first: int, stop: int, units_of: UnitsOf) -> tuple[TensorSpec, BlockSums, list[int]]:
    """Returns sums and digests of some blocks. Sums come first: damage between both readings spoils the digest."""
    units, ranges = units_of(spec), [block_range(spec, MAX_BLOCK_UNITS, index) for index in range(first, stop)]
    end = ranges[-1][0] + ranges[-1][1]
    sums = sum_blocks(spec, units[ranges[0][0] : end])
    return spec, sums, [digest_units(spec, units[start : start + count], start) for start, count in ranges]


def _damaged(spec: TensorSpec, index: int) -> DigestMismatchError:
    return DigestMismatchError(f"the snapshot is damaged in block {index} of {spec.name}")
