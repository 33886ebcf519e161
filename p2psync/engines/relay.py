"""An engine without weights: a relay's. What it holds is its place in the lineage; the chunks are in the store.

It stages nothing, so every chunk of a path is wanted, and kept for others. A commit is a note of the position and of
the manifests that led there. The note is believed at the next start only if no chunk of those is missing: after a power
loss some may be, and then the follower fetches them again. So the note need not survive more than its chunks do, and
nobody waits for a disk: to make it durable would make all chunks before it durable, too.
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
from p2psync.protocol.versions import Position, Step
from p2psync.store.packs import Store
from p2psync.store.records import recover_record, save_record


class _Note(msgspec.Struct, frozen=True):
    """manifests: ids (hex) of the path of the last commit."""

    position: Position
    manifests: list[Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]]


class RelayEngine:
    """Keeps a position, and no weights."""

    def __init__(self, note: Path, store: Store) -> None:
        """note: the file of the position. store: where the chunks are. Raises `StoreError`.

        A note that is damaged is moved away, and made anew at the next commit: what the store holds is not fetched.
        """
        self._file = note
        self._store = store
        self._found: list[str] = []
        self._note = self._read()

    @property
    def position(self) -> Position | None:
        """The version up to which the store has everything."""
        return self._note.position if self._note is not None else None

    def table(self) -> Sequence[TensorSpec]:
        """The specs of the version's tensors, as its manifest says; [] before the first."""
        pack = self._store.get(bytes.fromhex(self._note.manifests[-1])) if self._note is not None else None
        return rows_after(pack.manifest.rows()) if pack is not None else []

    def units(self, spec: TensorSpec) -> Units:
        """Raises `EngineError`: there are none."""
        raise EngineError(f"{spec.name}: a relay keeps no weights")

    def adopt(self, position: Position) -> bool:
        """Whether the position is that of the same weights, under a later epoch."""
        if self._note is None or self._note.position.digest != position.digest:
            return False
        self._write(_Note(position, self._note.manifests))
        return True

    def stage(self, path: Sequence[Step]) -> RelayStage:
        """Open a stage along `path`. Raises `BaseMismatchError` if it does not start where this relay is."""
        first = path[0].manifest
        live = self.position
        if first.base is not None and (live is None or live.digest != first.base_digest):
            raise BaseMismatchError(f"version {first.version} builds on another version than this relay has")
        return RelayStage(self, path)

    def roll_back(self) -> Position | None:
        """Raises `EngineError`."""
        raise EngineError("a relay keeps no weights that could be rolled back")

    def scrub(self) -> bool:
        """True: there are no weights; the store checks each chunk that it hands out."""
        return True

    def unidentified_digest(self) -> str:
        """See `InspectableEngine.unidentified_digest`: there are none."""
        return ""

    def inspect(self) -> list[str]:
        """See `InspectableEngine.inspect`: the store looks at each chunk that it hands out."""
        found, self._found = self._found, []
        return found

    def arrive(self, path: Sequence[Step]) -> Position:
        """Note that the store has all of `path`. Raises `EngineError`."""
        last = path[-1].manifest
        position = Position(run=last.run, epoch=last.epoch, version=last.version, digest=last.digest)
        self._write(_Note(position, [step.id.hex() for step in path]))
        return position

    def _read(self) -> _Note | None:
        note = recover_record(self._file, _Note, self._found.append, "what is missing in the store is fetched")
        if note is None:
            return None
        packs = [self._store.get(bytes.fromhex(id)) for id in note.manifests]
        # All but the last may have been retired since.
        return note if packs and packs[-1] and all(pack is None or pack.complete for pack in packs) else None

    def _write(self, note: _Note) -> None:
        try:
            save_record(self._file, note, durably=False)
        except StoreError as error:
            raise EngineError(str(error)) from error
        self._note = note


class RelayStage:
    """A way that a relay goes: every chunk counts, none is decoded."""

    def __init__(self, engine: RelayEngine, path: Sequence[Step]) -> None:
        self._engine = engine
        self._path = path

    def wanted(self, step: int) -> Sequence[int]:
        """All chunks of path[step]."""
        return range(self._path[step].manifest.chunks)

    def put(self, step: int, chunks: Mapping[int, ChunkBytes]) -> None:
        """Nothing: the store has them."""

    def commit(self) -> CommitResult:
        """Note the position. Raises `EngineError`."""
        began = time.monotonic()
        position = self._engine.arrive(self._path)
        changed = sum(step.manifest.changed for step in self._path)
        return CommitResult(
            position=position, changed=changed, pause_seconds=0.0, stage_seconds=time.monotonic() - began
        )

    def abandon(self) -> None:
        """Nothing was staged."""
