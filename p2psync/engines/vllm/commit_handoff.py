"""Where a commit and the engine's own thread meet: one offers, the other takes it when nothing reads the weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from p2psync.errors import EngineError, UnvouchedError


class CommitHandoff:
    """At most one offer at a time."""

    def __init__(self, on_offer: Callable[[], None] = lambda: None) -> None:
        """on_news: called when something is offered, or is live without a commit; must not wait."""
        self.on_offer = on_offer
        self._changed = threading.Condition()
        self._offered: Callable[[], None] | None = None
        self._version: int | None = None
        self._turn = 0
        self._outcome: Exception | float | None = None
        self._closed = False

    @property
    def version(self) -> int | None:
        """The version that waits to be taken."""
        with self._changed:
            return self._version

    def offer(self, version: int, work: Callable[[], None]) -> float:
        """Wait until `work` was done in the other thread; returns how long it took (seconds).

        Raises what it raised, and `EngineError` once `close` was called and nobody took it.
        """
        with self._changed:
            self._offered, self._version, self._outcome = work, version, None
            self._turn += 1
            self._changed.notify_all()
            self.on_offer()
            try:
                self._changed.wait_for(
                    lambda: self._outcome is not None or (self._closed and self._offered is not None)
                )
            finally:
                self._offered = self._version = None
                self._changed.notify_all()
            if isinstance(self._outcome, Exception):
                raise self._outcome
            if self._outcome is None:
                raise EngineError("the engine is closed; nothing was made live")
            return self._outcome

    def wait(self, seconds: float) -> bool:
        """Wait for an offer; whether there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._offered is not None or self._closed, seconds)
            return self._offered is not None

    def take(self) -> None:
        """Do what is offered, and tell the one who waits. Raises what it raises."""
        with self._changed:
            work, self._offered, turn = self._offered, None, self._turn
        if work is None:
            raise EngineError("nothing is staged")
        outcome: Exception | float
        begun = time.perf_counter()
        try:
            work()
            outcome = time.perf_counter() - begun
        except EngineError as error:
            outcome = error
        except BaseException as error:
            outcome = UnvouchedError(f"the commit ended in {type(error).__name__}: {error}")
            outcome.__cause__ = error
        with self._changed:
            self._outcome = outcome
            self._changed.notify_all()
            # What comes after a commit sees the position that it led to, not an offer that is over; the next offer may
            # be there before this thread is.
            self._changed.wait_for(lambda: self._version is None or self._turn != turn)
        if isinstance(outcome, Exception):
            raise outcome

    def close(self) -> None:
        """Send away who offers, now and later. Again: no effect."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
