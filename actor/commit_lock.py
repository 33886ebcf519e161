"""Who may use the live weights when: readers together, or one commit alone, and a commit never waits for long.

A commit that waits keeps new readers out, so that a loop that reads without pause does not starve it: it waits for the
readers of the moment and no others. A reader inside may enter again. Readers are threads (`read_lock`) or coroutines
(`read_lock_async`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial


def _at_once() -> bool:
    return True


class CommitLock:
    """Any number of readers, or one writer, who goes first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers: dict[object, int] = {}
        self._writers = 0
        self._commits = 0
        self._kept_waiting: float | None = None
        self._ended: Exception | None = None
        self._wakes: list[Callable[[], object]] = []

    @property
    def commits(self) -> int:
        """How often a writer was inside. The same number twice, each time read inside, says that nothing was written
        in between."""
        return self._commits

    @property
    def write_requested(self) -> bool:
        """Whether a writer waits or is inside."""
        return self._writers > 0

    @contextmanager
    def read_lock(self, ready: Callable[[], bool] = _at_once) -> Iterator[None]:
        """Keep writers out meanwhile. Waits until `ready` (see `look`). Raises what `end` was given."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._entered(me, ready))
        try:
            yield
        finally:
            self._leave(me)

    @asynccontextmanager
    async def read_lock_async(self, ready: Callable[[], bool] = _at_once) -> AsyncIterator[None]:
        """`read_lock`, for a coroutine; each entry is a reader of its own, so it must not enter again inside."""
        me, loop = object(), asyncio.get_running_loop()
        while True:
            with self._changed:
                if self._entered(me, ready):
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
        """Keep readers out meanwhile; waits for those inside, however long they stay.

        Gives the moment (`time.perf_counter`) since which readers have had to wait: while the writer waits for the end
        of a batch, nobody is kept from anything until another reader comes.
        """
        with self._changed:
            self._writers += 1
            self._changed.wait_for(lambda: not self._readers)
            since = self._kept_waiting if self._kept_waiting is not None else time.perf_counter()
        try:
            yield since
        finally:
            with self._changed:
                self._writers -= 1
                self._commits += 1
                self._kept_waiting = None
                self._wake()

    @asynccontextmanager
    async def write_lock_async(self) -> AsyncIterator[None]:
        """`write_lock`, for a coroutine."""
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
                self._kept_waiting = None
                self._wake()

    def look(self) -> None:
        """Have waiting readers look again whether they are ready."""
        with self._changed:
            self._wake()

    def end(self, reason: Exception) -> None:
        """Send waiting readers away with this error, and those to come. Again: no effect."""
        with self._changed:
            self._ended = self._ended or reason
            self._wake()

    def _entered(self, me: object, ready: Callable[[], bool]) -> bool:
        """Enter if that may be now. Raises what `end` was given."""
        if me not in self._readers:
            if self._ended is not None:
                raise self._ended
            if not ready():
                return False
            if self._writers:
                if self._kept_waiting is None:
                    self._kept_waiting = time.perf_counter()
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
