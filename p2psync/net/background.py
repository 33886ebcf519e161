"""An event loop in its own thread, for programs that are not asyncio: training and generation loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

import uvloop

from p2psync.errors import UsageError

T = TypeVar("T")
#: Seconds to wait for a cancelled coroutine to end after its caller gave up.
CANCEL_WAIT_SECONDS = 10.0


class BackgroundLoop:
    """Runs coroutines for ordinary threads."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def call(self, coroutine: Coroutine[object, object, T], timeout: float | None = None) -> T:
        """Runs a coroutine in the loop and returns its result, or raises its exception; `TimeoutError` after `timeout`
        seconds.

        When the caller gives up (a timeout, Ctrl-C) the coroutine is cancelled, and has ended when this raises. Raises
        `UsageError` after `close`, and in the loop's own thread, where it would wait for itself.
        """
        if self._closed or threading.current_thread() is self._thread:
            coroutine.close()
            where = "it is closed" if self._closed else "its own thread must not wait for it"
            raise UsageError(f"{self._thread.name}: {where}; call it from another thread, before it is closed")
        ended = threading.Event()
        future = asyncio.run_coroutine_threadsafe(_signalling(coroutine, ended), self._loop)
        try:
            return future.result(timeout)
        except BaseException:
            if future.cancel():
                ended.wait(CANCEL_WAIT_SECONDS)
            raise

    def soon(self, call: Callable[[], object]) -> None:
        """Schedules a call in the loop without waiting for it. Does nothing after `close`."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """Stops the loop and cancels whatever still runs in it. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            pending = asyncio.all_tasks(self._loop)
            for task in pending:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()


async def _signalling(coroutine: Coroutine[object, object, T], ended: threading.Event) -> T:
    try:
        return await coroutine
    finally:
        ended.set()
