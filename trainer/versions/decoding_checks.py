"""Checks that chunks which were just written decode to the bits that they were made from: else nothing is announced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from p2psync.delta.algebra import densify
from p2psync.delta.block import block_count, block_range
from p2psync.delta.container import iter_chunk
from p2psync.delta.digest import digest_bytes
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.errors import DigestMismatchError
from p2psync.parallel import in_parallel
from p2psync.protocol.manifest import Manifest

UnitsOf = Callable[[TensorSpec], Units]


def compare_anchor(
    manifest: Manifest, chunks: Iterable[bytes], units_of: UnitsOf, blocks: Iterable[tuple[int, int, int]]
) -> None:
    """Decode chunks of an anchor, and compare them with the bits that they were made from, bit for bit.

    units_of: returns the bits of one tensor. blocks: the blocks that these chunks are to hold, as (row, start, stop) in
    units; a block of zeros may be missing. Raises `DigestMismatchError`, and what `chunks` raises.
    """
    rows = manifest.rows()

    def same(data: bytes) -> set[tuple[int, int]]:
        seen = set()
        for block in iter_chunk(data, rows, manifest.block_units):
            spec = rows[block.row].spec
            if not np.array_equal(densify(block), units_of(spec)[block.start : block.start + block.count]):
                raise DigestMismatchError(f"{spec.name}: decodes to other bits than were encoded: not announced")
            seen.add((block.row, block.start))
        return seen

    seen = set[tuple[int, int]]().union(*in_parallel(same, chunks))
    for row, start, stop in blocks:
        spec = rows[row].spec
        if (row, start) not in seen and units_of(spec)[start:stop].any():
            raise DigestMismatchError(f"{spec.name}: a block was not encoded: not announced")


def all_blocks(manifest: Manifest) -> Iterator[tuple[int, int, int]]:
    """Yields (row, start, stop) of every block of a version, in units."""
    for index, row in enumerate(manifest.rows()):
        for number in range(block_count(row.spec, manifest.block_units)):
            start, count = block_range(row.spec, manifest.block_units, number)
            yield index, start, start + count


def check_outcome(manifest: Manifest, digest: int) -> None:
    """Compare the digest of the bits that a version decodes to with the signed one. Raises `DigestMismatchError`."""
    if digest_bytes(digest) != manifest.digest:
        raise DigestMismatchError(f"version {manifest.version} decodes to other bits than were encoded: not announced")
