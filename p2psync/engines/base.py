"""Where weights live: the one interface between the swarm's versions and a place that holds them.

Life of a version at an engine: `stage(path)` opens a stage for a whole way from what is live (or from nothing) to the
target; `Stage.put` decodes one verified chunk beside the live weights, in any order; `Stage.commit` makes the target
live in one short pause, or raises and leaves what was live exactly as it was; `roll_back` undoes the last commit.

Engines are driven by one thread at a time and know nothing of networks, clocks of the swarm, or asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from p2psync.delta.tensors import Row, TensorSpec, Units
from p2psync.protocol.versions import Position, Step

__all__ = [
    "ChunkBytes",
    "ChunkReader",
    "ClosableEngine",
    "CommitResult",
    "Engine",
    "InspectableEngine",
    "Position",
    "Stage",
    "Step",
    "rows_after",
]


class CommitResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit did. pause_seconds: how long readers of the live weights had to wait.

    stage_seconds: time spent decoding, reading old bits and checking the digest beside the live weights.
    """

    position: Position
    changed: int
    pause_seconds: float
    stage_seconds: float


ChunkBytes = bytes | bytearray | memoryview
#: Reads a verified chunk that the store still holds: (manifest id, chunk index) → bytes, or None if it is gone.
ChunkReader = Callable[[bytes, int], bytes | None]


class Stage(Protocol):
    """A version being made ready beside the live one."""

    def wanted(self, step: int) -> Sequence[int]:
        """Chunks of path[step] that must still be put: all of them, less what a local copy already covers."""

    def put(self, step: int, chunks: Mapping[int, ChunkBytes]) -> None:
        """Decode chunks of path[step] by index, already verified against its manifest, on all cores. Any order.

        Raises `FormatError` (the manifest's signer made a bad chunk) or `EngineError`.
        """

    def commit(self) -> CommitResult:
        """Make path[-1] live. All wanted chunks must have been put.

        Raises `DigestMismatchError` or `EngineError`; then what was live before is live, bit for bit.
        """

    def abandon(self) -> None:
        """Drop the stage; the live weights never saw it."""


class Engine(Protocol):
    """A place that holds one live version."""

    @property
    def position(self) -> Position | None:
        """What is live; None before the first commit."""

    def table(self) -> Sequence[TensorSpec]:
        """The specs of the live tensors, sorted."""

    def units(self, spec: TensorSpec) -> Units:
        """The live bits of one tensor, flat, in checkpoint coordinates: read only, and stable between commits."""

    def adopt(self, position: Position) -> bool:
        """Recompute the digest of the bits at hand, and take them as `position` if it is that digest.

        A digest, as a manifest signs it, names every tensor and its bits, so no manifest of that very version is
        needed: the base of a delta will do. How a local copy of a base model, or weights of unknown standing after a
        crash, become a position.
        """

    def stage(self, path: Sequence[Step]) -> Stage:
        """Open a stage along `path`: deltas that start at the live version, or one anchor and deltas from it.

        Raises `BaseMismatchError` if the path does not start at what is live; opening a stage abandons an open one.
        """

    def roll_back(self) -> Position | None:
        """Undo the last commit exactly, once; returns what is live now. Raises `EngineError` if it cannot be undone."""

    def scrub(self) -> bool:
        """Recompute the digest over everything that is live; False if a bit is not what was committed."""


@runtime_checkable
class ClosableEngine(Protocol):
    """An engine that holds something until it is closed."""

    def close(self) -> None:
        """Give back what is held, such as a lock."""


@runtime_checkable
class InspectableEngine(Protocol):
    """An engine whose weights others can damage, such as files."""

    def inspect(self) -> list[str]:
        """Look for damage by names, sizes and times alone, mend what can be mended at once, and fall back where the
        live version cannot: `position` is an earlier one then, or None.

        Cheap, to be called every second. Returns what was found since the last call, a line each.
        """

    def unidentified_digest(self) -> str:
        """The digest (hex) of weights that are here though the record of what they are is lost, "" if there are none.

        Reads all of them. `adopt` takes them, once a version with that digest is known.
        """


def rows_after(rows: Sequence[Row]) -> list[TensorSpec]:
    """The specs that exist after a delta with these rows."""
    return [row.spec for row in rows if row.after]
