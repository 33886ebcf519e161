"""A listener that writes events to a logger, for programs without a listener of their own."""

from __future__ import annotations

import logging

from p2psync.observe.events import Committed, Event, HubJoined, Published


class EventLog:
    """A listener for events. A repeated warning is logged once, until a join, publish or commit succeeds in between.

    Each record carries its event as `record.event`. Python prints warnings to stderr where a program has not set up
    logging.
    """

    def __init__(self, name: str) -> None:
        """name: of the logger."""
        self._logger = logging.getLogger(name)
        self._warned: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Log the event's line, at its severity."""
        line = event.line()
        if event.severity == "info":
            log_event(self._logger, event)
            if isinstance(event, Committed | HubJoined | Published):
                self._warned.clear()
        elif line not in self._warned:
            self._warned.add(line)
            log_event(self._logger, event)


def log_event(logger: logging.Logger, event: Event) -> None:
    """Log one event: its line, at its severity, with the event itself as `record.event`."""
    logger.log(logging.getLevelNamesMapping()[event.severity.upper()], "%s", event.line(), extra={"event": event})
