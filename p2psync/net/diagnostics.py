"""A node's events, with repeated ones left out."""

from __future__ import annotations

from collections.abc import Callable

from p2psync.observe.events import Event, Trouble

#: The same event is emitted again after so long (seconds). Shorter fills logs; longer hides what lasts.
REPEAT_DIAGNOSTIC_SECONDS = 60.0


class Diagnostics:
    """Emits events. clock: in seconds."""

    def __init__(self, emit: Callable[[Event], None], clock: Callable[[], float]) -> None:
        self.emit = emit
        self._clock = clock
        self._emitted: dict[str, float] = {}

    def once(self, event: Event, about: str = "") -> None:
        """Emits an event unless the same one was emitted just now. about: identifies it if its text varies."""
        now, name = self._clock(), about or event.line()
        self._emitted = {old: at for old, at in self._emitted.items() if now - at < REPEAT_DIAGNOSTIC_SECONDS}
        if name not in self._emitted:
            self._emitted[name] = now
            self.emit(event)

    def trouble(self, message: str, about: str = "") -> None:
        """Emits a `Trouble` as `once` does."""
        self.once(Trouble(message), about)
