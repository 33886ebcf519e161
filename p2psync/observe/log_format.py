"""Formatters for logs: lines of text with time and level, lines of JSON with the event's fields.

Both take any record; one that carries an event (`EventLog` makes such) shows the event's own fields.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2psync.observe.events import Event


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO    published version 3 …`: for files and journals."""

    def __init__(self, *, names: bool = False) -> None:
        """names: show the logger's name too."""
        super().__init__()
        self._names = names

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        name = f"{record.name}: " if self._names else ""
        return f"{iso_time(record.created)} {record.levelname:<7} {name}{_message(self, record)}"


class TerminalFormatter(logging.Formatter):
    """`12:00:00  published version 3 …`, with warnings in colour, for terminals."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        line = f"{datetime.fromtimestamp(record.created):%H:%M:%S}  {_message(self, record)}"
        return f"\x1b[33m{line}\x1b[0m" if record.levelno >= logging.WARNING else line


class JsonFormatter(logging.Formatter):
    """`{"type":"Published","time":"…Z","severity":"info",…,"message":"published version 3 …"}`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        event: Event | None = getattr(record, "event", None)
        if event is not None:
            return event_json(event, record.created)
        import json

        fields = {
            "type": record.name,
            "time": iso_time(record.created),
            "severity": record.levelname.lower(),
            "message": _message(self, record),
        }
        return json.dumps(fields, ensure_ascii=False)


def event_json(event: Event, at: float) -> str:
    """An event as one line of JSON: its type, time, severity and fields, and its line for people as `message`.

    at: Unix seconds.
    """
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(event)
    head = {"type": fields.pop("type"), "time": iso_time(at), "severity": event.severity}
    return msgspec.json.encode(head | fields | {"message": event.line()}).decode()


def iso_time(at: float) -> str:
    """Unix seconds as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    line = record.getMessage()
    if record.exc_info:
        line = f"{line}\n{formatter.formatException(record.exc_info)}"
    return line
