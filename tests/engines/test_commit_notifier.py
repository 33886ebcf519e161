"""An engine's conductor looks as soon as there is something, and does not ask meanwhile."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest
from test_conductor import Engine

from p2psync.engines.vllm.commit_handoff import CommitHandoff
from p2psync.engines.vllm.commit_notifier import MAX_LISTENERS, CommitListener, CommitNotifier
from p2psync.engines.vllm.conductor import Conductor

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="abstract sockets are Linux's")


async def test_a_listener_looks_when_it_comes_and_whenever_the_bell_rings() -> None:
    bell, listener = CommitNotifier(), CommitListener(quiet=60)
    await bell.open()
    async with asyncio.timeout(10):
        assert await listener.heard(bell.address), "it may have rung before"
        waiting = asyncio.create_task(listener.heard(bell.address))
        await asyncio.sleep(0)
        threading.Thread(target=bell.ring).start()
        assert await waiting
        await bell.close()
        assert bell.address == ""
        assert not await listener.heard("gone"), "the engine is gone"
        assert not await listener.heard("gone")
    await bell.close()
    bell.ring()


async def test_a_listener_looks_by_itself_now_and_then_and_is_told_at_once_where_there_is_no_bell() -> None:
    bell, listener = CommitNotifier(), CommitListener(quiet=0.01)
    assert not await listener.heard("")
    assert not await listener.heard("p2psync-none")
    await bell.open()
    async with asyncio.timeout(10):
        assert await listener.heard(bell.address)
        assert await listener.heard(bell.address)
    listener.close()
    await bell.close()


async def test_listeners_beyond_the_bound_are_sent_away() -> None:
    bell = CommitNotifier()
    await bell.open()
    listeners = [CommitListener(quiet=60) for _ in range(MAX_LISTENERS + 1)]
    async with asyncio.timeout(10):
        assert [await listener.heard(bell.address) for listener in listeners] == [True] * MAX_LISTENERS + [False]
    for listener in listeners:
        listener.close()
    await bell.close()


class Ringing(Engine):
    """An engine with a bell that counts how often it is asked."""

    def __init__(self, bell: CommitNotifier) -> None:
        super().__init__()
        self.bell, self.times = bell, 0
        self.committed = asyncio.Event()

    async def status(self) -> list[dict[str, Any]]:
        self.times += 1
        return [{**rank, "bell": self.bell.address} for rank in await super().status()]

    async def commit(self, version: int) -> None:
        await super().commit(version)
        self.committed.set()


async def test_an_engine_with_a_bell_is_not_asked_until_a_version_is_offered() -> None:
    bell = CommitNotifier()
    await bell.open()
    engine = Ringing(bell)
    handoff = CommitHandoff(bell.ring)
    task = asyncio.create_task(Conductor(engine, poll_seconds=0).run())
    async with asyncio.timeout(10):
        while not bell._listeners:  # noqa: ASYNC110 - it has no event of its own
            await asyncio.sleep(0)
        for _ in range(200):
            await asyncio.sleep(0)
        before = engine.times
        for _ in range(200):
            await asyncio.sleep(0)
        assert engine.times == before, "it asked although nothing rang"
        engine.staged = 1
        offered = threading.Thread(target=handoff.offer, args=(1, lambda: None))
        offered.start()
        await engine.committed.wait()
    assert engine.version == 1
    handoff.take()
    offered.join(10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await bell.close()
