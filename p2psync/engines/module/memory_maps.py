"""Finds memory of this process that cannot be written. A write there ends the process without an exception."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

#: Linux lists the process's mappings here. On other systems nothing is known, and nothing is refused.
_MAPS = Path("/proc/self/maps")


def first_unwritable(spans: Iterable[tuple[str, int, int]]) -> str | None:
    """Returns the name of the first span [start, stop) of addresses that reaches into read-only memory, or None."""
    try:
        text = _MAPS.read_text()
    except OSError:
        return None
    return find_unwritable(text, spans)


def find_unwritable(maps: str, spans: Iterable[tuple[str, int, int]]) -> str | None:
    """Does the same for the text of a maps file. Pure."""
    read_only = []
    for line in maps.splitlines():
        addresses, permissions = line.split(maxsplit=2)[:2]
        if "w" not in permissions:
            begin, _, end = addresses.partition("-")
            read_only.append((int(begin, 16), int(end, 16)))
    read_only.sort()
    begins = [begin for begin, _ in read_only]
    for name, start, stop in spans:
        below = bisect_right(begins, stop - 1) - 1
        if below >= 0 and read_only[below][1] > start:
            return name
    return None
