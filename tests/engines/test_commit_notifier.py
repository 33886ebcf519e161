"""The conductor of an engine commits as soon as it is notified, and does not poll meanwhile."""

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


async def test_a_listener_is_notified_on_connection_and_after_each_notification() -> None:
    notifier, listener = CommitNotifier(), CommitListener(quiet=60)
    await notifier.open()
    async with asyncio.timeout(10):
        assert await listener.wait_notified(notifier.address), "a notification may have come before"
        waiting = asyncio.create_task(listener.wait_notified(notifier.address))
        await asyncio.sleep(0)
        threading.Thread(target=notifier.notify).start()
        assert await waiting
        await notifier.close()
        assert notifier.address == ""
        assert not await listener.wait_notified("gone"), "the engine is gone"
        assert not await listener.wait_notified("gone")
    await notifier.close()
    notifier.notify()


async def test_a_listener_stops_waiting_after_its_quiet_time_and_at_once_without_a_notifier() -> None:
    notifier, listener = CommitNotifier(), CommitListener(quiet=0.01)
    assert not await listener.wait_notified("")
    assert not await listener.wait_notified("p2psync-none")
    await notifier.open()
    async with asyncio.timeout(10):
        assert await listener.wait_notified(notifier.address)
        assert await listener.wait_notified(notifier.address)
    listener.close()
    await notifier.close()


async def test_listeners_beyond_the_limit_are_disconnected() -> None:
    notifier = CommitNotifier()
    await notifier.open()
    listeners = [CommitListener(quiet=60) for _ in range(MAX_LISTENERS + 1)]
    async with asyncio.timeout(10):
        assert [await listener.wait_notified(notifier.address) for listener in listeners] == [True] * MAX_LISTENERS + [
            False
        ]
    for listener in listeners:
        listener.close()
    await notifier.close()


class NotifyingEngine(Engine):
    """An engine with a notifier that counts how often it is asked."""

    def __init__(self, notifier: CommitNotifier) -> None:
        super().__init__()
        self.notifier, self.times = notifier, 0
        self.committed = asyncio.Event()

    async def status(self) -> list[dict[str, Any]]:
        self.times += 1
        return [{**rank, "bell": self.notifier.address} for rank in await super().status()]

    async def commit(self, version: int) -> None:
        await super().commit(version)
        self.committed.set()


async def test_an_engine_with_a_notifier_is_not_polled_until_a_version_is_offered() -> None:
    notifier = CommitNotifier()
    await notifier.open()
    engine = NotifyingEngine(notifier)
    handoff = CommitHandoff(notifier.notify)
    task = asyncio.create_task(Conductor(engine, poll_seconds=0).run())
    async with asyncio.timeout(10):
        while not notifier._listeners:  # noqa: ASYNC110 - it has no event of its own
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
    await notifier.close()
