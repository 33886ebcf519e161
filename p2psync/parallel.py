"""All cores for the compiled loops, which run without the GIL: one pool of threads for the process.

Only work that waits for nothing belongs here: no network, no locks, and no further use of this pool.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")

#: More threads than this are not used: memory is the limit long before.
MAX_THREADS = 32

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_limit = MAX_THREADS


def thread_count() -> int:
    """Threads that are worth using: one for each core that this process may run on, up to a limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_limit, cores))


def limit_threads(most: int | None) -> None:
    """Use no more than so many threads from now on; None: as many as are worth it. Raises `ValueError` below 1."""
    global _limit, _pool
    if most is not None and most < 1:
        raise ValueError(f"{most} threads: at least 1 is needed")
    with _lock:
        _limit = min(MAX_THREADS, most or MAX_THREADS)
        # A pool has as many threads as it was made with; what still runs in the old one ends there.
        old, _pool = _pool, None
    if old is not None:
        old.shutdown(wait=False)


def _shared() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(thread_count(), "p2psync-codec")
        return _pool


def _forget() -> None:
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


# A forked child inherits the pool, but none of its threads: calls would wait in it for ever.
os.register_at_fork(after_in_child=_forget)


class InOrder(Generic[_R]):
    """Calls that run side by side and whose results are consumed in the order in which they were asked for.

    At most twice as many calls as threads are under way or wait to be consumed. With one thread every call runs at
    once, in the thread that asks.
    """

    def __init__(self, consume: Callable[[_R], None]) -> None:
        self._consume = consume
        self._threads = thread_count()
        self._waiting: deque[Future[_R]] = deque()

    def ask(self, call: Callable[[], _R]) -> None:
        """Submits a call. Raises the error of an earlier call."""
        if self._threads == 1:
            self._consume(call())
            return
        self._waiting.append(_shared().submit(call))
        while self._waiting and (self._waiting[0].done() or len(self._waiting) > 2 * self._threads):
            self._consume(self._waiting.popleft().result())

    def finish(self) -> None:
        """Waits for all results. Raises the error of a call."""
        while self._waiting:
            self._consume(self._waiting.popleft().result())

    def give_up(self) -> None:
        """Drops all results that were not consumed; once this returns, no call runs any more."""
        for future in self._waiting:
            future.cancel()
        wait(self._waiting)
        self._waiting.clear()


def in_parallel(work: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[_R]:
    """`map` over threads, in order, with a bounded number of items under way. Close it, or run it to its end."""
    found: deque[_R] = deque()
    calls = InOrder[_R](found.append)
    try:
        for item in items:
            calls.ask(_Call(work, item))
            while found:
                yield found.popleft()
        calls.finish()
        yield from found
    finally:
        calls.give_up()


class _Call(Generic[_T, _R]):
    """`work(item)`, to be called later."""

    def __init__(self, work: Callable[[_T], _R], item: _T) -> None:
        self._work, self._item = work, item

    def __call__(self) -> _R:
        return self._work(self._item)
