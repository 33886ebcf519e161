"""The engine of a relay: it keeps a position, and no weights. The chunks are in the store.

A relay decodes nothing. It wants every chunk of a path and keeps it for its peers. A commit writes a record of the
position and of the manifests that led there. At the next start the relay believes the record only if none of their
chunks is missing; after a power loss some may be, and the follower then fetches them again. So the record need not be
more durable than the chunks, and no commit waits for the disk.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from p2psync.delta.tensors import TensorSpec, Units
from p2psync.engines.base import ChunkBytes, CommitResult, rows_after
from p2psync.errors import BaseMismatchError, EngineError, StoreError
from p2psync.protocol.versions import PathStep, Position
from p2psync.store.packs import Store
from p2psync.store.records import recover_record, save_record


class _RelayRecord(msgspec.Struct, frozen=True):
    """The durable position of a relay. manifests: ids (hex) of the path of the last commit."""

    position: Position
    manifests: list[Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]]


class RelayEngine:
    """Keeps a position, and no weights."""

    def __init__(self, record: Path, store: Store) -> None:
        """record: the file of the position. store: where the chunks are. Raises `StoreError`.

        A damaged record is moved away and written again at the next commit; chunks in the store are not fetched again.
        """
        self._file = record
        self._store = store
        self._damage: list[str] = []
        self._record = self._read()

    @property
    def position(self) -> Position | None:
        """The version up to which the store has everything."""
        return self._record.position if self._record is not None else None

    def table(self) -> Sequence[TensorSpec]:
        """Returns the specs of the version's tensors, from its manifest; [] before the first version."""
        pack = self._store.get(bytes.fromhex(self._record.manifests[-1])) if self._record is not None else None
        return rows_after(pack.manifest.rows()) if pack is not None else []

    def units(self, spec: TensorSpec) -> Units:
        """Raises `EngineError`: a relay has no bits."""
        raise EngineError(f"{spec.name}: a relay keeps no weights")

    def adopt(self, position: Position) -> bool:
        """Takes the position if it has the digest of the current one, such as under a later epoch; returns whether."""
        if self._record is None or self._record.position.digest != position.digest:
            return False
        self._write(_RelayRecord(position, self._record.manifests))
        return True

    def stage(self, path: Sequence[PathStep]) -> RelayStage:
        """Opens a stage along `path`. Raises `BaseMismatchError` if it does not start where this relay is."""
        first = path[0].manifest
        live = self.position
        if first.base is not None and (live is None or live.digest != first.base_digest):
            raise BaseMismatchError(f"version {first.version} builds on another version than this relay has")
        return RelayStage(self, path)

    def roll_back(self) -> Position | None:
        """Raises `EngineError`: a relay has nothing to roll back."""
        raise EngineError("a relay keeps no weights that could be rolled back")

    def scrub(self) -> bool:
        """Returns True: there are no weights, and the store checks each chunk that it reads."""
        return True

    def unidentified_digest(self) -> str:
        """See `InspectableEngine.unidentified_digest`: always ""."""
        return ""

    def inspect(self) -> list[str]:
        """See `InspectableEngine.inspect`: reports a damaged record once; the store checks each chunk that it reads."""
        damage, self._damage = self._damage, []
        return damage

    def record_arrival(self, path: Sequence[PathStep]) -> Position:
        """Records that the store has all of `path`, and returns the new position. Raises `EngineError`."""
        last = path[-1].manifest
        position = Position(run=last.run, epoch=last.epoch, version=last.version, digest=last.digest)
        self._write(_RelayRecord(position, [step.id.hex() for step in path]))
        return position

    def _read(self) -> _RelayRecord | None:
        record = recover_record(self._file, _RelayRecord, self._damage.append, "missing versions are fetched")
        if record is None:
            return None
        packs = [self._store.get(bytes.fromhex(id)) for id in record.manifests]
        # All but the last may have been retired since.
        return record if packs and packs[-1] and all(pack is None or pack.complete for pack in packs) else None

    def _write(self, record: _RelayRecord) -> None:
        try:
            save_record(self._file, record, durably=False)
        except StoreError as error:
            raise EngineError(str(error)) from error
        self._record = record


class RelayStage:
    """A path that a relay follows: it wants every chunk and decodes none."""

    def __init__(self, engine: RelayEngine, path: Sequence[PathStep]) -> None:
        self._engine = engine
        self._path = path

    def wanted(self, step: int) -> Sequence[int]:
        """Returns all chunks of path[step]."""
        return range(self._path[step].manifest.chunks)

    def put(self, step: int, chunks: Mapping[int, ChunkBytes]) -> None:
        """Does nothing: the store has the chunks."""

    def commit(self) -> CommitResult:
        """Records the position. Raises `EngineError`."""
        began = time.monotonic()
        position = self._engine.record_arrival(self._path)
        changed = sum(step.manifest.changed for step in self._path)
        return CommitResult(
            position=position, changed=changed, pause_seconds=0.0, stage_seconds=time.monotonic() - began
        )

    def abandon(self) -> None:
        """Does nothing: nothing was staged."""
