"""A readers-writer lock for the live weights that prefers the writer: many readers at a time, or one commit.

A commit that waits keeps new readers out, so that a loop that reads without pause cannot starve it: it waits for the
readers that are inside, and no others. A reader inside may enter again. Readers are threads (`read_lock`) or coroutines
(`read_lock_async`); so are writers (`write_lock`, `write_lock_async`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial


def _always() -> bool:
    return True


class CommitLock:
    """Any number of readers, or one writer. A waiting writer goes before new readers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers: dict[object, int] = {}
        self._writers = 0
        self._commits = 0
        self._readers_wait_since: float | None = None
        self._ended: Exception | None = None
        self._wakes: list[Callable[[], object]] = []

    @property
    def commits(self) -> int:
        """How often a writer was inside. Two equal numbers, both read under a read lock, mean no write in between."""
        return self._commits

    @property
    def write_requested(self) -> bool:
        """Whether a writer waits or is inside."""
        return self._writers > 0

    @contextmanager
    def read_lock(self, ready: Callable[[], bool] = _always) -> Iterator[None]:
        """Keeps writers out within the context. Waits until `ready()` (see `recheck`). Raises the error of `end`."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._try_enter(me, ready))
        try:
            yield
        finally:
            self._leave(me)

    @asynccontextmanager
    async def read_lock_async(self, ready: Callable[[], bool] = _always) -> AsyncIterator[None]:
        """`read_lock` for a coroutine. Each entry is a reader of its own, so it must not enter again inside."""
        me, loop = object(), asyncio.get_running_loop()
        while True:
            with self._changed:
                if self._try_enter(me, ready):
                    break
                woken = loop.create_future()
                self._wakes.append(partial(loop.call_soon_threadsafe, _resolve, woken))
            await woken
        try:
            yield
        finally:
            self._leave(me)

    @contextmanager
    def write_lock(self) -> Iterator[float]:
        """Keeps readers out within the context; waits for those inside, however long they stay.

        Yields the time (`time.perf_counter`) since which readers wait: while the writer waits for the end of a batch,
        no reader is delayed until another one comes.
        """
        with self._changed:
            self._writers += 1
            self._changed.wait_for(lambda: not self._readers)
            since = self._readers_wait_since if self._readers_wait_since is not None else time.perf_counter()
        try:
            yield since
        finally:
            with self._changed:
                self._writers -= 1
                self._commits += 1
                self._readers_wait_since = None
                self._wake()

    @asynccontextmanager
    async def write_lock_async(self) -> AsyncIterator[None]:
        """`write_lock` for a coroutine."""
        loop = asyncio.get_running_loop()
        with self._changed:
            self._writers += 1
        inside = 0
        try:
            while True:
                with self._changed:
                    if not self._readers:
                        inside = 1
                        break
                    woken = loop.create_future()
                    self._wakes.append(partial(loop.call_soon_threadsafe, _resolve, woken))
                await woken
            yield
        finally:
            with self._changed:
                self._writers -= 1
                self._commits += inside
                self._readers_wait_since = None
                self._wake()

    def recheck(self) -> None:
        """Makes waiting readers call their `ready` again."""
        with self._changed:
            self._wake()

    def end(self, reason: Exception) -> None:
        """Fails waiting readers, and those to come, with this error. Again: no effect."""
        with self._changed:
            self._ended = self._ended or reason
            self._wake()

    def _try_enter(self, me: object, ready: Callable[[], bool]) -> bool:
        """Enters if that is possible now; returns whether. Raises the error of `end`."""
        if me not in self._readers:
            if self._ended is not None:
                raise self._ended
            if not ready():
                return False
            if self._writers:
                if self._readers_wait_since is None:
                    self._readers_wait_since = time.perf_counter()
                return False
        self._readers[me] = self._readers.get(me, 0) + 1
        return True

    def _leave(self, me: object) -> None:
        with self._changed:
            self._readers[me] -= 1
            if not self._readers[me]:
                del self._readers[me]
                self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nobody waits any more
                wake()


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
