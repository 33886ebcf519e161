"""A timer that follows a state machine's next deadline instead of polling it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timer:
    """Calls `callback` on the running loop when `clock` reaches a deadline (both in seconds).

    Moving a deadline later costs nothing: the timer fires at the earlier time, and is then set again.
    """

    def __init__(self, clock: Callable[[], float], callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._when = 0.0

    def set(self, when: float | None) -> None:
        """Fires at `when`, or at an earlier time that was set before. None changes nothing."""
        if when is None or (self._handle is not None and self._when <= when):
            return
        self.cancel()
        self._when = when
        delay = max(0.0, when - self._clock())
        self._handle = asyncio.get_running_loop().call_later(delay, self._fire)

    def cancel(self) -> None:
        """Cancels the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._callback()
