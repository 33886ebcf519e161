"""Lines of JSON between a process of a race and the race."""

from __future__ import annotations

import sys

import msgspec


def write_line(what: object) -> None:
    """One line of JSON."""
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()
