"""Carries out what the follower wants of a simulated engine, and answers after the time that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p2psync.errors import EngineError, P2PSyncError
from p2psync.sim.engine import MemoryEngine, MemoryStage
from p2psync.swarm.synchronizer.actions import Adopt, CommitStage, EngineAction, OpenStage, StageChunk
from p2psync.swarm.synchronizer.follower import Follower

if TYPE_CHECKING:
    from p2psync.sim.node import SimNode

#: Seconds of an engine's operations.
OPEN_SECONDS, PUT_SECONDS, COMMIT_SECONDS = 0.005, 0.001, 0.01


class SimEngineDriver:
    """The engine of one process of a node."""

    def __init__(self, node: SimNode, engine: MemoryEngine, follower: Follower) -> None:
        self._node, self._engine, self._follower = node, engine, follower
        self._stage: MemoryStage | None = None

    def run(self, action: EngineAction) -> None:
        """Carries an action out after its time."""
        match action:
            case Adopt():
                self._node.later(OPEN_SECONDS, self._adopt, action)
            case OpenStage():
                self._node.later(OPEN_SECONDS, self._open_stage, action)
            case StageChunk():
                self._node.later(PUT_SECONDS, self._stage_chunk, action)
            case CommitStage():
                self._node.later(COMMIT_SECONDS, self._commit, action)

    def abandon(self) -> None:
        """Drops the open stage."""
        self._stage = None

    def _failed(self, action: EngineAction, error: P2PSyncError) -> None:
        self._follower.failed(action, error, self._engine.position, self._node.now)

    def _adopt(self, action: Adopt) -> None:
        taken = self._engine.adopt(action.position)
        if taken:
            self._node.world.observer.committed(self._node, action.position)
        self._follower.adopted(action, action.position if taken else None, self._node.now)

    def _open_stage(self, action: OpenStage) -> None:
        try:
            self._stage = self._engine.stage(action.path)
        except P2PSyncError as error:
            self._failed(action, error)
            return
        wanted = [self._stage.wanted(i) for i in range(len(action.path))]
        held = []
        for step, chunks in zip(action.path, wanted, strict=True):
            pack = self._node.store.packs.get(step.id)
            held.append([i for i in chunks if pack is not None and pack.chunks[i] is not None])
        self._follower.opened(action, wanted, held)

    def _stage_chunk(self, action: StageChunk) -> None:
        if self._stage is None or not self._follower.is_current(action):
            return
        pack = self._node.store.packs.get(action.id)
        data = pack.read(action.chunk) if pack is not None else None
        if data is None:
            self._follower.chunk_damaged(action, self._node.now)
            return
        try:
            self._stage.put(action.step, {action.chunk: data})
        except P2PSyncError as error:
            self._failed(action, error)
            return
        self._follower.chunk_staged(action)

    def _commit(self, action: CommitStage) -> None:
        node = self._node
        stage, self._stage = self._stage, None
        try:
            if stage is None or node.commit_failures > 0:
                node.commit_failures -= 1
                raise EngineError("the engine refused")
            commit = stage.commit()
        except P2PSyncError as error:
            self._failed(action, error)
            return
        node.world.clock.note("commit", node.info.node, commit.position.version, commit.position.digest.hex())
        node.world.observer.committed(node, commit.position)
        self._follower.committed(action, commit.position, node.now)
