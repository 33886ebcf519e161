"""A timer that follows a state machine's next deadline instead of polling it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timer:
    """Calls `callback` on the running loop when `clock` reaches a deadline (both in seconds).

    Deadlines that move later cost nothing: the alarm rings at the earlier time, and is then set anew.
    """

    def __init__(self, clock: Callable[[], float], callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._when = 0.0

    def set(self, when: float | None) -> None:
        """Ring at `when` or, if set earlier before, then. None leaves it as it is."""
        if when is None or (self._handle is not None and self._when <= when):
            return
        self.cancel()
        self._when = when
        delay = max(0.0, when - self._clock())
        self._handle = asyncio.get_running_loop().call_later(delay, self._fire)

    def cancel(self) -> None:
        """Do not ring."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._callback()
