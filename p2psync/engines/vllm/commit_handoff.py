"""Hands a commit from the node's thread to the engine's thread, which runs it when nothing reads the weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from p2psync.errors import EngineError, UnvouchedError


class CommitHandoff:
    """Holds at most one offered commit."""

    def __init__(self, on_offer: Callable[[], None] = lambda: None) -> None:
        """on_offer: called when a commit is offered, or a version went live without one. It must not block."""
        self.on_offer = on_offer
        self._changed = threading.Condition()
        self._offered: Callable[[], None] | None = None
        self._version: int | None = None
        self._offer_number = 0
        self._outcome: Exception | float | None = None
        self._closed = False

    @property
    def version(self) -> int | None:
        """The version of the offered commit, or None."""
        with self._changed:
            return self._version

    def offer(self, version: int, work: Callable[[], None]) -> float:
        """Offers `work` and waits until the other thread has run it. Returns how long it ran (seconds).

        Raises the error of `work`, and `EngineError` if `close` was called before another thread took the offer.
        """
        with self._changed:
            self._offered, self._version, self._outcome = work, version, None
            self._offer_number += 1
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
        """Waits up to `seconds` for an offer; returns whether there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._offered is not None or self._closed, seconds)
            return self._offered is not None

    def take(self) -> None:
        """Runs the offered work and wakes the thread that offered it. Raises the error of the work."""
        with self._changed:
            work, self._offered, offer_number = self._offered, None, self._offer_number
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
            # The caller must see the new position, and not the offer that is over. The next offer may already have
            # come.
            self._changed.wait_for(lambda: self._version is None or self._offer_number != offer_number)
        if isinstance(outcome, Exception):
            raise outcome

    def close(self) -> None:
        """Fails the open offer and all later ones with `EngineError`. Again: no effect."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
