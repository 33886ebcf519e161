"""Parts that the commands of benchmarks share: options of several words, messages, tables, and how they end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

from p2psync.errors import P2PSyncError, UsageError

if TYPE_CHECKING:
    from rich.console import Console


def tell(line: str) -> None:
    """Reports the progress of a benchmark."""
    print(line, file=sys.stderr, flush=True)


def end_as_interrupted() -> None:
    """Told to end, a benchmark ends as after Ctrl-C: with everything that it started."""
    signal.signal(signal.SIGTERM, _interrupt)


def console_for(json: str | None) -> Console:
    """Returns the console for tables: stderr if the JSON goes to stdout; wide if it is no terminal."""
    from rich.console import Console

    console = Console(file=sys.stderr if json == "-" else sys.stdout)
    if not console.is_terminal:
        console.width = 150
    return console


def words(text: str) -> list[str]:
    """Returns the words of a text with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]


def chosen_words(option: str, text: str, known: Sequence[str]) -> list[str]:
    """Returns the words that an option names: `all` of the known ones, `none`, or some. Raises `UsageError`."""
    chosen = {"all": list(known), "none": []}.get(text, words(text))
    if unknown := set(chosen) - set(known):
        raise UsageError(f"{option} {sorted(unknown)[0]!r}: choose all, none, or of {', '.join(known)}")
    return chosen


def check_can_emulate() -> None:
    """Raises `P2PSyncError` where no network can be emulated."""
    from p2psync.topology.emulator import why_not

    if reason := why_not():
        raise P2PSyncError(reason)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
