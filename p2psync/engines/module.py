"""A live torch module: the next version is made ready beside the weights, and scattered into them in one short pause.

Theory of operation. Chunks are decoded while the module serves. For each block the old bits are read, the new bits and
the change of the digest are computed, all before the commit; a chain of deltas is composed first, so that each element
is written once. The commit checks the digest, then pauses the readers for a bare scatter of the new bits. The old bits
at the changed positions are the journal: what fails in the middle is undone exactly, and so is the last commit on
demand. All of it is O(changed), except for an anchor, which is staged whole.

Headers and other files of a version are no part of a module; they are kept as bytes, because the digest covers them.
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
from p2psync.engines.base import Commit, Data, Position, Step
from p2psync.engines.header import blob_spec, canonical_header
from p2psync.engines.names import is_weights
from p2psync.engines.paths import check_path, position_of
from p2psync.engines.staging import Change, Staging, prepare_writes
from p2psync.engines.weights import LiveTensor, host_units, live_tensor, module_rows, module_specs, module_units
from p2psync.engines.writing import Write, Writer
from p2psync.errors import DigestMismatchError, EngineError
from p2psync.protocol.manifest import Manifest

__all__ = [
    "ModuleEngine",
    "ModuleStage",
    "canonical_header",
    "host_units",
    "module_rows",
    "module_specs",
    "module_units",
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
    changes: list[Change]


class ModuleStage:
    """A path being made ready beside the live weights."""

    def __init__(self, engine: ModuleEngine, path: Sequence[Step], staging: Staging) -> None:
        self._engine = engine
        self._path = path
        self._staging = staging
        self._seconds = 0.0

    def wanted(self, step: int) -> Sequence[int]:
        """See `Stage.wanted`."""
        return self._staging.wanted(step)

    def put(self, step: int, chunks: Mapping[int, Data]) -> None:
        """See `Stage.put`. Chunks that were put before are passed over; those of a later step are held as they are."""
        self._check_open()
        begun = time.perf_counter()
        self._staging.put(step, chunks)
        self._seconds += time.perf_counter() - begun

    def commit(self) -> Commit:
        """See `Stage.commit`."""
        self._check_open()
        return self._engine._commit(self._path[-1].manifest, self._staging, self._seconds)

    def abandon(self) -> None:
        """See `Stage.abandon`."""
        if self._engine._stage is self:
            self._engine._stage = None

    def _check_open(self) -> None:
        if self._engine._stage is not self:
            raise EngineError("this stage was committed or abandoned: stage again")


class ModuleEngine:
    """Keeps a module at a version. One thread drives it at a time; others read the weights under `lock`, per batch.

    The weights must stay where they are in memory while a stage is open, and until a roll-back.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        names: Mapping[str, str] | None = None,
        position: Position | None = None,
        *,
        files: Mapping[str, bytes] | None = None,
        pause: Pause | None = None,
        threads: int | None = None,
    ) -> None:
        """Serve `module`, whose state_dict keys are renamed by `names` (see `module_rows`).

        position: the version that the module holds already, if it is known; else see `adopt`. files: the headers
        (.safetensors) and other files of that version by path, as `Checkpoint.blobs` gives them; by default a single
        model.safetensors with the canonical header, as a publisher of modules has. pause: how to stop readers; by
        default they hold `lock` while they read. threads: how many write during the pause; by default one per core.
        """
        self.module = module
        #: What readers of the weights hold per batch, unless another `pause` was given.
        self.lock = threading.Lock()
        self._names = names
        self._pause = pause
        self._position = position
        self._writer = Writer(threads)
        self._tensors: dict[TensorSpec, LiveTensor] = {}
        self._look_up()
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
        return self._blobs[spec] if spec in self._blobs else self._tensors[spec].units()

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
        self._look_up()
        check_path(path, self._position, self.table())
        self._stage = ModuleStage(self, path, Staging(path, self._tensors, self._blobs))
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

        def restore() -> None:
            self._position, self._blobs, self._journal = journal.position, journal.blobs, None

        self._write(journal.changes, writes, new, restore)
        return self._position

    def scrub(self) -> bool:
        """See `Engine.scrub`."""
        return self._position is None or self.digest() == self._position.digest

    def _commit(self, manifest: Manifest, staging: Staging, seconds: float) -> Commit:
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
        position, journal = position_of(manifest), _Journal(self._position, self._blobs, changes)
        self._target = position

        def advance() -> None:
            self._position, self._blobs, self._journal = position, staging.blobs, journal
            self._stage = None

        pause = self._write(changes, writes, old, advance)
        return Commit(position=position, changed=staging.changed, pause_seconds=pause, stage_seconds=seconds)

    def _prepare(self, changes: Sequence[Change], values: Sequence[Units], undo: Sequence[Units]) -> list[Write]:
        """Everything that writing `values` needs, where `undo` are the bits before; done before the pause."""
        return prepare_writes(changes, values)

    def _write(self, changes: Sequence[Change], writes: Sequence[Write], undo: Sequence[Units], then: Write) -> float:
        """Run all writes in one pause, or leave everything as it was; returns how long readers waited (seconds).

        `then` runs at the end of the pause: who reads weights and position under the lock sees both of one version.
        """
        asked = time.perf_counter()
        with self._pause() if self._pause is not None else self._alone() as since:
            begun = asked if since is None else since
            self._writer.write(changes, writes, undo)
            then()
        return time.perf_counter() - begun

    @contextmanager
    def _alone(self) -> Iterator[float]:
        with self.lock:
            yield time.perf_counter()  # to wait for the lock was our waiting, not the readers'

    def _look_up(self) -> None:
        """Find the module's tensors anew: they may have been moved or replaced since."""
        self._tensors = {spec: live_tensor(tensor) for spec, tensor in module_rows(self.module, self._names).items()}

    def digest(self) -> bytes:
        """The digest of all tensors and files (16 bytes): reads every bit."""
        blobs = sum(digest_units(spec, units) for spec, units in self._blobs.items())
        return digest_bytes(blobs + sum(tensor.digest(spec) for spec, tensor in self._tensors.items()))


def _blob_spec(path: str, data: bytes) -> TensorSpec:
    return blob_spec(Kind.HEADER if is_weights(path) else Kind.FILE, path, len(data))
