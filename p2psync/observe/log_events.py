"""A listener that writes events to a logger, for programs without a listener of their own."""

from __future__ import annotations

import logging

from p2psync.observe.events import Committed, Event, HubJoined, Published


class EventLog:
    """A listener for events. A repeated warning is logged once, until a join, publish or commit succeeds in between.

    Python prints warnings to stderr where a program has not set up logging.
    """

    def __init__(self, name: str) -> None:
        """name: of the logger."""
        self._logger = logging.getLogger(name)
        self._warned: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Log the event's line, at its severity."""
        line = event.line()
        if event.severity == "info":
            self._logger.info(line)
            if isinstance(event, Committed | HubJoined | Published):
                self._warned.clear()
        elif line not in self._warned:
            self._warned.add(line)
            self._logger.log(logging.getLevelNamesMapping()[event.severity.upper()], line)
