"""The engine of a live torch module: stages a version beside the weights and writes it in one short pause.

Theory of operation. Chunks are decoded while the module serves. For each block the engine reads the old bits and
computes the new bits and the change of the digest before the commit. A chain of deltas is composed first, so that each
element is written once. The commit checks the digest, pauses the readers, and scatters the new bits. The old bits at
the changed positions are the undo journal: they undo a commit that fails in the middle, and the last commit on demand,
exactly. All of this is O(changed), except for an anchor, which is staged whole.

Headers and other files of a version are not part of a module. The engine keeps them as bytes, because the digest covers
them.

The engine looks the tensors up again (`module_table`) for each stage and each scrub, so that it follows a module that
was moved or whose `.data` was set. Inside the pause, a commit checks that the module still reads the memory that the
stage read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from p2psync.delta.digest import digest_bytes, digest_from_bytes, digest_units
from p2psync.delta.tensors import TensorKind, TensorSpec, Units
from p2psync.engines.base import ChunkBytes, CommitResult, PathStep, Position
from p2psync.engines.checkpoint.file_names import is_weights
from p2psync.engines.checkpoint.header import blob_spec, canonical_header
from p2psync.engines.module.extra_state import ExtraStateTensor
from p2psync.engines.module.live_tensors import LiveTensor, host_units, live_tensor
from p2psync.engines.module.staging import ModuleStaging, TensorChange, prepare_change_writes
from p2psync.engines.module.table import ModuleTable, Names, module_rows, module_specs, table_source
from p2psync.engines.module.writer import AtomicWriter, Write
from p2psync.engines.path_checks import check_path, position_of
from p2psync.errors import DigestMismatchError, EngineError
from p2psync.protocol.manifest import Manifest

__all__ = [
    "ModuleEngine",
    "ModuleStage",
    "canonical_header",
    "host_units",
    "module_rows",
    "module_specs",
]

#: Makes a context in which nothing reads the weights. Its value is the time (`time.perf_counter`) since which readers
#: wait, or None: since the context was asked for.
Pause = Callable[[], AbstractContextManager[float | None]]


@dataclass(frozen=True, slots=True)
class _UndoJournal:
    """The old state that undoes a commit."""

    position: Position | None
    blobs: dict[TensorSpec, Units]
    changes: list[TensorChange]
    table: ModuleTable


class ModuleStage:
    """A path that is staged beside the live weights."""

    def __init__(
        self, engine: ModuleEngine, path: Sequence[PathStep], staging: ModuleStaging, table: ModuleTable
    ) -> None:
        """table: of the module, as it was when the stage was opened."""
        self._engine = engine
        self._table = table
        self._path = path
        self._staging = staging
        self._seconds = 0.0

    def wanted(self, step: int) -> Sequence[int]:
        """See `Stage.wanted`."""
        return self._staging.wanted(step)

    def put(self, step: int, chunks: Mapping[int, ChunkBytes]) -> None:
        """See `Stage.put`. Ignores chunks that were put before; keeps chunks of a later step undecoded."""
        self._check_open()
        begun = time.perf_counter()
        self._staging.put(step, chunks)
        self._seconds += time.perf_counter() - begun

    def commit(self) -> CommitResult:
        """See `Stage.commit`."""
        self._check_open()
        return self._engine._commit(self._path[-1].manifest, self._staging, self._table, self._seconds)

    def abandon(self) -> None:
        """See `Stage.abandon`."""
        if self._engine._stage is self:
            self._engine._stage = None

    def _check_open(self) -> None:
        if self._engine._stage is not self:
            raise EngineError("this stage was committed or abandoned: stage again")


class ModuleEngine:
    """Keeps a module at a version. One thread drives it at a time; others read the weights under `lock`, per batch.

    A commit or roll-back is refused, with nothing written, if a tensor was moved or replaced since it was staged.
    """

    def __init__(
        self,
        module: torch.nn.Module | Mapping[str, torch.Tensor] | Callable[[], ModuleTable],
        names: Names | None = None,
        position: Position | None = None,
        *,
        files: Mapping[str, bytes] | None = None,
        pause: Pause | None = None,
        threads: int | None = None,
    ) -> None:
        """Wraps a module, named tensors, or a function that returns the table of what is live.

        names: published names by state_dict key (see `module_table`). position: the version that the module holds
        already, if it is known; else see `adopt`. files: headers (.safetensors) and other files of that version by
        path, as `Checkpoint.blobs` returns them; by default one model.safetensors with the canonical header, as a
        publisher of modules has. pause: stops readers; by default they hold `lock` while they read. threads: how many
        write during the pause; by default one per core. Raises `ModuleError`.
        """
        #: Readers of the weights hold it per batch, unless another `pause` was given.
        self.lock = threading.Lock()
        self._tables = table_source(module, names)
        self._pause = pause
        self._position = position
        self._writer = AtomicWriter(threads)
        self._table: ModuleTable | None = None
        self._tensors: dict[TensorSpec, LiveTensor] = {}
        self._look_up()
        for tensor in self._tensors.values():
            if isinstance(tensor, ExtraStateTensor):
                tensor.check_round_trip()
        if files is None:
            files = {"model.safetensors": canonical_header(self._tensors)}
        self._blobs = {_blob_spec(path, data): np.frombuffer(data, np.uint8) for path, data in files.items()}
        self._stage: ModuleStage | None = None
        self._journal: _UndoJournal | None = None
        #: The position to which a commit or roll-back under way leads.
        self._target: Position | None = position

    @property
    def position(self) -> Position | None:
        """See `Engine.position`."""
        return self._position

    def table(self) -> Sequence[TensorSpec]:
        """See `Engine.table`: the module's tensors, and the files that are kept with them."""
        return sorted([*self._tensors, *self._blobs])

    def units(self, spec: TensorSpec) -> Units:
        """See `Engine.units`: a view of a contiguous CPU tensor, else a copy."""
        if spec in self._blobs:
            return self._blobs[spec]
        if self._table is None or not self._table.is_current(spec):
            self._look_up()
        return self._tensors[spec].units()

    def adopt(self, position: Position) -> bool:
        """See `Engine.adopt`: reads the whole module. Also False if that version has other files than this engine."""
        self._stage = None
        self._look_up()
        if self.digest() != position.digest:
            return False
        self._position = position
        self._journal = None
        return True

    def stage(self, path: Sequence[PathStep]) -> ModuleStage:
        """See `Engine.stage`. Also raises `MisfitError` if the path's tensors are not the module's."""
        table = self._look_up()
        check_path(path, self._position, self.table())
        self._stage = ModuleStage(self, path, ModuleStaging(path, self._tensors, self._blobs), table)
        return self._stage

    def roll_back(self) -> Position | None:
        """See `Engine.roll_back`."""
        journal = self._journal
        if journal is None:
            raise EngineError("nothing was committed since the last roll-back: nothing to undo")
        self._stage = None
        new = [c.new for c in journal.changes]
        writes = self._prepare(journal.changes, [c.old for c in journal.changes], new)

        self._target = journal.position
        self._table = journal.table

        def restore() -> None:
            self._position, self._blobs, self._journal = journal.position, journal.blobs, None

        self._write(journal.changes, writes, new, restore)
        return self._position

    def scrub(self) -> bool:
        """See `Engine.scrub`."""
        if self._position is None:
            return True
        self._look_up()
        return self.digest() == self._position.digest

    def _commit(self, manifest: Manifest, staging: ModuleStaging, table: ModuleTable, seconds: float) -> CommitResult:
        begun = time.perf_counter()
        changes = staging.finish()
        base = digest_from_bytes(self._position.digest) if self._position is not None and not staging.from_anchor else 0
        if digest_bytes(base + staging.digest) != manifest.digest:
            self._stage = None
            raise DigestMismatchError(
                f"version {manifest.version} would not have the digest that its manifest signs; nothing was made live"
            )
        old = [c.old for c in changes]
        writes = self._prepare(changes, [c.new for c in changes], old)
        seconds += time.perf_counter() - begun
        position, journal = position_of(manifest), _UndoJournal(self._position, self._blobs, changes, table)
        self._target = position
        self._table = table

        def advance() -> None:
            self._position, self._blobs, self._journal = position, staging.blobs, journal
            self._stage = None

        pause = self._write(changes, writes, old, advance)
        return CommitResult(position=position, changed=staging.changed, pause_seconds=pause, stage_seconds=seconds)

    def _prepare(self, changes: Sequence[TensorChange], values: Sequence[Units], undo: Sequence[Units]) -> list[Write]:
        """Prepares the writes of `values`, before the pause. undo: the bits that the changes replace."""
        return prepare_change_writes(changes, values)

    def _write(
        self, changes: Sequence[TensorChange], writes: Sequence[Write], undo: Sequence[Units], then: Write
    ) -> float:
        """Runs all writes in one pause, or leaves everything as it was; returns how long readers waited (seconds).

        `then` runs at the end of the pause, so that a reader under the lock sees weights and position of one version.
        """
        asked = time.perf_counter()
        with self._pause() if self._pause is not None else self._locked() as since:
            begun = asked if since is None else since
            if self._table is not None:
                self._table.check_in_place()
            self._writer.write(changes, writes, undo)
            if self._table is not None:
                self._table.clear_caches()
            then()
        return time.perf_counter() - begun

    @contextmanager
    def _locked(self) -> Iterator[float]:
        with self.lock:
            yield time.perf_counter()  # waiting for the lock delays no reader

    def _look_up(self) -> ModuleTable:
        """Looks the module's tensors up again: they may have been moved. Raises `ModuleError`."""
        table = self._tables()
        if table is not self._table:
            table.check_writable()
            self._table = table
            self._tensors = {
                spec: live_tensor(entry.tensor) if entry.owner is None else ExtraStateTensor(entry.owner, spec)
                for spec, entry in table.entries.items()
            }
        return table

    def digest(self) -> bytes:
        """Returns the digest of all tensors and files (16 bytes). Reads every bit."""
        blobs = sum(digest_units(spec, units) for spec, units in self._blobs.items())
        return digest_bytes(blobs + sum(tensor.digest(spec) for spec, tensor in self._tensors.items()))


def _blob_spec(path: str, data: bytes) -> TensorSpec:
    return blob_spec(TensorKind.HEADER if is_weights(path) else TensorKind.FILE, path, len(data))
