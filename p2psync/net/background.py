"""An event loop in its own thread, and a node on it, for programs that are not asyncio: training, generation."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Generic, Protocol, TypeVar

import uvloop

from p2psync.errors import UsageError

T = TypeVar("T")
N = TypeVar("N", bound="_Node")
#: Seconds to wait for a cancelled coroutine to end after its caller gave up.
CANCEL_WAIT_SECONDS = 10.0


class BackgroundLoop:
    """Runs coroutines for ordinary threads."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._closed = False
        self._thread = threading.Thread(target=self._run_forever, name=name, daemon=True)
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

    def run(self, function: Callable[[], T]) -> T:
        """Runs a function in the loop's thread and returns its result, or raises its exception. Raises as `call`."""
        return self.call(_called(function))

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

    def _run_forever(self) -> None:
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


async def _called(function: Callable[[], T]) -> T:
    return function()


class _Node(Protocol):
    async def stop(self) -> None: ...


class BackgroundNode(Generic[N]):
    """A node on a loop in its own thread: started once, closed once."""

    def __init__(self, owner: str, thread: str) -> None:
        """owner: the class whose node this is, for errors. thread: the thread's name."""
        self._owner = owner
        self._thread = thread
        self._loop: BackgroundLoop | None = None
        self._node: N | None = None

    @property
    def loop(self) -> BackgroundLoop:
        """The node's loop. Raises `UsageError` before `start`."""
        if self._loop is None:
            raise self.not_started()
        return self._loop

    @property
    def node(self) -> N:
        """The node. Raises `UsageError` before `start`."""
        if self._node is None:
            raise self.not_started()
        return self._node

    @property
    def is_open(self) -> bool:
        """Whether `start` was called, without an error, and `close` was not."""
        return self._loop is not None and not self._loop.closed

    def start(self, make: Callable[[], N], begin: Callable[[N], Coroutine[object, object, None]]) -> N:
        """Makes the node and begins its life, both on the loop; returns the node. After an error the loop is closed.

        Raises what `make` and `begin` raise, and `UsageError` the second time.
        """
        if self._loop is not None:
            raise UsageError(f"this {self._owner.lower()} was started already: make another one")
        self._loop = loop = BackgroundLoop(self._thread)
        try:
            self._node = node = loop.run(make)
            loop.call(begin(node))
        except BaseException:
            loop.close()
            raise
        return node

    def close(self) -> None:
        """Stops the node and closes the loop. Again, or before `start`: no effect."""
        if self._loop is None or self._loop.closed:
            return
        try:
            if self._node is not None:
                self._loop.call(self._node.stop())
        finally:
            self._loop.close()

    def not_started(self) -> UsageError:
        """Returns the error of a call before `start`."""
        name = self._owner.lower()
        return UsageError(f"the {name} is not started: use it as `with {self._owner}(...) as {name}`, or start()")
