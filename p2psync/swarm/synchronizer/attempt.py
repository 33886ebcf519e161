"""One attempt to reach a version: its path, and which chunks of it are in the stage. Sans-I/O."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from p2psync.errors import ReplayError
from p2psync.membership.records import Announcement
from p2psync.protocol.manifest import check_consecutive
from p2psync.protocol.versions import PathStep, Position
from p2psync.swarm.synchronizer.actions import Fetch, StageChunk


@dataclass(slots=True)
class SyncAttempt:
    """number: identifies the attempt in actions and their answers. run: that the path leads in.

    adopt: the version that local weights seem to be, where the path is the one manifest that vouches for it.

    Per step, as sets of chunks: missing: not yet in the stage; saved: in the store, and missing; staging: on the way
    into the stage.
    """

    number: int
    run: str
    path: list[Announcement]
    adopt: Position | None = None
    steps: list[PathStep] = field(default_factory=list)
    _missing: list[set[int]] = field(default_factory=list)
    _saved: list[set[int]] = field(default_factory=list)
    _staging: set[tuple[int, int]] = field(default_factory=set)

    @property
    def ids(self) -> list[str]:
        """The ids of the path's manifests (hex)."""
        return [a.id for a in self.path]

    @property
    def step(self) -> int | None:
        """The first step with missing chunks; None when all are in."""
        return next((i for i, missing in enumerate(self._missing) if missing), None)

    def open(self, wanted: Sequence[Sequence[int]], held: Sequence[Sequence[int]]) -> list[tuple[Fetch, int]]:
        """Takes the chunks that the stage wants, per step, and those of them that the store holds.

        Returns for each step the chunks to fetch, and the payload bytes that need no fetch: unwanted chunks count as
        held.
        """
        self._missing = [set(chunks) for chunks in wanted]
        self._saved = [set(chunks) & missing for chunks, missing in zip(held, self._missing, strict=True)]
        found = []
        for step, chunks, saved in zip(self.steps, wanted, self._saved, strict=True):
            absent = sum(step.manifest.sizes[i] for i in set(chunks) - saved)
            found.append((Fetch(step, tuple(chunks)), step.manifest.payload_bytes - absent))
        return found

    def stage_saved(self) -> list[StageChunk]:
        """Returns the actions that stage all saved chunks of the current step."""
        step = self.step
        return [] if step is None else self._stage(step, sorted(self._saved[step]))

    def save(self, id: bytes, chunk: int) -> tuple[int, list[StageChunk]]:
        """Adds a chunk of the store. Returns its bytes if it is new there, and the chunks to stage."""
        for i, step in enumerate(self.steps):
            if step.id == id and chunk in self._missing[i]:
                size = 0 if chunk in self._saved[i] else step.manifest.sizes[chunk]
                self._saved[i].add(chunk)
                return size, self._stage(i, [chunk]) if i == self.step else []
        return 0, []

    def staged(self, step: int, chunk: int) -> bool:
        """Adds a chunk of the stage; returns whether its step is complete."""
        self._staging.discard((step, chunk))
        self._missing[step].discard(chunk)
        self._saved[step].discard(chunk)
        return not self._missing[step]

    def damaged(self, step: int, chunk: int) -> int:
        """Removes a chunk that the store lost; returns its size (bytes)."""
        self._staging.discard((step, chunk))
        self._saved[step].discard(chunk)
        return self.steps[step].manifest.sizes[chunk]

    def check(self, run: str, live: Position | None) -> None:
        """Checks that the manifests are those announced in a run, follow each other, and lead on from the live version.

        Raises `ReplayError`, `BaseMismatchError`.
        """
        for announced, step in zip(self.path, self.steps, strict=True):
            m = step.manifest
            said = (announced.version, announced.base, announced.digest, announced.base_digest)
            if said != (m.version, m.base, m.digest.hex(), m.base_digest.hex()) or m.run != run:
                raise ReplayError(f"the hub announced version {announced.version} with another version's manifest")
        for first, then in itertools.pairwise(step.manifest for step in self.steps):
            check_consecutive(first, then)
            if then.epoch < first.epoch:
                raise ReplayError(f"version {then.version} was published by a trainer that was fenced off")
        last = self.steps[-1].manifest
        if live is not None and live.run == last.run and (last.epoch, last.version) <= (live.epoch, live.version):
            raise ReplayError(f"version {last.version} of epoch {last.epoch} is not later than what is live")

    def _stage(self, step: int, chunks: Iterable[int]) -> list[StageChunk]:
        due = [chunk for chunk in chunks if (step, chunk) not in self._staging]
        self._staging.update((step, chunk) for chunk in due)
        return [StageChunk(self.number, step, self.steps[step].id, chunk) for chunk in due]
