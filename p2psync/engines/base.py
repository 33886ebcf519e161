"""The interface between the swarm and the holder of weights.

An engine holds one live version. `Engine.stage(path)` opens a stage for a whole path, from the live version (or from
nothing) to the target. `Stage.put` decodes verified chunks beside the live weights, in any order. `Stage.commit` makes
the target live in one short pause, or raises and leaves the live weights exactly as they were. `Engine.roll_back`
undoes the last commit.

One thread at a time drives an engine. Engines know nothing of networks, the swarm's clock, or asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from p2psync.delta.tensors import TableRow, TensorSpec, Units
from p2psync.protocol.versions import PathStep, Position

__all__ = [
    "ChunkBytes",
    "ChunkReader",
    "ClosableEngine",
    "CommitResult",
    "Engine",
    "InspectableEngine",
    "PathStep",
    "Position",
    "Stage",
    "rows_after",
]


class CommitResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a commit.

    position: the live version now. changed: units whose bits differ. pause_seconds: how long readers of the live
    weights waited. stage_seconds: time spent decoding, reading old bits and checking the digest beside the live
    weights.
    """

    position: Position
    changed: int
    pause_seconds: float
    stage_seconds: float


ChunkBytes = bytes | bytearray | memoryview
#: Reads a verified chunk that the store still holds: (manifest id, chunk index) → bytes, or None if it is gone.
ChunkReader = Callable[[bytes, int], bytes | None]


class Stage(Protocol):
    """A version that is being decoded beside the live one."""

    def wanted(self, step: int) -> Sequence[int]:
        """Returns the chunks of path[step] that must still be put: all, less those that a local copy covers."""

    def put(self, step: int, chunks: Mapping[int, ChunkBytes]) -> None:
        """Decodes chunks of path[step], by index, on all cores, in any order. They are verified against its manifest.

        Raises `FormatError` (the manifest's signer made a bad chunk) or `EngineError`.
        """

    def commit(self) -> CommitResult:
        """Makes path[-1] live. All wanted chunks must have been put.

        Raises `DigestMismatchError` or `EngineError`; the version that was live before then stays live, bit for bit.
        """

    def abandon(self) -> None:
        """Drops the stage. The live weights stay as they are."""


class Engine(Protocol):
    """Holds one live version."""

    @property
    def position(self) -> Position | None:
        """The live version; None before the first commit."""

    def table(self) -> Sequence[TensorSpec]:
        """Returns the specs of the live tensors, sorted."""

    def units(self, spec: TensorSpec) -> Units:
        """Returns the live bits of one tensor, flat, in checkpoint coordinates: read-only, stable between commits."""

    def adopt(self, position: Position) -> bool:
        """Recomputes the digest of the bits that are here, and takes them as `position` if the digests are equal.

        Returns whether they are. A signed digest covers every tensor's name and bits, so this needs no manifest of
        that version. A local copy of a base model, or weights that a crash left without a record, get their position
        by it.
        """

    def stage(self, path: Sequence[PathStep]) -> Stage:
        """Opens a stage along `path`: deltas that start at the live version, or an anchor and deltas from it.

        A stage that is open is abandoned. Raises `BaseMismatchError` if the path does not start at the live version.
        """

    def roll_back(self) -> Position | None:
        """Undoes the last commit exactly, once; returns the live position. Raises `EngineError` if it cannot."""

    def scrub(self) -> bool:
        """Recomputes the digest of everything live. Returns False if a bit is not the committed one."""


@runtime_checkable
class ClosableEngine(Protocol):
    """An engine that holds a resource, such as a lock, until it is closed."""

    def close(self) -> None:
        """Releases the resource."""


@runtime_checkable
class InspectableEngine(Protocol):
    """An engine whose weights other processes can damage, such as files."""

    def inspect(self) -> list[str]:
        """Looks for damage by names, sizes and times alone, and repairs what it can at once.

        Where the live version cannot be repaired it falls back: `position` is then an earlier version, or None. Cheap
        enough to be called every second. Returns the damage found since the last call, one line each.
        """

    def unidentified_digest(self) -> str:
        """Returns the digest (hex) of weights whose record was lost, "" if there are none. Reads all of them.

        `adopt` takes these weights once a version with that digest is known.
        """


def rows_after(rows: Sequence[TableRow]) -> list[TensorSpec]:
    """Returns the specs that exist after a delta with these rows."""
    return [row.spec for row in rows if row.after]
