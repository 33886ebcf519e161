"""Runs the follower's engine actions one by one in a thread; reports results on the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from p2psync.engines.base import CommitResult, Engine, InspectableEngine, Stage
from p2psync.engines.relay import RelayStage
from p2psync.errors import DigestMismatchError, EngineError, P2PSyncError
from p2psync.net.fetch_progress import TELL_EVERY_SECONDS, RunningFetch
from p2psync.observe.events import Committed, Event, Fetching, Note, Trouble
from p2psync.protocol.versions import PathStep, Position
from p2psync.store.packs import Store
from p2psync.swarm.node import NodeCore
from p2psync.swarm.synchronizer.actions import Adopt, CommitStage, EngineAction, OpenStage, StageChunk
from p2psync.swarm.synchronizer.follower import Follower

T = TypeVar("T")
#: Chunks that the engine takes at once, at most: other actions need its thread, too.
MAX_PUTS = 64


class EngineDriver:
    """Drives the engine of one actor, on the runner's loop."""

    def __init__(
        self,
        engine: Engine,
        core: NodeCore,
        store: Store,
        *,
        on_event: Callable[[Event], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        assert core.follower is not None
        self.engine = engine
        self._core = core
        self._follower: Follower = core.follower
        self._store = store
        self._emit = on_event
        self._trouble = on_trouble
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._stage: Stage | None = None
        self._began = 0.0
        self._received = self._wasted = self._pushed = 0
        #: The path of the open stage, and the bytes of the chunks that it needs.
        self._path: Sequence[PathStep] = ()
        self._payload = 0
        self._puts: list[tuple[Stage, StageChunk]] = []
        self._putting = False
        self._loop = asyncio.get_running_loop()
        self._fetch: RunningFetch | None = None
        #: The progress of a long fetch, in one line for people; "" without one.
        self._progress = ""
        follower = core.follower
        core.membership.why_waiting = lambda: follower.waiting_reason or self._progress

    async def tell_progress(self) -> None:
        """Reports the progress of the running fetch every few seconds; never returns."""
        while True:
            await asyncio.sleep(TELL_EVERY_SECONDS)
            self.look_at_fetch(_now())

    def look_at_fetch(self, now: float) -> None:
        """Reports the progress of the running fetch, if it lasts already."""
        fetch, self._progress = self._fetch, ""
        if fetch is None or fetch.path is not self._path or now - fetch.began < TELL_EVERY_SECONDS:
            return
        event = fetch.progress(self._store, now)
        if event.held_bytes < event.total_bytes:
            self._progress = event.line()
            self._emit(event)

    async def run(self, action: EngineAction) -> None:
        """Carries out one action and reports its outcome to the core."""
        try:
            await self._run(action)
        except (P2PSyncError, OSError, MemoryError) as error:
            await self._failed(action, error)

    def stage_at_once(self, action: StageChunk) -> bool:
        """Answers a `StageChunk` that needs no work, since a relay's stage takes the store's copy; returns whether it
        did.
        """
        if not isinstance(self._stage, RelayStage):
            return False
        self._follower.chunk_staged(action)
        return True

    async def abandon(self) -> None:
        """Drops the open stage."""
        stage, self._stage = self._stage, None
        self._fetch, self._progress = None, ""
        if stage is not None:
            await self.in_worker(stage.abandon)

    async def in_worker(self, call: Callable[[], T]) -> T:
        """Calls a function in the engine's thread, after all earlier calls."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)

    async def stop(self) -> None:
        """Waits for the engine's current call; drops the calls that have not begun."""
        await asyncio.to_thread(self._worker.shutdown, cancel_futures=True)

    async def _run(self, action: EngineAction) -> None:
        match action:
            case Adopt():
                taken = await self.in_worker(lambda: self.engine.adopt(action.position))
                self._follower.adopted(action, action.position if taken else None, _now())
                if taken:
                    self._emit(Note(f"version {action.position.version} is here already: nothing is fetched for it"))
            case OpenStage():
                await self._open(action)
            case StageChunk():
                await self._put(action)
            case CommitStage():
                await self._commit(action)

    async def _failed(self, action: EngineAction, error: Exception) -> None:
        if not self._follower.is_current(action):
            return
        self._trouble(str(error) or type(error).__name__)
        vouched = await self._verified_position(isinstance(error, DigestMismatchError))
        self._follower.failed(action, error, vouched, _now())

    async def _open(self, action: OpenStage) -> None:
        self._began = _now()

        def open_stage() -> tuple[Stage, list[list[int]]]:
            stage = self.engine.stage(action.path)
            return stage, [list(stage.wanted(i)) for i in range(len(action.path))]

        self._stage, wanted = await self.in_worker(open_stage)
        if not self._follower.is_current(action):
            return
        self._path = action.path
        self._payload = sum(
            step.manifest.sizes[i] for step, chunks in zip(action.path, wanted, strict=True) for i in chunks
        )
        held = []
        missing = 0
        for step, chunks in zip(action.path, wanted, strict=True):
            pack = self._store.get(step.id)
            held.append([i for i in chunks if pack is not None and pack.have[i]])
            missing += sum(step.manifest.sizes[i] for i in set(chunks) - set(held[-1]))
        last = action.path[-1].manifest
        self._emit(Fetching(last.version, len(action.path), action.path[0].manifest.base is None, missing))
        self._fetch = RunningFetch(action.path, wanted, _now(), self._payload, self._payload - missing)
        self._follower.opened(action, wanted, held)

    async def _put(self, action: StageChunk) -> None:
        """Stages all chunks that have arrived by the time the engine's thread is free."""
        if self._stage is None:
            return
        self._puts.append((self._stage, action))
        if self._putting:
            return
        self._putting = True
        try:
            while self._puts:
                # Chunks of an abandoned stage must not reach the next one.
                stage = self._stage
                puts = [action for meant, action in self._puts if meant is stage]
                self._puts = [(stage, action) for action in puts[MAX_PUTS:] if stage is not None]
                if stage is not None and puts:
                    await self._put_batch(stage, puts[:MAX_PUTS])
        finally:
            self._putting = False

    async def _put_batch(self, stage: Stage, batch: Sequence[StageChunk]) -> None:
        def put() -> list[bool]:
            if self._stage is not stage:
                return [True] * len(batch)
            found = [self._read(action) for action in batch]
            steps: dict[int, dict[int, bytes]] = {}
            for action, data in zip(batch, found, strict=True):
                if data is not None:
                    steps.setdefault(action.step, {})[action.chunk] = data
            for step, chunks in steps.items():
                stage.put(step, chunks)
            return [data is not None for data in found]

        try:
            done = await self.in_worker(put)
        except (P2PSyncError, OSError, MemoryError) as error:
            await self._failed(batch[0], error)
            return
        for action, good in zip(batch, done, strict=True):
            if good:
                self._follower.chunk_staged(action)
            else:
                self._follower.chunk_damaged(action, _now())

    def _read(self, action: StageChunk) -> bytes | None:
        pack = self._store.get(action.id)
        return pack.read(action.chunk) if pack is not None else None

    async def _commit(self, action: CommitStage) -> None:
        stage = self._stage
        if stage is None:
            raise EngineError("there is no stage to commit")
        before = self._follower.position
        self._fetch, self._progress = None, ""
        commit = await self.in_worker(stage.commit)
        self._stage = None
        if before is not None and left_branch(before, commit.position):
            self._emit(Note(f"the trainer went back: {_place(before)} was left for {_place(commit.position)}"))
        self._tell(commit)
        self._follower.committed(action, commit.position, _now())

    def _tell(self, commit: CommitResult) -> None:
        # Pushed chunks may arrive before their stage is open.
        statistics = self._core.swarm.statistics
        received, self._received = self._received, statistics.received_bytes
        wasted, self._wasted = self._wasted, statistics.wasted_bytes
        pushed, self._pushed = self._pushed, statistics.pushed_bytes
        manifests = [step.manifest for step in self._path]
        counted = [m for m in manifests if m.base is not None] or manifests
        self._emit(
            Committed(
                version=commit.position.version,
                digest=commit.position.digest.hex(),
                changed=sum(m.changed for m in counted),
                total=sum(m.total for m in counted),
                fetched_bytes=self._received - received,
                seconds=_now() - self._began,
                pause_seconds=commit.pause_seconds,
                stage_seconds=commit.stage_seconds,
                at=time.time(),
                steps=len(manifests),
                since=manifests[0].base,
                payload_bytes=self._payload,
                wasted_bytes=self._wasted - wasted,
                pushed_bytes=self._pushed - pushed,
            )
        )

    async def inspect(self) -> None:
        """Looks for damage to the live version; the core continues from the version that is live afterwards."""
        for line in await self.in_worker(self._inspect):
            self._emit(Trouble(line))
        position = self.engine.position
        # During a commit the core takes the live position from its outcome.
        if self._follower.position != position and isinstance(self.engine, InspectableEngine):
            self._follower.mark_corrupt("the live version is damaged", position, _now())

    async def _verified_position(self, doubtful: bool) -> Position | None:
        """Returns the live version; a doubtful one only if its bits are still the committed ones."""

        def look() -> tuple[list[str], Position | None]:
            sound = not doubtful or self.engine.position is None or self.engine.scrub()
            found = self._inspect()
            # An engine that inspects falls back to an undamaged version.
            return found, self.engine.position if sound or isinstance(self.engine, InspectableEngine) else None

        found, position = await self.in_worker(look)
        for line in found:
            self._emit(Trouble(line))
        return position

    def _inspect(self) -> list[str]:
        if not isinstance(self.engine, InspectableEngine):
            return []
        try:
            return self.engine.inspect()
        except (P2PSyncError, OSError) as error:
            # The callback belongs to the loop; this runs in the engine's thread.
            self._loop.call_soon_threadsafe(self._trouble, str(error))
            return []


def left_branch(before: Position, after: Position) -> bool:
    """Returns whether a later epoch of the run reused version numbers, so that no path leads on from `before`."""
    return before.run == after.run and before.epoch < after.epoch and before.version >= after.version


def _place(position: Position) -> str:
    return f"version {position.version} of epoch {position.epoch}"


def _now() -> float:
    return asyncio.get_running_loop().time()
