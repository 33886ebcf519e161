"""Daemons as real processes, heard by the events that they write. Nothing here sleeps: it waits for an event."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoint_parts import Model, sums
from child_signals import heed_interrupts
from forked_daemons import Forked

from p2psync.protocol.keys import private_text, public_text

Event = dict[str, Any]
#: Maximum seconds of any wait; a longer one fails the test.
LIMIT = 40.0
ROOT = Path(__file__).resolve().parents[2]
_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class Process:
    """One `p2psync …`: its events, its exit code, its stderr."""

    def __init__(
        self, *args: object, log: Path, signals: Callable[[], None] = heed_interrupts, fresh: bool = False
    ) -> None:
        """signals: sets the process' signal handling, one of `child_signals`. fresh: a new interpreter, not a fork."""
        self.args = [str(arg) for arg in args]
        self.events: list[Event] = []
        self.output = ""
        self._log = log
        self._changed = threading.Condition()
        self._over = False
        self.process: Forked | subprocess.Popen[bytes]
        self.process = self._started(log, signals) if fresh else Forked(self.args, log, signals)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _started(self, log: Path, signals: Callable[[], None]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        with log.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "p2psync", *self.args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=out,
                env=environment,
                start_new_session=True,
                preexec_fn=lambda: (signals(), _die_with_parent()),
            )

    @property
    def stderr(self) -> str:
        """The text that it wrote to stderr so far."""
        return self._log.read_text(errors="replace")

    def wait_for(self, kind: str, seen: int = 0, limit: float = LIMIT, **fields: object) -> Event:
        """The first event of this type, after the first `seen` events, with these fields (a function: that holds)."""
        found = self.wait_until(
            lambda events: next((e for e in events[seen:] if _matches(e, kind, fields)), None), limit
        )
        assert isinstance(found, dict), f"no {kind} with {fields}: {self.args[0]} wrote\n{self.stderr[-3000:]}"
        return found

    def published(self, seen: int = 0) -> Event:
        """The next version published, after the first `seen` events; not an anchor made later of one that is known."""
        found = self.wait_until(
            lambda events: next(
                (e for e in events[seen:] if e["type"] == "Published" and (not e["anchor"] or e["version"] == 0)), None
            )
        )
        assert isinstance(found, dict), f"nothing was published:\n{self.stderr[-3000:]}"
        return found

    def wait_until(self, look: Callable[[list[Event]], object], limit: float = LIMIT) -> object:
        """Wait until `look` gives something for the events so far; returns that, or None when the process is over."""
        deadline = time.monotonic() + limit
        with self._changed:
            while not (found := look(self.events)):
                if self._over or not self._changed.wait(deadline - time.monotonic()):
                    return None
            return found

    def find(self, kind: str, **fields: object) -> list[Event]:
        """Events of this type so far."""
        return [event for event in list(self.events) if _matches(event, kind, fields)]

    def exit_code(self, limit: float = LIMIT) -> int:
        """Wait for its end."""
        code = self.process.wait(limit)
        self._reader.join(limit)
        return code

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.exit_code()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Asks it to stop, and waits for its end."""
        self.process.send_signal(number)
        return self.exit_code()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.output += line.decode()
                if line.startswith(b'{"type"'):
                    self.events.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()


def _die_with_parent() -> None:
    """Makes the child die with the tests, however they end."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _matches(event: Event, kind: str, fields: dict[str, object]) -> bool:
    if event["type"] != kind:
        return False
    return all(value(event[key]) if callable(value) else event[key] == value for key, value in fields.items())


class Swarm:
    """A directory of daemons. Those still running are killed at the end."""

    def __init__(self, place: Path, key: Any) -> None:
        self.place = place
        self.watch = place / "checkpoints"
        self.watch.mkdir()
        self.key_file = place / "key"
        self.key_file.write_text(private_text(key))
        self.public = public_text(key.public_key().public_bytes_raw())
        self.url = ""
        #: Whether every command gets an interpreter of its own (see `Process`).
        self.fresh = False
        #: Whether hubs plan, which takes each of them a process more: with so few nodes a plan changes no outcome.
        self.plans = False
        self.processes: list[Process] = []
        self.sums: dict[int, dict[str, str]] = {}
        self._logs = itertools.count()
        self._names = itertools.count()

    def run(self, *args: object, signals: Callable[[], None] = heed_interrupts) -> Process:
        """Start a command. signals: see `Process`."""
        log = self.place / f"log-{next(self._logs)}-{args[0]}"
        process = Process(*args, log=log, signals=signals, fresh=self.fresh)
        self.processes.append(process)
        return process

    def hub(self, port: int = 0, **options: object) -> Process:
        """Start a hub alone; `url` is its address."""
        process = self.run("hub", "--trust", self.public, "--port", port, *LOCAL, *self._planning, *_flags(options))
        return self.found(process)

    def trainer(self, *more: object, hub: bool = True, **options: object) -> Process:
        """Start the trainer; with `hub`, it embeds one, at the port of the last one."""
        flags = {"watch": self.watch, "store": self.place / "store", "key": self.key_file, "port": 0, "settle": 0}
        flags |= {"hub_port": self.port} if hub else {"hub": self.url}
        process = self.run("trainer", *LOCAL, *self._planning, *_flags(flags | options), *more)
        return self.found(process) if hub else process

    def actor(self, name: str, *more: object, **options: object) -> Process:
        """Start an actor that keeps `place/name`."""
        flags = {"join": self.url, "trust": self.public, "into": self.place / name} | options
        return self.run("actor", *LOCAL, *_flags(flags), *more)

    def publish(self, model: Model, trainer: Process | None = None) -> int:
        """Write a checkpoint for the trainer; returns the version that it becomes, if a trainer is named."""
        name = f"step-{next(self._names)}"
        seen = len(trainer.events) if trainer else 0
        files = model.write(self.watch / name)
        if trainer is None:
            return -1
        version = int(trainer.published(seen)["version"])
        self.sums[version] = files
        return version

    def current(self, name: str) -> dict[str, str]:
        """The files of an actor."""
        return sums(self.place / name / "current")

    def converged(self, actor: Process, name: str, version: int, seen: int = 0) -> Event:
        """Wait until an actor runs `version`, and check every bit."""
        event = actor.wait_for("Committed", seen, version=version)
        assert self.current(name) == self.sums[version]
        return event

    @property
    def port(self) -> int:
        """The hub's port; 0 before the first."""
        return int(self.url.rsplit(":", 1)[1]) if self.url else 0

    @property
    def _planning(self) -> tuple[str, ...]:
        return () if self.plans else ("--no-plan",)

    def close(self) -> None:
        """Kills the processes that still run."""
        for process in self.processes:
            if process.process.poll() is None:
                process.process.kill()
        for process in self.processes:
            process.exit_code()

    def found(self, process: Process) -> Process:
        """Wait for the address of the hub that a process serves."""
        message = process.wait_for("Note", message=lambda m: m.startswith("hub at "))["message"]
        found = re.search(r"http://(\[[^]]+\]|[^:]+):[0-9]+", message)
        assert found is not None
        self.url = found.group()
        return process


#: How every daemon of the tests is started.
LOCAL = ("--host", "127.0.0.1", "--json", "-")


def _flags(options: dict[str, Any]) -> list[object]:
    return [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
