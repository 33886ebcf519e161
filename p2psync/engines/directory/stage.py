"""The stage of a directory engine: a path that is applied to the second slot."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from p2psync.engines.base import ChunkBytes, CommitResult
from p2psync.engines.directory.in_place_apply import PathApplier
from p2psync.errors import EngineError


class StageOwner(Protocol):
    """The engine that opened a stage."""

    def is_open(self, applier: PathApplier) -> bool:
        """Returns whether this applier's stage is the open one."""

    def commit_stage(self, applier: PathApplier, seconds: float) -> CommitResult:
        """Makes the applied path live. seconds: spent staging. Raises as `Stage.commit`."""

    def abandon_stage(self, applier: PathApplier) -> None:
        """Closes the stage."""


class DirectoryStage:
    """A path that is being applied to the second slot."""

    def __init__(self, engine: StageOwner, applier: PathApplier) -> None:
        self._engine = engine
        self._applier = applier
        self._seconds = 0.0
        self._open = True

    def wanted(self, step: int) -> Sequence[int]:
        """See `Stage.wanted`: chunks of path[step] that were not put yet and that no local copy covers."""
        return self._applier.wanted(step)

    def put(self, step: int, chunks: Mapping[int, ChunkBytes]) -> None:
        """See `Stage.put`. Ignores chunks that were put before or are not wanted.

        A chunk of a later step is read again through the chunk reader when its step is applied, so the store must keep
        it until then.
        """
        self._check_open()
        begun = time.perf_counter()
        try:
            self._applier.put(step, chunks)
        finally:
            self._seconds += time.perf_counter() - begun

    def commit(self) -> CommitResult:
        """See `Stage.commit`."""
        self._check_open()
        commit = self._engine.commit_stage(self._applier, self._seconds)
        self._open = False
        return commit

    def abandon(self) -> None:
        """See `Stage.abandon`. A later stage whose path starts with the same steps continues from what was applied."""
        if self._open:
            self._open = False
            self._engine.abandon_stage(self._applier)

    def _check_open(self) -> None:
        if not self._open or not self._engine.is_open(self._applier):
            raise EngineError("this stage was committed or abandoned: stage again")
