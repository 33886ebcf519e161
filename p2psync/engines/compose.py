"""Composes a chain of deltas into one, and inverts a delta, block by block, without any weights.

Theory of operation. Every delta is a stream of blocks in rising order of (tensor, start). The streams of a chain are
merged by that key, and blocks with the same key are composed in the chain's order. Memory: one chunk of each stream,
never a whole tensor.

The result has the form that extraction from weights gives, so that a composed chain equals, byte for byte, the delta
between its ends:

- a tensor that exists at neither end is not in the table, and its steps must cancel out;
- a block is dense where extraction makes it dense (`normalize`), and absent where nothing changed.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from p2psync.delta import algebra
from p2psync.delta.block import Block
from p2psync.delta.container import decode_chunk
from p2psync.delta.tensors import TableRow, TensorSpec, Units
from p2psync.errors import BaseMismatchError, FormatError, UsageError
from p2psync.parallel import in_parallel
from p2psync.protocol.manifest import Manifest
from p2psync.store.encoding import DELTA_BLOCK_UNITS

#: Profiles whose chunks can be decoded without the weights that the delta starts from.
BASE_FREE_PROFILES = ("fast",)


class DeltaReader(Protocol):
    """A delta that is read chunk by chunk: a delta file, or a pack of a store."""

    @property
    def path(self) -> Path:
        """The file, for messages."""

    @property
    def manifest(self) -> Manifest:
        """The delta's manifest."""

    def chunk(self, index: int) -> bytes:
        """Returns chunk `index`, verified. Raises `P2PSyncError`."""

    def close(self) -> None:
        """Closes the file. Nothing may be read afterwards."""


def iter_blocks(delta: DeltaReader, base: Callable[[int], Units] | None = None) -> Iterator[Block]:
    """Yields the blocks of a delta in rising order, from verified chunks. Raises `FormatError`.

    base: returns the old units of a row, for profiles that need them.
    """
    rows, last = delta.manifest.rows(), (-1, -1)

    def decode(index: int) -> list[Block]:
        data = delta.chunk(index)
        try:
            return decode_chunk(data, rows, delta.manifest.block_units, base)
        except FormatError as error:
            raise FormatError(f"{delta.path}: chunk {index}: {error}") from None

    for index, blocks in enumerate(in_parallel(decode, range(delta.manifest.chunks))):
        for block in blocks:
            if (block.row, block.start) <= last:
                raise FormatError(f"{delta.path}: chunk {index}: its blocks do not come after those before it")
            last = (block.row, block.start)
            yield block


def normalize(block: Block, row: TableRow) -> Block:
    """Returns the block as extraction makes it.

    Dense if every unit changed, or over half of a block of a tensor that is added or removed; else sparse.
    """
    changed = block.changed
    dense = changed == block.count if row.before and row.after else 2 * changed > block.count
    if dense == (block.positions is None):
        return block
    if dense:
        return dataclasses.replace(block, positions=None, steps=algebra.densify(block))
    where = np.flatnonzero(block.steps).astype(np.uint32)
    return dataclasses.replace(block, positions=where, steps=block.steps[where])


def invert_delta(delta: DeltaReader) -> tuple[list[TableRow], Iterator[Block]]:
    """Returns table and blocks of the inverse of `delta`. Raises `UsageError`; the blocks raise `FormatError`."""
    _check_base_free(delta)
    rows = [TableRow(row.spec, row.after, row.before) for row in delta.manifest.rows()]
    return rows, (
        normalize(algebra.invert(block), rows[block.row]) for block in _standard_blocks(delta) if block.changed
    )


def compose_chain(chain: Sequence[DeltaReader]) -> tuple[list[TableRow], Iterator[Block]]:
    """Returns table and blocks of the one delta that equals the chain. At least one delta.

    Raises `BaseMismatchError` where a delta does not start where the one before it ends, `UsageError`; the blocks raise
    `FormatError`.
    """
    for delta in chain:
        _check_base_free(delta)
    check_chain(chain)
    before = {row.spec for row in chain[0].manifest.rows() if row.before}
    after = {row.spec for row in chain[-1].manifest.rows() if row.after}
    rows = [TableRow(spec, spec in before, spec in after) for spec in sorted(before | after)]
    return rows, _merge(chain, {row.spec: index for index, row in enumerate(rows)}, rows)


def _merge(chain: Sequence[DeltaReader], row_of: Mapping[TensorSpec, int], rows: Sequence[TableRow]) -> Iterator[Block]:
    every = sorted({row.spec for delta in chain for row in delta.manifest.rows()})
    numbers = {spec: number for number, spec in enumerate(every)}
    streams = [_numbered(delta, numbers) for delta in chain]
    # heapq.merge is stable: blocks of one key come in the order of the chain.
    for (number, _), group in itertools.groupby(heapq.merge(*streams, key=_block_key), key=_block_key):
        block = _compose_blocks(group)
        if block is None:
            continue
        index = row_of.get(every[number])
        if index is None:
            raise FormatError(
                f"{every[number].name} is added and removed within the chain, but its steps do not cancel out"
            )
        yield normalize(dataclasses.replace(block, row=index), rows[index])


def _numbered(delta: DeltaReader, numbers: Mapping[TensorSpec, int]) -> Iterator[Block]:
    """Yields the blocks with their tensor's number as `row`; both rise together, since tables are sorted."""
    rows = delta.manifest.rows()
    for block in _standard_blocks(delta):
        yield dataclasses.replace(block, row=numbers[rows[block.row].spec])


def _compose_blocks(blocks: Iterator[Block]) -> Block | None:
    total: Block | None = None
    for block in blocks:
        total = block if total is None else algebra.compose(total, block)
    return total if total is not None and total.changed else None


def _standard_blocks(delta: DeltaReader) -> Iterator[Block]:
    blocks = iter_blocks(delta)
    if delta.manifest.block_units == DELTA_BLOCK_UNITS:
        return blocks
    return algebra.reblock(blocks, delta.manifest.rows(), DELTA_BLOCK_UNITS)


def _block_key(block: Block) -> tuple[int, int]:
    return block.row, block.start


def _check_base_free(delta: DeltaReader) -> None:
    if delta.manifest.profile not in BASE_FREE_PROFILES:
        raise UsageError(
            f"{delta.path} is of profile {delta.manifest.profile}, which is read against the weights it starts from"
        )


def check_chain(chain: Sequence[DeltaReader]) -> None:
    """Raises `BaseMismatchError` unless each delta starts where the one before it ends."""
    for first, then in itertools.pairwise(chain):
        ends = [row.spec for row in first.manifest.rows() if row.after]
        begins = [row.spec for row in then.manifest.rows() if row.before]
        if first.manifest.digest != then.manifest.base_digest or ends != begins:
            raise BaseMismatchError(
                f"{then.path} does not start where {first.path} ends: give the chain whole, in order"
            )
