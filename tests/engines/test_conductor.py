"""The conductor resumes an engine exactly when whole weights of a known version are live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from p2psync.engines.vllm.conductor import ConductedCommit, Conductor
from p2psync.errors import EngineError, UnvouchedError, UsageError


class Engine:
    """The controls of an engine, in memory."""

    def __init__(self, version: int | None = 0, staged: int | None = None) -> None:
        self.version, self.staged = version, staged
        self.refused = ""
        self.prefix_caching = True
        self.paused = False
        self.external_cache = False
        self.cleared = self.forgotten = 0
        self.said: int | None = None
        self.fails: Exception | None = None
        self.loses = False
        self.asked = asyncio.Event()

    async def status(self) -> list[dict[str, Any]]:
        self.asked.set()
        one = {"version": self.version, "staged": self.staged, "refused": self.refused, "changed": 3}
        place = {"run": "r", "epoch": 1, "digest": "" if self.version is None else f"{self.version:032x}"}
        both = {**one, **place, "pause_seconds": 0.5, "prefix_caching": self.prefix_caching}
        both["external_cache"] = self.external_cache
        return [{**both, "rank": 1, "staged": None}, {**both, "rank": 0}]

    async def pause(self, *, clear: bool) -> None:
        self.paused = True
        self.cleared += clear

    async def commit(self, version: int) -> None:
        assert self.paused
        if self.loses:
            self.refused = "lost"
        if self.fails is not None:
            raise self.fails
        self.version, self.staged = version, None

    async def reset_encoder_cache(self) -> None:
        assert self.paused
        self.forgotten += 1

    async def resume(self, version: int | None) -> None:
        self.paused = False
        self.said = version if version is not None else self.said

    async def looked_at(self, times: int = 2) -> None:
        """Waits until the conductor has polled."""
        for _ in range(times):
            self.asked.clear()
            await self.asked.wait()


async def test_a_staged_version_is_committed_in_a_pause_without_stale_prefixes() -> None:
    engine, commits = Engine(staged=1), list[ConductedCommit]()
    conductor = Conductor(engine, on_commit=commits.append)
    commit = await conductor.step()
    assert commit is not None
    assert (commit.version, commit.changed, commit.write_seconds) == (1, 3, 0.5)
    assert commits == [commit]
    assert (engine.version, engine.paused, engine.cleared, engine.said) == (1, False, 1, 1)
    assert await conductor.step() is None
    assert engine.cleared == 1


async def test_a_failed_commit_resumes_the_old_version() -> None:
    engine = Engine(staged=1)
    engine.fails = RuntimeError("not written")
    with pytest.raises(EngineError, match="version 1 was not made live: not written"):
        await Conductor(engine).step()
    assert not engine.paused
    assert engine.said is None


async def test_unvouched_weights_never_resume() -> None:
    engine = Engine(staged=1)
    engine.fails, engine.loses = RuntimeError("gone"), True
    with pytest.raises(UnvouchedError, match="lost"):
        await Conductor(engine).run()
    assert engine.paused


async def test_a_held_engine_resumes_with_its_first_version() -> None:
    for commit in (True, False):
        engine = Engine(version=None)
        task = asyncio.create_task(Conductor(engine, hold=True, poll_seconds=0).run())
        await engine.looked_at()
        assert engine.paused
        engine.fails, engine.staged = RuntimeError("not yet"), 4
        await engine.looked_at(4)
        assert engine.paused, "the base model is not served because a commit failed"
        engine.fails = None
        if not commit:
            engine.staged, engine.version = None, 4
        await engine.looked_at(4)
        assert (engine.paused, engine.version, engine.said) == (False, 4, 4)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_old_keys_and_values_are_kept_only_where_no_prefix_is_cached() -> None:
    engine = Engine(staged=1)
    with pytest.raises(UsageError, match="--no-enable-prefix-caching"):
        await Conductor(engine, recompute=False).run()
    engine.prefix_caching = False
    engine.external_cache = True
    with pytest.raises(UsageError, match="--kv-transfer-config"):
        await Conductor(engine, recompute=False).run()
    engine.external_cache = False
    await Conductor(engine, recompute=False).step()
    assert (engine.version, engine.cleared) == (1, 0)


async def test_outputs_of_encoders_never_outlive_the_weights_that_computed_them() -> None:
    kept, cleared = Engine(staged=1), Engine(staged=1)
    kept.prefix_caching = False
    await Conductor(kept, recompute=False).step()
    await Conductor(cleared).step()
    assert (kept.forgotten, kept.cleared) == (1, 0)
    assert (cleared.forgotten, cleared.cleared) == (0, 1), "a pause that clears has dropped them already"


async def test_an_engine_can_be_paused_and_reach_a_version() -> None:
    engine = Engine(staged=1)
    conductor = Conductor(engine, poll_seconds=0)
    async with conductor.paused():
        assert engine.paused
    assert not engine.paused
    await conductor.reach(1, 5)
    assert engine.version == 1
    with pytest.raises(TimeoutError):
        await conductor.reach(2, 0.01)


async def test_the_position_changes_only_inside_the_exclusive_context() -> None:
    seen: list[tuple[int | None, bool]] = []

    @asynccontextmanager
    async def closing() -> AsyncIterator[None]:
        before = conductor.position
        yield
        seen.append((before.version if before else None, engine.paused))

    engine = Engine(version=0)
    conductor = Conductor(engine, exclusive=closing)
    for staged in (None, None, 1):
        engine.staged = staged
        await conductor.step()
    assert seen == [(None, False), (0, False)]
    assert conductor.position is not None
    assert (conductor.position.version, conductor.position.digest) == (1, (1).to_bytes(16))
