"""Runs a daemon of the command line: its loop, its signals, and its output."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Protocol, TextIO, TypeVar

import typer
import uvloop

from p2psync.errors import P2PSyncError
from p2psync.observe.events import Event
from p2psync.observe.log_events import log_event
from p2psync.observe.log_format import event_json

T = TypeVar("T")
_LOGGER = logging.getLogger("p2psync.daemon")


def run(main: Coroutine[object, object, T]) -> T:
    """Run a daemon's main coroutine on uvloop."""
    return uvloop.run(main)


class EventOutput:
    """Logs events to stderr, and writes them as JSON lines to a file or `-` (stdout) if asked for."""

    def __init__(self, json: str | None) -> None:
        """`json`: a path or "-". Raises `P2PSyncError` if it cannot be written."""
        self._json: TextIO | None = None
        self._refused = False
        if json == "-":
            self._json = sys.stdout
        elif json is not None:
            try:
                self._json = Path(json).open("a", encoding="utf-8")  # noqa: SIM115 - open as long as the daemon runs
            except OSError as error:
                raise P2PSyncError(f"--json {json}: {error.strerror}") from None

    def __call__(self, event: Event) -> None:
        """Show one event. An output that refuses (a full disk, a closed pipe) stops nothing; it misses events."""
        log_event(_LOGGER, event)
        if self._json is not None:
            self._write(self._json, event_json(event, time.time()) + "\n")

    def _write(self, out: TextIO, line: str) -> None:
        try:
            out.write(line)
            out.flush()
        except OSError as error:
            if not self._refused:
                _LOGGER.warning("--json: %s; events are missing there", error.strerror)
            self._refused = True
        else:
            self._refused = False


class _Signals:
    """SIGINT and SIGTERM from the first moment on: the first one ends the daemon cleanly, a second one at once.

    A daemon that was started with SIGINT ignored (nohup, a job of a script's background) leaves it so, as the shell
    meant it; SIGTERM ends it in any case.
    """

    def __init__(self, daemon: asyncio.Task[None]) -> None:
        self.told: signal.Signals | None = None
        self.stopped = asyncio.Event()
        #: Whether the daemon waits for `stopped`; before, it is starting, and is cancelled.
        self.awaited = False
        self._daemon = daemon
        self._loop = asyncio.get_running_loop()
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        self._heard = (signal.SIGTERM,) if ignored else (signal.SIGINT, signal.SIGTERM)
        for number in self._heard:
            self._loop.add_signal_handler(number, self._stop, number)

    def _stop(self, number: signal.Signals) -> None:
        for other in self._heard:
            self._loop.remove_signal_handler(other)
        self.told = number
        self.stopped.set()
        if not self.awaited:
            self._daemon.cancel()


_signals: _Signals | None = None


async def until_stopped(*tasks: asyncio.Task[None]) -> None:
    """Return when the process is told to stop (SIGINT, SIGTERM), or when one of the tasks ends.

    Raises what that task raises. Only within `in_loop`.
    """
    assert _signals is not None
    _signals.awaited = True
    waiting = asyncio.create_task(_wait(_signals.stopped))
    done, pending = await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for task in done:
        task.result()


async def _wait(stopped: asyncio.Event) -> None:
    await stopped.wait()


class _Node(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


@contextlib.asynccontextmanager
async def running(node: _Node) -> AsyncIterator[None]:
    """Starts a node, and stops it at the end of the block. Raises what `start` raises."""
    await node.start()
    try:
        yield
    finally:
        await node.stop()


def trusted_keys(given: list[str]) -> frozenset[bytes]:
    """Public keys from `--trust`: their text, or files that hold it. Raises `UsageError`."""
    from p2psync.arguments import as_public_keys

    return as_public_keys(given, "--trust")


def join_command(url: str, key: str, token: str | None) -> str:
    """The command that starts an actor, as it can be pasted into a shell once TOKEN and DIR are filled in."""
    from p2psync.net.addresses import shell_words

    words = ["p2psync", "actor", "--join", url, "--trust", key, "--into", "DIR"]
    return shell_words([*words, "--token", "TOKEN"] if token else words)


def in_loop(build: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run a daemon whose objects must be made on its loop. Exit 130 after SIGINT, 0 after SIGTERM."""
    _raise_file_limit()
    if run(_guarded(build)) == signal.SIGINT:
        raise typer.Exit(130)


async def _guarded(build: Callable[[], Coroutine[object, object, None]]) -> signal.Signals | None:
    global _signals
    daemon = asyncio.create_task(build())
    _signals = _Signals(daemon)
    try:
        await daemon
    except asyncio.CancelledError:
        if _signals.told is None:
            raise
    return _signals.told


def _raise_file_limit() -> None:
    """Every pack and every connection is an open file: take what the system gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
