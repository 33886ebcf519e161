"""The demonstration's processes, as their parent sees them: starting, listening, killing, ending."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from p2psync.errors import P2PSyncError
from p2psync.observe.events import Committed
from p2psync.rldemo.lines import Final, Line, read

#: One thread per process: the point is many processes on few cores.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@dataclass(slots=True)
class DemoProcess:
    """One process. state: for people. commits: by version. ended: its exit was asked for."""

    name: str
    region: str
    process: subprocess.Popen[str]
    log: Path
    state: str = "starting"
    answered: int = 0
    tokens: int = 0
    busy_seconds: float = 0.0
    holds_work: bool = False
    commits: dict[int, Committed] = field(default_factory=dict)
    final: Final | None = None
    ended: bool = False

    @property
    def version(self) -> int | None:
        """The version that it runs."""
        return max(self.commits, default=None)


class Cast:
    """All processes, and one queue of their lines."""

    def __init__(self, root: Path) -> None:
        """`root`: where logs and stores go."""
        self.root = root
        self.members: dict[str, DemoProcess] = {}
        self._told: queue.Queue[tuple[str, Line | None]] = queue.Queue()

    def start(self, name: str, region: str, module: str, *arguments: str) -> DemoProcess:
        """Start a process of this package."""
        log = self.root / f"{name}.log"
        command = [sys.executable, "-m", module, *arguments]
        with log.open("w") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | _ENVIRONMENT,
            )
        member = self.members[name] = DemoProcess(name, region, process, log)
        threading.Thread(target=self._listen, args=(member,), daemon=True).start()
        return member

    def hear(self, timeout: float) -> tuple[DemoProcess, Line] | None:
        """The next line that anyone told; None if nobody said anything for `timeout` seconds.

        Raises `P2PSyncError` if a process ended that should not have.
        """
        end = time.monotonic() + timeout
        while True:
            try:
                name, line = self._told.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return None
            member = self.members[name]
            if line is not None:
                return member, line
            if not member.ended:
                raise P2PSyncError(f"{name} ended by itself (exit {member.process.wait()}): {_tail(member.log)}")

    def kill(self, member: DemoProcess) -> None:
        """SIGKILL, as a machine that vanishes."""
        member.ended = True
        member.process.send_signal(signal.SIGKILL)
        member.process.wait()

    def ask(self, member: DemoProcess) -> None:
        """Give the process the line that it waits for."""
        assert member.process.stdin is not None
        member.process.stdin.write("\n")
        member.process.stdin.flush()

    def end(self, member: DemoProcess) -> None:
        """Asks the process to end by itself: closes its standard input."""
        member.ended = True
        if member.process.stdin is not None:
            member.process.stdin.close()

    def close(self) -> None:
        """Ends all processes that still run."""
        for member in self.members.values():
            member.ended = True
            if member.process.poll() is None:
                member.process.terminate()
        for member in self.members.values():
            try:
                member.process.wait(10)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()

    def _listen(self, member: DemoProcess) -> None:
        assert member.process.stdout is not None
        for text in member.process.stdout:
            try:
                self._told.put((member.name, read(text)))
            except msgspec.MsgspecError:
                with member.log.open("a") as log:
                    log.write(text)
        self._told.put((member.name, None))


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else 'it said nothing'} (all of it in {log})"
