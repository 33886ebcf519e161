"""Processes in the hosts of an emulated network: their output, their processor time, and their end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p2psync.errors import P2PSyncError
from p2psync.topology.emulator import EmulatedNetwork

_TICKS = os.sysconf("SC_CLK_TCK")
#: Every process of a race is this repository's Python.
PYTHON = (sys.executable, "-u")


class Child:
    """One process in a host. With `talks`, it writes a JSON object a line on stdout, and reads lines on stdin."""

    def __init__(
        self, network: EmulatedNetwork, host: str, argv: Sequence[str], log: Path, *, talks: bool = False
    ) -> None:
        """log: takes its stderr, and its stdout unless that carries lines of JSON."""
        self.host = host
        self._log = log
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._spent = 0.0
        pipe = subprocess.PIPE if talks else subprocess.DEVNULL
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with log.open("ab") as out:
            self.process = network.run(
                host,
                argv,
                env=environment,
                stdin=pipe,
                stdout=pipe if talks else out,
                stderr=out,
                # Ctrl-C is for the race, which ends them.
                start_new_session=True,
            )
        if talks:
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()

    def tell(self, line: str) -> None:
        """Write a line to it. One that has ended hears nothing."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def wait_for(self, key: str, deadline: float) -> dict[str, Any]:
        """Returns the next message with this key and drops those before it. Raises `P2PSyncError`."""
        while True:
            said = self.next(deadline)
            if said is None:
                raise P2PSyncError(f"{self.host}: {self.last_words()}")
            if key in said:
                return said

    def next(self, deadline: float) -> dict[str, Any] | None:
        """The next thing said; None once it has ended or the deadline (of time.monotonic) has passed."""
        try:
            return self._said.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None

    def ended(self) -> int | None:
        """Returns its exit status, None while it runs; keeps its processor time."""
        if self.process.returncode is not None:
            return int(self.process.returncode)
        found = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if found is None else int(found.si_status)

    def cpu_seconds(self) -> float:
        """CPU seconds of the process and of its ended children so far."""
        with contextlib.suppress(OSError):
            self._spent = sum(self._ticks()) / _TICKS
        return self._spent

    def ended_children_seconds(self) -> float:
        """CPU seconds of its ended children so far; 0 once it has ended itself."""
        try:
            return sum(self._ticks()[2:]) / _TICKS
        except OSError:
            return 0.0

    def _ticks(self) -> list[int]:
        """Returns its own time in user and kernel mode, and that of its ended children."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return [int(field) for field in fields[11:15]]

    def last_words(self) -> str:
        """The last line of its log, for people."""
        text = self._log.read_text(errors="replace").strip() if self._log.exists() else ""
        return text.splitlines()[-1] if text else "it said nothing in time"

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.cpu_seconds()
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()

    def _read(self) -> None:
        assert self.process.stdout
        with contextlib.suppress(ValueError, OSError):
            for line in self.process.stdout:
                if line.startswith(b"{"):
                    self._said.put(json.loads(line))
        self._said.put(None)


class Children:
    """The processes of one run. All of them are killed at the end, and whatever else runs in the network's hosts."""

    def __init__(self, network: EmulatedNetwork, place: Path) -> None:
        """place: a directory for logs."""
        self.network = network
        self.place = place
        self.all: list[Child] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self.all:
            child.kill()
        for host in self.network.hosts:
            self.network.kill(host)

    def start(self, host: str, *argv: object, talks: bool = False) -> Child:
        """Start a process."""
        log = self.place / f"{len(self.all)}-{host}.log"
        child = Child(self.network, host, [str(arg) for arg in argv], log, talks=talks)
        self.all.append(child)
        return child

    def forget(self, child: Child) -> None:
        """Forget a process that has ended and whose cost is not the run's."""
        child.kill()
        self.all.remove(child)

    def of(self, host: str) -> list[Child]:
        """The processes of a host."""
        return [child for child in self.all if child.host == host]

    def cpu_seconds(self) -> float:
        """CPU seconds of all processes so far."""
        return sum(child.cpu_seconds() for child in self.all)
