"""A snapshot without a copy: the module's own bf16 parameters, which publishing refreshes from fp32 masters.

Where an optimizer holds fp32 masters, the bf16 parameters are the bits published last until they are refreshed. So new
bits, the rounded masters, are compared with the parameters, and written into them once the version is durable. Tensors
without masters change in place; of those a copy is kept.

From the first publish on only this snapshot writes the parameters: the optimizer updates masters, and `publish` brings
the parameters up to date. Nothing enforces that, so every version begins with the digest of all parameters, one more
read of them. If it is not that of the last version (other code refreshed them, or memory failed), they are rebuilt from
the store's anchor and deltas, and then compared: no version is made from a wrong base.

After a crash the parameters are gone with the process. The next start rebuilds the last published bits from the store,
into the parameters, each step checked by its digest. The first publish then refreshes them from the masters that the
training resumed with, earlier or later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch

from p2psync.delta.block import Block
from p2psync.delta.container import decode_chunk
from p2psync.delta.kernels.block_sums import ScanSums
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.engines.base import PathStep
from p2psync.engines.module.engine import ModuleEngine
from p2psync.engines.module.live_tensors import flat_bits
from p2psync.engines.module.table import ModuleTable, table_source, tensor_table
from p2psync.errors import DigestMismatchError, EngineError, UsageError
from p2psync.protocol.manifest import Manifest
from p2psync.protocol.versions import Position
from p2psync.trainer.versions.bit_record import Scans
from p2psync.trainer.versions.snapshot import ReadChunk


class ResidentSnapshot:
    """The bits of the last published version, in the parameters themselves. See `trainer.versions.snapshot`."""

    def __init__(
        self, parameters: Mapping[str, torch.Tensor] | Callable[[], ModuleTable], others: Mapping[str, torch.Tensor]
    ) -> None:
        """parameters: the bf16 parameters that have masters, by the masters' names, or a function that returns their
        table and is called at each look-up. others: the tensors that are published as they are; copied here.

        Raises `UsageError` for parameters that are not bf16.
        """
        self._parameters = table_source(parameters)
        self._copies = tensor_table({name: tensor.detach().clone() for name, tensor in others.items()})
        self._seen = self._parameters()
        for spec, tensor in self._seen.rows.items():
            if tensor.dtype != torch.bfloat16:
                raise UsageError(
                    f"{spec.name}: {tensor.dtype}; only bf16 parameters can be the copy of what was published"
                )
        self._table = self._seen.with_rows(self._copies)
        self.reopen()

    @property
    def position(self) -> Position | None:
        """The version that the bits are; None if they were not verified."""
        return self._engine.position

    @property
    def specs(self) -> Sequence[TensorSpec]:
        """The tensors, sorted."""
        return self._engine.table() if self.position is not None else []

    def units(self, spec: TensorSpec) -> Units:
        """Returns the bits of one tensor: a view of a contiguous CPU tensor, else a copy."""
        return self._engine.units(spec)

    def tensor(self, spec: TensorSpec) -> torch.Tensor | None:
        """See `DeviceBaseVersion`."""
        entry = self._table.entries.get(spec)
        return flat_bits(entry.tensor) if entry is not None else None

    def is_sound(self) -> bool:
        """Returns whether the digest of all bits is that of the version published last."""
        return self._engine.scrub()

    def is_intact(self) -> bool:
        """True: nobody can cut memory short. See `Snapshot.is_intact`."""
        return True

    def check(self, spec: TensorSpec, scan: ScanSums | None) -> None:
        """Does nothing: `is_sound` digested every bit just before."""

    def scrub(self) -> int:
        """Return 0: every publish digests all bits."""
        return 0

    def verify(self) -> None:
        """See `Snapshot`."""
        if not self.is_sound():
            self.distrust()

    def reopen(self) -> None:
        """Forget the position: the builder rebuilds the bits from the store."""
        self._engine = ModuleEngine(self._look_up)

    def distrust(self) -> None:
        """See `Snapshot`."""
        self.reopen()

    def advance(
        self,
        manifest: Manifest,
        chunks: ReadChunk,
        position: Position,
        on_block: Callable[[Block], None] | None = None,
        scans: Scans | None = None,
    ) -> None:
        """Write one version into the parameters, whose digest is checked first; on an error they stay as they were.

        chunks: returns chunk `index`. on_block: called with each block, in order. Raises `DigestMismatchError`, also
        for a version of other tensors.
        """
        step = PathStep(b"", manifest)
        try:
            stage = self._engine.stage([step])
            if on_block is not None:
                self._tell(manifest, chunks, on_block)
            for index in stage.wanted(0):
                stage.put(0, {index: chunks(index)})
            stage.commit()
        except EngineError as error:
            raise DigestMismatchError(f"version {manifest.version} cannot be written to the module: {error}") from error

    def _tell(self, manifest: Manifest, chunks: ReadChunk, on_block: Callable[[Block], None]) -> None:
        rows = manifest.rows()
        # The units of a device tensor are a copy; blocks come tensor after tensor.
        base = lru_cache(maxsize=1)(lambda index: self.units(rows[index].spec))
        for index in range(manifest.chunks):
            for block in decode_chunk(chunks(index), rows, manifest.block_units, base):
                on_block(block)

    def _look_up(self) -> ModuleTable:
        """Returns the table of the parameters, where they are now, and of the copies."""
        parameters = self._parameters()
        if parameters is not self._seen:
            self._seen, self._table = parameters, parameters.with_rows(self._copies)
        return self._table

    def close(self) -> None:
        """Does nothing: no resource is held."""
