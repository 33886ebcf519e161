"""Converts a chain of deltas so that every delta can be read without weights (is base-free).

A `tight` delta can only be decoded against its base. This module decodes the chain's `tight` deltas one after another
and writes each again in profile `fast`. The base of a delta is the chain's base with all earlier deltas applied; the
tensors that these change are copied to memory-mapped files, so that the model need not fit into memory. Nothing is
copied or written after the last `tight` delta.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from p2psync.delta.algebra import apply_block, reblock
from p2psync.delta.block import Block
from p2psync.delta.tensors import TableRow, TensorSpec, Units
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.compose import BASE_FREE_PROFILES, DeltaReader, check_chain, iter_blocks
from p2psync.engines.offline.rebuild import check_base_table
from p2psync.errors import BaseMismatchError, FormatError, UsageError
from p2psync.store.deltafile import DeltaFile, DeltaFileWriter
from p2psync.store.disk import disk_errors
from p2psync.store.encoding import DELTA_BLOCK_UNITS, Encoding


def needs_base(chain: Sequence[DeltaReader]) -> bool:
    """Returns whether some delta of the chain cannot be read without weights."""
    return any(delta.manifest.profile not in BASE_FREE_PROFILES for delta in chain)


def make_base_free(
    chain: Sequence[DeltaFile], base: Checkpoint | None, scratch: Path, stack: ExitStack
) -> list[DeltaReader]:
    """Returns the chain with each `tight` delta replaced by an equal one in profile `fast`.

    base: the checkpoint that the first delta starts from. scratch: a directory for temporary files. stack: closes the
    files that are opened. Raises `UsageError` if a base is needed and none is given, `BaseMismatchError` if it is not
    the chain's base or the chain has a gap, `FormatError`, `StoreError`.
    """
    if not needs_base(chain):
        return list(chain)
    tight = [i for i, delta in enumerate(chain) if delta.manifest.profile not in BASE_FREE_PROFILES]
    if base is None:
        raise UsageError(
            f"{chain[tight[0]].path} is of profile {chain[tight[0]].manifest.profile}, which is read against the "
            "weights it starts from: name the checkpoint that the first delta starts from, by --base"
        )
    check_chain(chain)
    check_base_table(base, chain[0])
    if base.digest() != chain[0].manifest.base_digest:
        raise BaseMismatchError(f"{base.root} is not the base of {chain[0].path}: name the one that it was made from")
    found: list[DeltaReader] = list(chain)
    weights = _ScratchWeights(base, scratch)
    for i, delta in enumerate(chain[: tight[-1] + 1]):
        rows = delta.manifest.rows()
        blocks = weights.applied(delta, rows, last=i == tight[-1])
        if i in tight:
            path = scratch / f"step-{i}"
            _write(path, delta, reblock(blocks, rows, DELTA_BLOCK_UNITS))
            found[i] = DeltaFile(path)
            stack.callback(found[i].close)
        else:
            for _ in blocks:
                pass
    return found


class _ScratchWeights:
    """The weights that the next delta starts from: the base, and copies of the tensors that were changed since."""

    def __init__(self, base: Checkpoint, directory: Path) -> None:
        self._base = base
        self._directory = directory
        self._copies: dict[TensorSpec, Units] = {}

    def applied(self, delta: DeltaFile, rows: Sequence[TableRow], *, last: bool) -> Iterator[Block]:
        """Yields the blocks of a delta and applies each one afterwards, unless `last`: no later delta needs it."""

        def old(index: int) -> Units:
            if not rows[index].before:
                raise FormatError(f"it asks for old bits of {rows[index].spec.name}, which has none")
            return self._units(rows[index].spec)

        for block in iter_blocks(delta, old):
            yield block
            if not last:
                apply_block(self._writable(rows[block.row].spec), block)

    def _units(self, spec: TensorSpec) -> Units:
        own = self._copies.get(spec)
        return own if own is not None else self._base.units(spec)

    def _writable(self, spec: TensorSpec) -> Units:
        """Returns a writable copy of a tensor's bits: zeros where the tensor does not exist."""
        own = self._copies.get(spec)
        if own is None:
            path = self._directory / f"tensor-{len(self._copies)}"
            with disk_errors(path):
                own = np.memmap(path, spec.unit, "w+", shape=(spec.count,))
            if spec in self._base.layout.offsets:
                own[:] = self._base.units(spec)
            self._copies[spec] = own
        return own


def _write(path: Path, delta: DeltaFile, blocks: Iterator[Block]) -> None:
    with DeltaFileWriter(path) as writer:
        encoding = Encoding(writer, delta.manifest.rows())
        for block in blocks:
            encoding.take_block(block)
        encoding.finish()
        writer.finish(encoding.manifest_like(delta.manifest))
