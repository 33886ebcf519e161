"""The commit lock admits many readers or one writer, and readers do not starve a writer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from p2psync.actor.commit_lock import CommitLock
from p2psync.errors import UsageError

LIMIT = 10.0


def started(target: object) -> threading.Thread:
    assert callable(target)
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_a_writer_waits_for_readers_and_keeps_new_ones_out() -> None:
    commit_lock, order = CommitLock(), []
    inside, write_requested = threading.Event(), threading.Event()

    def write() -> None:
        write_requested.set()
        with commit_lock.write_lock():
            order.append("written")

    def read() -> None:
        with commit_lock.read_lock():
            order.append("read")

    with commit_lock.read_lock():
        writer = started(write)
        write_requested.wait(LIMIT)
        while not commit_lock._writers:
            time.sleep(0)
        reader = started(read)
        assert not order
        inside.set()
    writer.join(LIMIT)
    reader.join(LIMIT)
    assert order == ["written", "read"]


def test_readers_share_the_lock_and_may_enter_again() -> None:
    commit_lock, met = CommitLock(), threading.Barrier(2, timeout=LIMIT)

    def read() -> None:
        with commit_lock.read_lock(), commit_lock.read_lock():
            met.wait()

    threads = [started(read) for _ in range(2)]
    for thread in threads:
        thread.join(LIMIT)
    assert not met.broken
    with commit_lock.write_lock():
        pass


def test_a_reader_inside_may_enter_again_while_a_writer_waits() -> None:
    commit_lock = CommitLock()
    with commit_lock.read_lock():
        writer = started(lambda: commit_lock.write_lock().__enter__())
        while not commit_lock._writers:
            time.sleep(0)
        with commit_lock.read_lock():
            pass
    writer.join(LIMIT)
    assert not writer.is_alive()


def test_a_loop_that_reads_without_pause_does_not_starve_a_writer() -> None:
    commit_lock, done = CommitLock(), threading.Event()

    def read() -> None:
        while not done.is_set():
            with commit_lock.read_lock():
                pass

    readers = [started(read) for _ in range(2)]
    for _ in range(50):
        with commit_lock.write_lock():
            pass
    done.set()
    for reader in readers:
        reader.join(LIMIT)
        assert not reader.is_alive()


def test_waiting_readers_fail_once_the_lock_is_ended() -> None:
    commit_lock, refused = CommitLock(), threading.Event()

    def wait() -> None:
        try:
            with commit_lock.read_lock(lambda: False):
                pass
        except UsageError:
            refused.set()

    thread = started(wait)
    commit_lock.recheck()
    commit_lock.end(UsageError("closed"))
    assert refused.wait(LIMIT)
    thread.join(LIMIT)
    with pytest.raises(UsageError, match="closed"), commit_lock.read_lock():
        pass


async def test_coroutines_and_threads_are_readers_alike() -> None:
    commit_lock = CommitLock()
    async with commit_lock.read_lock_async(), commit_lock.read_lock_async():
        writer = started(lambda: commit_lock.write_lock().__enter__())
        while not commit_lock.write_requested:  # noqa: ASYNC110 (the lock has no event for it)
            await asyncio.sleep(0)
        late = asyncio.create_task(entered(commit_lock))
        await asyncio.sleep(0)
        assert commit_lock.commits == 0 and not late.done()
    writer.join(LIMIT)
    assert not writer.is_alive() and not late.done()  # the writer is inside, and stays
    late.cancel()
    assert (await asyncio.gather(late, return_exceptions=True))[0].__class__ is asyncio.CancelledError


async def test_a_coroutine_enters_after_the_commit_and_fails_once_the_lock_is_ended() -> None:
    commit_lock, inside, done = CommitLock(), threading.Event(), threading.Event()

    def write() -> None:
        with commit_lock.write_lock():
            inside.set()
            done.wait(LIMIT)

    writer = started(write)
    inside.wait(LIMIT)
    waiting = asyncio.create_task(entered(commit_lock))
    await asyncio.sleep(0)
    assert not waiting.done()
    done.set()
    async with asyncio.timeout(LIMIT):
        assert await waiting == 1
    writer.join(LIMIT)
    never = asyncio.create_task(entered(commit_lock, lambda: False))
    await asyncio.sleep(0)
    commit_lock.end(UsageError("closed"))
    with pytest.raises(UsageError, match="closed"):
        async with asyncio.timeout(LIMIT):
            await never


async def entered(commit_lock: CommitLock, ready: Callable[[], bool] = lambda: True) -> int:
    async with commit_lock.read_lock_async(ready):
        return commit_lock.commits


async def test_a_coroutine_takes_the_write_lock_once_readers_are_out() -> None:
    commit_lock, inside = CommitLock(), asyncio.Event()

    async def commit() -> None:
        async with commit_lock.write_lock_async():
            inside.set()

    async with commit_lock.read_lock_async():
        task = asyncio.create_task(commit())
        for _ in range(5):
            await asyncio.sleep(0)
        assert commit_lock.write_requested
        assert not inside.is_set()
    await task
    assert (inside.is_set(), commit_lock.write_requested, commit_lock.commits) == (True, False, 1)
    async with commit_lock.read_lock_async():
        given_up = asyncio.create_task(commit())
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert (commit_lock.write_requested, commit_lock.commits) == (False, 1)
