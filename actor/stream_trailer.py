"""Where a streamed answer says under which versions it was made: in one more line, at its end. Sans-I/O.

Of server-sent events it is a comment, which every reader passes over, before `data: [DONE]`, after which many readers
look no further:

    : p2psync {"start_version":7, …}

Of JSON lines it is a line of its own: {"p2psync": {…}}. Other streams have no place for it, so they are not streamed.
"""

from __future__ import annotations

import re

import msgspec

from p2psync.actor.demand import VersionSpan

_DONE = b"data: [DONE]"
_AT_LINE, _AFTER_LINE = re.compile(rb"(?:\A|\n)(data: \[DONE\])"), re.compile(rb"\n(data: \[DONE\])")
_LINE = re.compile(rb"^(?:: p2psync (\{.*\})|\{\"p2psync\":(\{.*\})\})\r?$", re.MULTILINE)
EVENT_STREAM, JSON_LINES = "text/event-stream", "application/x-ndjson"


class StreamTrailer:
    """One stream. What `feed` gives is to be sent; only what could be the beginning of the end is kept back."""

    def __init__(self, content_type: str) -> None:
        self._events = content_type == EVENT_STREAM
        self._kept = b""
        self._at_line = True  # the kept bytes begin a line

    @staticmethod
    def can_carry(content_type: str) -> bool:
        """Whether streams of this type have a place for it."""
        return content_type in (EVENT_STREAM, JSON_LINES, "application/jsonl")

    def feed(self, data: bytes) -> bytes:
        """Bytes of the engine's; returns bytes to send now."""
        if not self._events:
            if data:
                self._at_line = data.endswith(b"\n")
            return data
        data = self._kept + data
        at = self._end_at(data)
        self._kept = data[at:]
        if at:
            self._at_line = data[:at].endswith(b"\n")
        return data[:at]

    def finish(self, found: VersionSpan) -> bytes:
        """The engine is through: the rest of the stream."""
        text = msgspec.json.encode(found)
        between = b"" if self._at_line else b"\n"
        if not self._events:
            return between + b'{"p2psync":' + text + b"}\n"
        if self._kept.startswith(_DONE):
            return b": p2psync " + text + b"\n\n" + self._kept
        rest, self._kept = self._kept, b""
        between = b"" if (rest.endswith(b"\n") if rest else self._at_line) else b"\n\n"
        return rest + between + b": p2psync " + text + b"\n\n"

    def _end_at(self, data: bytes) -> int:
        """Where a line begins that is, or may become, the last event; else the length."""
        found = (_AT_LINE if self._at_line else _AFTER_LINE).search(data)
        if found is not None:
            return found.start(1)
        begin = data.rfind(b"\n") + 1
        if (begin or self._at_line) and begin < len(data) and _DONE.startswith(data[begin:]):
            return begin
        return len(data)


def read_trailer(stream: bytes) -> VersionSpan | None:
    """What a whole stream, or its last part, says of its versions; None if it says nothing."""
    found = list(_LINE.finditer(stream))
    try:
        return msgspec.json.decode(found[-1][1] or found[-1][2], type=VersionSpan) if found else None
    except msgspec.MsgspecError:
        return None
