"""A chain of deltas made readable without weights: `tight` ones are decoded against their bases, one after another.

Each of them is written down once more, in profile `fast`. Its base is the chain's base and all steps before it: tensors
that these change are copied to files of their own, which the kernel may write out, so that memory does not bound the
model. Past the last `tight` delta nothing is copied or written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from p2psync.delta.algebra import apply_block, reblock
from p2psync.delta.block import Block
from p2psync.delta.tensors import Row, TensorSpec, Units
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.compose import BASE_FREE_PROFILES, DeltaReader, check_chain, iter_blocks
from p2psync.engines.offline.rebuild import check_base_table
from p2psync.errors import BaseMismatchError, FormatError, UsageError
from p2psync.store.deltafile import DeltaFile, DeltaFileWriter
from p2psync.store.disk import disk_errors
from p2psync.store.encoding import DELTA_BLOCK, Encoding


def needs_base(chain: Sequence[DeltaReader]) -> bool:
    """Whether some delta of the chain cannot be read without weights."""
    return any(delta.manifest.profile not in BASE_FREE_PROFILES for delta in chain)


def make_base_free(
    chain: Sequence[DeltaFile], base: Checkpoint | None, place: Path, stack: ExitStack
) -> list[DeltaReader]:
    """The chain, or deltas that do the same, none of which needs weights.

    base: what the first delta starts from. place: a directory for scratch files; stack: closes what was opened. Raises
    `UsageError` if a base is needed and none given, `BaseMismatchError` if it is another one or the chain has a gap,
    `FormatError`, `StoreError`.
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
    scratch = _Scratch(base, place)
    for i, delta in enumerate(chain[: tight[-1] + 1]):
        rows = delta.manifest.rows()
        blocks = scratch.applied(delta, rows, last=i == tight[-1])
        if i in tight:
            path = place / f"step-{i}"
            _write(path, delta, reblock(blocks, rows, DELTA_BLOCK))
            found[i] = DeltaFile(path)
            stack.callback(found[i].close)
        else:
            for _ in blocks:
                pass
    return found


class _Scratch:
    """The bits that the next delta starts from."""

    def __init__(self, base: Checkpoint, place: Path) -> None:
        self._base = base
        self._place = place
        self._own: dict[TensorSpec, Units] = {}

    def applied(self, delta: DeltaFile, rows: Sequence[Row], *, last: bool) -> Iterator[Block]:
        """The blocks of a delta, each applied when the next one is asked for, unless it is the last that matters."""

        def old(index: int) -> Units:
            if not rows[index].before:
                raise FormatError(f"it asks for old bits of {rows[index].spec.name}, which has none")
            return self._units(rows[index].spec)

        for block in iter_blocks(delta, old):
            yield block
            if not last:
                apply_block(self._owned(rows[block.row].spec), block)

    def _units(self, spec: TensorSpec) -> Units:
        own = self._own.get(spec)
        return own if own is not None else self._base.units(spec)

    def _owned(self, spec: TensorSpec) -> Units:
        """A tensor's bits, to be written to. One that does not exist is zeros, also after it was removed."""
        own = self._own.get(spec)
        if own is None:
            path = self._place / f"tensor-{len(self._own)}"
            with disk_errors(path):
                own = np.memmap(path, spec.unit, "w+", shape=(spec.count,))
            if spec in self._base.layout.places:
                own[:] = self._base.units(spec)
            self._own[spec] = own
        return own


def _write(path: Path, delta: DeltaFile, blocks: Iterator[Block]) -> None:
    with DeltaFileWriter(path) as writer:
        encoding = Encoding(writer, delta.manifest.rows())
        for block in blocks:
            encoding.take_block(block)
        encoding.finish()
        writer.finish(encoding.manifest_like(delta.manifest))
