"""Which memory of this process may be written: a write to any other ends the process, and not with an exception."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

#: Linux lists here what is mapped; elsewhere nothing is known, and nothing refused.
_MAPS = Path("/proc/self/maps")


def first_unwritable(spans: Iterable[tuple[str, int, int]]) -> str | None:
    """The name of the first span [start, stop) of addresses that reaches into memory without write permission."""
    try:
        text = _MAPS.read_text()
    except OSError:
        return None
    return find_unwritable(text, spans)


def find_unwritable(maps: str, spans: Iterable[tuple[str, int, int]]) -> str | None:
    """The same for the text of a maps file. Pure."""
    barred = []
    for line in maps.splitlines():
        addresses, permissions = line.split(maxsplit=2)[:2]
        if "w" not in permissions:
            begin, _, end = addresses.partition("-")
            barred.append((int(begin, 16), int(end, 16)))
    barred.sort()
    begins = [begin for begin, _ in barred]
    for name, start, stop in spans:
        below = bisect_right(begins, stop - 1) - 1
        if below >= 0 and barred[below][1] > start:
            return name
    return None
