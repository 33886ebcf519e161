"""The trailer of a streamed answer: one more line at its end, with the versions under which it was made. Sans-I/O.

In server-sent events the trailer is a comment, which every reader ignores. It comes before `data: [DONE]`, where many
readers stop:

    : p2psync {"start_version":7, …}

In JSON lines the trailer is a line of its own: {"p2psync": {…}}. Answers of other types cannot carry a trailer, so they
are not streamed.
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
    """Adds the trailer to one stream. Send what `feed` returns; it holds back only a possible start of `[DONE]`."""

    def __init__(self, content_type: str) -> None:
        self._events = content_type == EVENT_STREAM
        self._held = b""
        self._at_line = True  # the held bytes start a line

    @staticmethod
    def can_carry(content_type: str) -> bool:
        """Returns whether streams of this content type can carry a trailer."""
        return content_type in (EVENT_STREAM, JSON_LINES, "application/jsonl")

    def feed(self, data: bytes) -> bytes:
        """Takes bytes of the engine's answer; returns the bytes to send now."""
        if not self._events:
            if data:
                self._at_line = data.endswith(b"\n")
            return data
        data = self._held + data
        at = self._end_at(data)
        self._held = data[at:]
        if at:
            self._at_line = data[:at].endswith(b"\n")
        return data[:at]

    def finish(self, found: VersionSpan) -> bytes:
        """Returns the rest of the stream, with the trailer, once the engine has finished."""
        text = msgspec.json.encode(found)
        between = b"" if self._at_line else b"\n"
        if not self._events:
            return between + b'{"p2psync":' + text + b"}\n"
        if self._held.startswith(_DONE):
            return b": p2psync " + text + b"\n\n" + self._held
        rest, self._held = self._held, b""
        between = b"" if (rest.endswith(b"\n") if rest else self._at_line) else b"\n\n"
        return rest + between + b": p2psync " + text + b"\n\n"

    def _end_at(self, data: bytes) -> int:
        """Returns where a line starts that is, or may become, the last event; else the length."""
        found = (_AT_LINE if self._at_line else _AFTER_LINE).search(data)
        if found is not None:
            return found.start(1)
        begin = data.rfind(b"\n") + 1
        if (begin or self._at_line) and begin < len(data) and _DONE.startswith(data[begin:]):
            return begin
        return len(data)


def read_trailer(stream: bytes) -> VersionSpan | None:
    """Reads the trailer of a whole stream, or of its last part; None if there is none."""
    found = list(_LINE.finditer(stream))
    try:
        return msgspec.json.decode(found[-1][1] or found[-1][2], type=VersionSpan) if found else None
    except msgspec.MsgspecError:
        return None
