"""The actions that a follower has its shell carry out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from p2psync.membership.runs import RunRefusal
from p2psync.protocol.versions import PathStep, Position
from p2psync.swarm.exchange.actions import Recheck


@dataclass(frozen=True, slots=True)
class GetManifest:
    """Get a manifest by its id in hex (inline: its bytes, if known), verify it; answer `manifest` or `no_manifest`."""

    id: str
    inline: bytes | None


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take the local copy as this position if its digest agrees; answer `adopted`. attempt: as in `OpenStage`."""

    attempt: int
    position: Position


@dataclass(frozen=True, slots=True)
class OpenStage:
    """Open a stage along this path; answer `opened` or `failed`.

    attempt: the number of the attempt, so that the follower ignores answers to an earlier one.
    """

    attempt: int
    path: tuple[PathStep, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Have the swarm fetch these chunks of a manifest (and offer them)."""

    step: PathStep
    wanted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopFetch:
    """Stop fetching this manifest; still offer its held chunks."""

    id: bytes


@dataclass(frozen=True, slots=True)
class StageChunk:
    """Give this chunk, which the store holds, to the stage; answer `chunk_staged`, `chunk_damaged` or `failed`."""

    attempt: int
    step: int
    id: bytes
    chunk: int


@dataclass(frozen=True, slots=True)
class CommitStage:
    """Commit the stage; answer `committed` or `failed`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AbandonStage:
    """Drop the stage; no answer."""


@dataclass(frozen=True, slots=True)
class Retire:
    """Stop exchanging this manifest and remove its pack: no lineage needs it any more."""

    id: bytes


@dataclass(frozen=True, slots=True)
class RefuseRun:
    """Tell people that the follower refuses the hub's run, and why."""

    refusal: RunRefusal


@dataclass(frozen=True, slots=True)
class ChangedRun:
    """Tell people that a version of another run than `before` is live now."""

    run: str
    before: str


#: Actions of the engine, which it answers.
EngineAction: TypeAlias = Adopt | OpenStage | StageChunk | CommitStage
FollowerAction: TypeAlias = (
    GetManifest
    | Adopt
    | OpenStage
    | Fetch
    | StopFetch
    | StageChunk
    | CommitStage
    | AbandonStage
    | Retire
    | RefuseRun
    | ChangedRun
    | Recheck
)
