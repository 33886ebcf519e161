"""Options and messages of the benchmarks that run real processes."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

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


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
