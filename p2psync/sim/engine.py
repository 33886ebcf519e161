"""An engine in memory, with the semantics of `p2psync.engines.base`: stage beside the live weights, check the digest,
swap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from p2psync.delta.algebra import apply_with_digest
from p2psync.delta.digest import MODULUS, digest_bytes, digest_from_bytes
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.engines.base import ChunkBytes, CommitResult
from p2psync.errors import BaseMismatchError, DigestMismatchError, EngineError
from p2psync.protocol.versions import PathStep, Position
from p2psync.sim.weights import ModelVersions, digest_of


class MemoryEngine:
    """Holds the bits of one version. They outlive the node's process; an open stage does not."""

    def __init__(self, bits: ModelVersions, live: tuple[Units, ...] | None = None) -> None:
        """live: local weights whose version is unknown."""
        self.bits = bits
        self.live = live
        self._position: Position | None = None

    @property
    def position(self) -> Position | None:
        """The live version."""
        return self._position

    def forget(self) -> None:
        """Forgets which version is live, but keeps the bits."""
        self._position = None

    def local_digest(self) -> str:
        """Returns the digest (hex) of bits whose version is unknown, "" if there are none."""
        return digest_of(self.bits.specs, self.live).hex() if self.live is not None and self._position is None else ""

    def table(self) -> Sequence[TensorSpec]:
        """Returns the specs of the live tensors."""
        return self.bits.specs if self.live is not None else ()

    def adopt(self, position: Position) -> bool:
        """Takes the local bits as `position` if they have its digest; returns whether they do."""
        if self.live is None or digest_of(self.bits.specs, self.live) != position.digest:
            return False
        self._position = position
        return True

    def stage(self, path: Sequence[PathStep]) -> MemoryStage:
        """Opens a stage. Raises `BaseMismatchError` if the path does not start at the live version."""
        first = path[0].manifest
        live = self._position
        if first.base is not None and (live is None or (live.version, live.digest) != (first.base, first.base_digest)):
            raise BaseMismatchError(f"a path from version {first.base} does not start at the live version")
        return MemoryStage(self, path)

    def make_live(self, units: tuple[Units, ...], position: Position) -> None:
        """Swaps the live bits."""
        self.live, self._position = units, position

    def scrub(self) -> bool:
        """Returns whether the live bits have the digest of the live version."""
        live = self._position
        return live is not None and self.live is not None and digest_of(self.bits.specs, self.live) == live.digest


class MemoryStage:
    """A version being staged. Chunks of a step must come before those of the next."""

    def __init__(self, engine: MemoryEngine, path: Sequence[PathStep]) -> None:
        self._engine = engine
        self._path = path
        self._missing = [set(range(step.manifest.chunks)) for step in path]
        live = engine.live if path[0].manifest.base is not None else None
        self._digest = digest_from_bytes(path[0].manifest.base_digest)
        if live is None:
            self._units = tuple(_zeros(spec) for spec in engine.bits.specs)
            self._digest = digest_from_bytes(digest_of(engine.bits.specs, self._units))
        else:
            self._units = tuple(units.copy() for units in live)
        self.changed = 0

    def wanted(self, step: int) -> list[int]:
        """Returns the missing chunks of a step."""
        return sorted(self._missing[step])

    def put(self, step: int, chunks: Mapping[int, ChunkBytes]) -> None:
        """Decodes and adds chunks. Raises `FormatError`, `EngineError`."""
        if not chunks.keys() <= self._missing[step] or any(self._missing[:step]):
            raise EngineError(f"chunks {sorted(chunks)} of step {step} came twice or too early")
        manifest = self._path[step].manifest
        for data in chunks.values():
            for block in self._engine.bits.decode(bytes(data), manifest.table, manifest.rows()):
                self._digest += apply_with_digest(self._engine.bits.specs[block.row], self._units[block.row], block)
                self.changed += block.changed
        self._missing[step] -= chunks.keys()

    def commit(self) -> CommitResult:
        """Checks the digest and swaps. Raises `EngineError`, `DigestMismatchError`."""
        if any(self._missing):
            raise EngineError("chunks are missing")
        m = self._path[-1].manifest
        check_digest(digest_bytes(self._digest % MODULUS), m.digest)
        position = Position(run=m.run, epoch=m.epoch, version=m.version, digest=m.digest)
        self._engine.make_live(self._units, position)
        return CommitResult(position=position, changed=self.changed, pause_seconds=0.0, stage_seconds=0.0)

    def abandon(self) -> None:
        """Discards the stage."""


def check_digest(found: bytes, wanted: bytes) -> None:
    """Raise `DigestMismatchError` unless the two agree."""
    if found != wanted:
        raise DigestMismatchError("the staged weights do not have the digest that the manifest signs")


def _zeros(spec: TensorSpec) -> Units:
    return np.zeros(spec.count, spec.unit)
