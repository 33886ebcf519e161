"""Starts daemons as forks of one process that has imported and compiled everything: a start costs a tenth of a fresh
interpreter's.

What runs is the command line's `main` in a process of its own, with its own session, signals, output and exit code.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from child_signals import ignore_interrupts

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG, _CLONE_NEWNET = 1, 0x40000000
_HERE = Path(__file__).parent
#: Where the server finds its imports, and with how few threads: a fork is without those of its parent.
_SERVER = {
    "PYTHONPATH": os.pathsep.join(map(str, (_HERE, _HERE.parent, _HERE.parents[1], os.environ.get("PYTHONPATH", "")))),
    "OPENBLAS_NUM_THREADS": "1",
}
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["daemon_imports"])


class Forked:
    """The part of `subprocess.Popen` that tests use."""

    def __init__(self, args: Sequence[str], log: Path, signals: Callable[[], None]) -> None:
        """Start `p2psync` with these arguments; its stderr is appended to `log`."""
        log.touch()
        network = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/ns/net")
        reading, writing = os.pipe()
        with Connection(writing, readable=False) as end:
            ignores = signals is ignore_interrupts
            self._process = _context.Process(
                target=_run, args=(list(args), end, log, dict(os.environ), ignores, network)
            )
            before = {name: os.environ.get(name) for name in _SERVER}
            os.environ.update(_SERVER)  # the first of a run starts the server
            try:
                self._process.start()
            finally:
                for name, value in before.items():
                    if value is None:
                        del os.environ[name]
                    else:
                        os.environ[name] = value
        self.stdout: IO[bytes] = os.fdopen(reading, "rb")
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Its exit code. Raises `subprocess.TimeoutExpired`."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("p2psync", timeout)
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Any signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(
    args: list[str], out: Connection, log: Path, environment: dict[str, str], ignores: bool, network: Path
) -> None:
    """Runs `python -m p2psync` in the fork, in the network of the thread that started it."""
    os.setsid()
    if network.readlink() != Path("/proc/self/ns/net").readlink():
        with network.open("rb") as entered:
            if _libc.setns(entered.fileno(), _CLONE_NEWNET):
                raise OSError("cannot enter the network of the test")
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignores else signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(out.fileno(), 1)
    out.close()
    with log.open("ab") as errors:
        os.dup2(errors.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["p2psync", *args]
    from p2psync.cli.main import main

    main()
