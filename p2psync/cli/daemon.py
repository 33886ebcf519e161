"""What every daemon of the command line shares: its loop, its signals, and how it shows what happens."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TextIO, TypeVar

import msgspec
import uvloop

from p2psync.errors import P2PSyncError, UsageError
from p2psync.observe.events import Event
from p2psync.protocol.keys import parse_private, parse_public

T = TypeVar("T")


def run(main: Coroutine[object, object, T]) -> T:
    """Run a daemon's main coroutine on uvloop."""
    return uvloop.run(main)


class Show:
    """Shows events: a line each on stderr, and as JSON lines to a file or `-` (stdout) if asked for."""

    def __init__(self, json: str | None) -> None:
        """`json`: a path or "-". Raises `P2PSyncError` if it cannot be written."""
        self._json: TextIO | None = None
        self._colour = sys.stderr.isatty()
        if json == "-":
            self._json = sys.stdout
        elif json is not None:
            try:
                self._json = Path(json).open("a", encoding="utf-8")  # noqa: SIM115 - open as long as the daemon runs
            except OSError as error:
                raise P2PSyncError(f"--json {json}: {error.strerror}") from None

    def __call__(self, event: Event) -> None:
        """Show one event."""
        line = f"{time.strftime('%H:%M:%S')}  {event.line()}"
        if self._colour and event.severity == "warning":
            line = f"\x1b[33m{line}\x1b[0m"
        print(line, file=sys.stderr, flush=True)
        if self._json is not None:
            self._json.write(msgspec.json.encode(event).decode() + "\n")
            self._json.flush()


async def until_stopped(*tasks: asyncio.Task[None]) -> None:
    """Return when the process is told to stop (SIGINT, SIGTERM), or raise what one of the tasks raises."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    waiting = asyncio.create_task(_wait(stop))
    done, pending = await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for task in done:
        task.result()


async def _wait(stop: asyncio.Event) -> None:
    await stop.wait()


def trusted_keys(given: list[str]) -> frozenset[bytes]:
    """Public keys from `--trust`: their text, or files that hold it. Raises `UsageError`."""
    return frozenset(_one_key(text) for text in given)


def _one_key(text: str) -> bytes:
    path = Path(text)
    if not text.startswith("ed25519:") and path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.startswith("p2psync-private-"):
            return parse_private(text).public_key().public_bytes_raw()
    try:
        return parse_public(text)
    except P2PSyncError as error:
        raise UsageError(f"--trust: {error}") from None


def in_loop(build: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run a daemon whose objects must be made on its loop."""
    run(build())
