"""A live torch module: the next version is made ready beside the weights, and scattered into them in one short pause.

Theory of operation. Chunks are decoded while the module serves. For each block the old bits are read, the new bits and
the change of the digest are computed, all before the commit; a chain of deltas is composed first, so that each element
is written once. The commit checks the digest, then pauses the readers for a bare scatter of the new bits. The old bits
at the changed positions are the journal: what fails in the middle is undone exactly, and so is the last commit on
demand. All of it is O(changed), except for an anchor, which is staged whole.

Headers and other files of a version are no part of a module; they are kept as bytes, because the digest covers them.

The tensors are looked up anew (`module_table`) for each stage and for each scrub, so that a module that was moved, or
whose `.data` was set, is followed. A commit checks, inside the pause, that the module still reads the memory that was
staged against.
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
from p2psync.delta.tensors import Kind, TensorSpec, Units
from p2psync.engines.base import ChunkBytes, CommitResult, Position, Step
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

#: Makes a context in which nothing reads the weights.
#: Stops readers while it is held. Gives the moment (`time.perf_counter`) since which they wait, or None: since it was
#: asked for.
Pause = Callable[[], AbstractContextManager[float | None]]


@dataclass(frozen=True, slots=True)
class _Journal:
    """What undoes a commit."""

    position: Position | None
    blobs: dict[TensorSpec, Units]
    changes: list[TensorChange]
    table: ModuleTable


class ModuleStage:
    """A path being made ready beside the live weights."""

    def __init__(self, engine: ModuleEngine, path: Sequence[Step], staging: ModuleStaging, table: ModuleTable) -> None:
        """table: of the module whose tensors are staged."""
        self._engine = engine
        self._table = table
        self._path = path
        self._staging = staging
        self._seconds = 0.0

    def wanted(self, step: int) -> Sequence[int]:
        """See `Stage.wanted`."""
        return self._staging.wanted(step)

    def put(self, step: int, chunks: Mapping[int, ChunkBytes]) -> None:
        """See `Stage.put`. Chunks that were put before are passed over; those of a later step are held as they are."""
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

    A commit or roll-back is refused, with nothing written, if the weights do not lie where they were staged.
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
        """Serve `module`, whose state_dict keys are renamed by `names` (see `module_table`); or named tensors; or
        those of a table that is asked for whenever they are looked up.

        position: the version that the module holds already, if it is known; else see `adopt`. files: the headers
        (.safetensors) and other files of that version by path, as `Checkpoint.blobs` gives them; by default a single
        model.safetensors with the canonical header, as a publisher of modules has. pause: how to stop readers; by
        default they hold `lock` while they read. threads: how many write during the pause; by default one per core.
        """
        #: What readers of the weights hold per batch, unless another `pause` was given.
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
        self._journal: _Journal | None = None
        #: Where a commit or roll-back under way leads.
        self._target: Position | None = position

    @property
    def position(self) -> Position | None:
        """See `Engine.position`."""
        return self._position

    def table(self) -> Sequence[TensorSpec]:
        """See `Engine.table`: the module's tensors, and the files that are kept beside it."""
        return sorted([*self._tensors, *self._blobs])

    def units(self, spec: TensorSpec) -> Units:
        """See `Engine.units`: a view of a contiguous CPU tensor, else a copy."""
        if spec in self._blobs:
            return self._blobs[spec]
        if self._table is None or not self._table.is_current(spec):
            self._look_up()
        return self._tensors[spec].units()

    def adopt(self, position: Position) -> bool:
        """See `Engine.adopt`: reads the whole module. False also where that version has files other than ours."""
        self._stage = None
        self._look_up()
        if self.digest() != position.digest:
            return False
        self._position = position
        self._journal = None
        return True

    def stage(self, path: Sequence[Step]) -> ModuleStage:
        """See `Engine.stage`. Also raises `EngineError` if the path's tensors are not the module's."""
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
        base = digest_from_bytes(self._position.digest) if self._position is not None and not staging.whole else 0
        if digest_bytes(base + staging.digest) != manifest.digest:
            self._stage = None
            raise DigestMismatchError(
                f"version {manifest.version} would not have the digest that its manifest signs; nothing was made live"
            )
        old = [c.old for c in changes]
        writes = self._prepare(changes, [c.new for c in changes], old)
        seconds += time.perf_counter() - begun
        position, journal = position_of(manifest), _Journal(self._position, self._blobs, changes, table)
        self._target = position
        self._table = table

        def advance() -> None:
            self._position, self._blobs, self._journal = position, staging.blobs, journal
            self._stage = None

        pause = self._write(changes, writes, old, advance)
        return CommitResult(position=position, changed=staging.changed, pause_seconds=pause, stage_seconds=seconds)

    def _prepare(self, changes: Sequence[TensorChange], values: Sequence[Units], undo: Sequence[Units]) -> list[Write]:
        """Everything that writing `values` needs, where `undo` are the bits before; done before the pause."""
        return prepare_change_writes(changes, values)

    def _write(
        self, changes: Sequence[TensorChange], writes: Sequence[Write], undo: Sequence[Units], then: Write
    ) -> float:
        """Run all writes in one pause, or leave everything as it was; returns how long readers waited (seconds).

        `then` runs at the end of the pause: who reads weights and position under the lock sees both of one version.
        """
        asked = time.perf_counter()
        with self._pause() if self._pause is not None else self._alone() as since:
            begun = asked if since is None else since
            if self._table is not None:
                self._table.check_in_place()
            self._writer.write(changes, writes, undo)
            if self._table is not None:
                self._table.forget_caches()
            then()
        return time.perf_counter() - begun

    @contextmanager
    def _alone(self) -> Iterator[float]:
        with self.lock:
            yield time.perf_counter()  # to wait for the lock was our waiting, not the readers'

    def _look_up(self) -> ModuleTable:
        """Find the module's tensors anew: they may have been moved since. Raises `ModuleError`."""
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
        """The digest of all tensors and files (16 bytes): reads every bit."""
        blobs = sum(digest_units(spec, units) for spec, units in self._blobs.items())
        return digest_bytes(blobs + sum(tensor.digest(spec) for spec, tensor in self._tensors.items()))


def _blob_spec(path: str, data: bytes) -> TensorSpec:
    return blob_spec(Kind.HEADER if is_weights(path) else Kind.FILE, path, len(data))
