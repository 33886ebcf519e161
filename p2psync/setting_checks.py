"""Refuses settings that cannot be meant: by name, in one line. Pure."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence

from p2psync.errors import UsageError


def check_choice(given: object, setting: str, choices: Sequence[str]) -> None:
    """Raises `UsageError`, with the nearest right one, unless a setting is one of these words."""
    if given not in choices:
        near = difflib.get_close_matches(str(given), choices, n=1, cutoff=0.5)
        raise UsageError(f"{setting}={given!r}: " + (f"did you mean {near[0]}?" if near else _one_of(choices)))


def check_number(given: object, setting: str, least: float, most: float = math.inf, *, whole: bool = False) -> None:
    """Raises `UsageError` unless a setting is a number (whole: a whole one) from `least` to `most`."""
    kinds = (int,) if whole else (int, float)
    if isinstance(given, bool) or not isinstance(given, kinds) or not least <= given <= most:
        kind = "a whole number" if whole else "a number"
        bounds = f"from {least:g} to {most:g}" if most < math.inf else f"of {least:g} or more"
        raise UsageError(f"{setting}={given!r}: give {kind} {bounds}")


def check_texts(settings: Mapping[str, object]) -> None:
    """Raises `UsageError` unless each of these settings, by name, is text."""
    for setting, given in settings.items():
        if not isinstance(given, str):
            raise UsageError(f"{setting}={given!r}: give text")


def check_flags(settings: Mapping[str, object]) -> None:
    """Raises `UsageError` unless each of these settings, by name, is True or False."""
    for setting, given in settings.items():
        if not isinstance(given, bool):
            raise UsageError(f"{setting}={given!r}: give True or False")


def _one_of(choices: Sequence[str]) -> str:
    return f"choose {', '.join(choices[:-1])} or {choices[-1]}"
