"""Readers together, or one commit alone, and a commit does not starve."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from p2psync.actor.commit_lock import Gate
from p2psync.errors import UsageError

LIMIT = 10.0


def started(target: object) -> threading.Thread:
    assert callable(target)
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_a_writer_waits_for_readers_and_keeps_new_ones_out() -> None:
    gate, order = Gate(), []
    inside, wanted = threading.Event(), threading.Event()

    def write() -> None:
        wanted.set()
        with gate.closed():
            order.append("written")

    def read() -> None:
        with gate.held():
            order.append("read")

    with gate.held():
        writer = started(write)
        wanted.wait(LIMIT)
        while not gate._writers:
            time.sleep(0)
        reader = started(read)
        assert not order
        inside.set()
    writer.join(LIMIT)
    reader.join(LIMIT)
    assert order == ["written", "read"]


def test_readers_are_together_and_may_enter_again() -> None:
    gate, met = Gate(), threading.Barrier(2, timeout=LIMIT)

    def read() -> None:
        with gate.held(), gate.held():
            met.wait()

    threads = [started(read) for _ in range(2)]
    for thread in threads:
        thread.join(LIMIT)
    assert not met.broken
    with gate.closed():
        pass


def test_a_reader_inside_may_enter_again_while_a_writer_waits() -> None:
    gate = Gate()
    with gate.held():
        writer = started(lambda: gate.closed().__enter__())
        while not gate._writers:
            time.sleep(0)
        with gate.held():
            pass
    writer.join(LIMIT)
    assert not writer.is_alive()


def test_a_loop_that_reads_without_pause_does_not_starve_a_writer() -> None:
    gate, done = Gate(), threading.Event()

    def read() -> None:
        while not done.is_set():
            with gate.held():
                pass

    readers = [started(read) for _ in range(2)]
    for _ in range(50):
        with gate.closed():
            pass
    done.set()
    for reader in readers:
        reader.join(LIMIT)
        assert not reader.is_alive()


def test_who_waits_is_sent_away_at_the_end() -> None:
    gate, refused = Gate(), threading.Event()

    def wait() -> None:
        try:
            with gate.held(lambda: False):
                pass
        except UsageError:
            refused.set()

    thread = started(wait)
    gate.look()
    gate.end(UsageError("closed"))
    assert refused.wait(LIMIT)
    thread.join(LIMIT)
    with pytest.raises(UsageError, match="closed"), gate.held():
        pass


async def test_coroutines_and_threads_are_readers_alike() -> None:
    gate = Gate()
    async with gate.holding(), gate.holding():
        writer = started(lambda: gate.closed().__enter__())
        while not gate.wanted:  # noqa: ASYNC110 (the gate tells nobody)
            await asyncio.sleep(0)
        late = asyncio.create_task(entered(gate))
        await asyncio.sleep(0)
        assert gate.commits == 0 and not late.done()
    writer.join(LIMIT)
    assert not writer.is_alive() and not late.done()  # the writer is inside, and stays
    late.cancel()
    assert (await asyncio.gather(late, return_exceptions=True))[0].__class__ is asyncio.CancelledError


async def test_a_coroutine_enters_once_the_commit_is_done_and_is_sent_away_at_the_end() -> None:
    gate, inside, done = Gate(), threading.Event(), threading.Event()

    def write() -> None:
        with gate.closed():
            inside.set()
            done.wait(LIMIT)

    writer = started(write)
    inside.wait(LIMIT)
    waiting = asyncio.create_task(entered(gate))
    await asyncio.sleep(0)
    assert not waiting.done()
    done.set()
    async with asyncio.timeout(LIMIT):
        assert await waiting == 1
    writer.join(LIMIT)
    never = asyncio.create_task(entered(gate, lambda: False))
    await asyncio.sleep(0)
    gate.end(UsageError("closed"))
    with pytest.raises(UsageError, match="closed"):
        async with asyncio.timeout(LIMIT):
            await never


async def entered(gate: Gate, ready: Callable[[], bool] = lambda: True) -> int:
    async with gate.holding(ready):
        return gate.commits


async def test_a_coroutine_closes_the_gate_once_readers_are_out() -> None:
    gate, inside = Gate(), asyncio.Event()

    async def commit() -> None:
        async with gate.closing():
            inside.set()

    async with gate.holding():
        task = asyncio.create_task(commit())
        for _ in range(5):
            await asyncio.sleep(0)
        assert gate.wanted
        assert not inside.is_set()
    await task
    assert (inside.is_set(), gate.wanted, gate.commits) == (True, False, 1)
    async with gate.holding():
        given_up = asyncio.create_task(commit())
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert (gate.wanted, gate.commits) == (False, 1)
