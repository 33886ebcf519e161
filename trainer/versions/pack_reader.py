"""Reads back the chunks of the trainer's own packs, and compares an anchor with the bits that it was made from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from p2psync.delta.algebra import densify
from p2psync.delta.block import block_count, block_range
from p2psync.delta.container import iter_chunk
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.errors import DigestMismatchError, StoreError
from p2psync.parallel import in_parallel
from p2psync.store.pack import Pack


class UnreadableError(StoreError):
    """A chunk that the store had is damaged or cannot be read."""


def chunk_reader(pack: Pack) -> Callable[[int], bytes]:
    """Returns a function that reads chunk `index` of a pack and raises `UnreadableError` if it cannot."""

    def chunk(index: int) -> bytes:
        try:
            data = pack.read(index)
        except StoreError as error:
            raise UnreadableError(str(error)) from error
        if data is None:
            raise UnreadableError(f"{pack.path}: chunk {index} cannot be read back: is the disk sound?")
        return data

    return chunk


def compare_whole(pack: Pack, units_of: Callable[[TensorSpec], Units]) -> None:
    """Decode an anchor that was just written, and compare it with the bits it was made from, bit for bit.

    Raises `DigestMismatchError`, `UnreadableError`.
    """
    manifest = pack.manifest
    rows = manifest.rows()

    def same(data: bytes) -> set[tuple[int, int]]:
        seen = set()
        for block in iter_chunk(data, rows, manifest.block_units):
            spec = rows[block.row].spec
            if not np.array_equal(densify(block), units_of(spec)[block.start : block.start + block.count]):
                raise DigestMismatchError(f"{spec.name}: decodes to other bits than were encoded: not announced")
            seen.add((block.row, block.start))
        return seen

    seen = set[tuple[int, int]]().union(*in_parallel(same, map(chunk_reader(pack), range(manifest.chunks))))
    for index, row in enumerate(rows):
        for number in range(block_count(row.spec, manifest.block_units)):
            start, count = block_range(row.spec, manifest.block_units, number)
            if (index, start) not in seen and units_of(row.spec)[start : start + count].any():
                raise DigestMismatchError(f"{row.spec.name}: a block was not encoded: not announced")


def pack_name(pack: Pack) -> str:
    """Returns a description of a pack's version."""
    m = pack.manifest
    return f"the anchor of version {m.version}" if m.base is None else f"the delta {m.base} → {m.version}"
