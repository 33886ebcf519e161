"""The main job on one machine: a trainer doing GRPO, actors in two regions that generate its rollouts, one of them
killed at work, one joining late; and the proof at the end that every one of them holds the same bits.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Self

from rich.console import Console

from p2psync.cli.keys import make_key
from p2psync.errors import P2PSyncError
from p2psync.observe.events import Committed, Published
from p2psync.protocol.keys import public_text
from p2psync.rldemo.cast import Cast, DemoProcess
from p2psync.rldemo.lines import Answered, Final, Learned, Leased, Line, Ready
from p2psync.rldemo.result import Result, conclude
from p2psync.rldemo.show import Screen, show_result
from p2psync.warmup import Warmup, compiled

REGIONS = ("eu", "us")
ACTORS = 4
#: Of the units of the demonstration's versions (bytes): its policy is bf16, and a version's header is bytes.
WIDTHS = (1, 2)
#: Once the codec is compiled, processes say nothing for so long only if something hangs (seconds).
SILENCE = 300.0


class Demo:
    """One run."""

    def __init__(self, root: Path, console: Console, *, versions: int, seed: int) -> None:
        """`root`: an empty directory for keys, stores and logs."""
        self.root = root
        self.versions = versions
        self.seed = seed
        self.console = console
        self.cast = Cast(root)
        self.screen = Screen(console, self.cast, versions, self._awaited)
        self._warmup = Warmup(WIDTHS)
        self.learned: list[Learned] = []
        self.published: list[Published] = []
        self.kill_at = max(1, versions // 4)
        self.join_at = max(2, versions // 2)
        self.victim: DemoProcess | None = None
        self.killed = False
        self.hub_url = ""
        self.trust = ""

    def run(self) -> Result:
        """All of it. Raises `P2PSyncError` if a process fails or nothing happens for too long."""
        began = time.monotonic()
        with self.screen:
            self._begin()
            while len(self.learned) < self.versions:
                self._hear()
            self._settle()
        members = list(self.cast.members.values())
        return conclude(self.learned, self.published, members, time.monotonic() - began)

    def close(self) -> None:
        """End every process that still runs."""
        self._warmup.stop()
        self.cast.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show(self, result: Result) -> None:
        """The table."""
        show_result(self.console, result, list(self.cast.members.values()))

    def _awaited(self) -> str:
        """Returns the next event, for people who wait for it."""
        version = len(self.learned) + 1
        compiling = "" if compiled(WIDTHS) else "; the codec is compiled, once for this machine"
        if not self.hub_url:
            return f"the trainer loads torch and its model{compiling}"
        actors = [member for member in self.cast.members.values() if member is not self.trainer and not member.ended]
        if not any(member.commits for member in actors):
            return f"the actors load torch and fetch the first version{compiling}"
        if version > self.versions:
            return "every process hashes the weights that it holds"
        done = sum(member.answered for member in self.cast.members.values())
        return f"version {version}: actors have answered {done} items of rollout work; the trainer learns from them"

    def _begin(self) -> None:
        key_file = self.root / "trainer.key"
        self.trust = public_text(make_key(key_file).public_key().public_bytes_raw())
        arguments = ["--store", str(self.root / "trainer"), "--key", str(key_file), "--region", REGIONS[0]]
        numbers = ["--versions", str(self.versions), "--seed", str(self.seed)]
        threading.Thread(target=self._warmup.compile, daemon=True).start()
        self.trainer = self.cast.start("trainer", REGIONS[0], "p2psync.rldemo.trainer_process", *arguments, *numbers)
        self.screen.note("the trainer starts: GRPO on a warm-started transformer")
        if not compiled(WIDTHS):
            self.screen.note("meanwhile the codec is compiled, once for this machine")
        while not self.hub_url:
            self._hear()
        for number in range(ACTORS):
            self._start_actor(number)
        self.screen.note(f"{ACTORS} actors start in regions {' and '.join(REGIONS)}, each a process of its own")

    def _start_actor(self, number: int) -> DemoProcess:
        name, region = f"actor-{number}", REGIONS[number % len(REGIONS)]
        arguments = ["--join", self.hub_url, "--trust", self.trust, "--region", region]
        return self.cast.start(
            name, region, "p2psync.rldemo.actor_process", *arguments, "--store", str(self.root / name)
        )

    def _hear(self) -> None:
        deadline = time.monotonic() + SILENCE
        heard = None
        while heard is None:
            heard = self.cast.hear(0.25)
            self.screen.refresh()
            if not compiled(WIDTHS):
                deadline = time.monotonic() + SILENCE
            if heard is None and time.monotonic() > deadline:
                raise P2PSyncError(f"nothing happened for {SILENCE:.0f} s; the logs are in {self.root}")
        self._take(*heard)

    def _take(self, member: DemoProcess, line: Line) -> None:
        match line:
            case Ready():
                self.hub_url = line.hub_url
                member.state = "training"
            case Published():
                self.published.append(line)
                self.screen.published(line)
            case Learned():
                self.learned.append(line)
                self.screen.learned(line)
                self._intervene(line.version)
            case Committed():
                member.commits[line.version] = line
                if member.state == "starting":
                    member.state = "generating"
                    self.screen.note(f"{member.name} ({member.region}) runs version {line.version}")
            case Leased():
                member.holds_work = True
                self._maybe_kill(member)
            case Answered():
                member.holds_work = False
                member.answered += line.verdict == "accepted"
                member.tokens += line.tokens
                member.busy_seconds += line.seconds
            case Final():
                member.final = line

    def _intervene(self, version: int) -> None:
        if version == self.kill_at:
            self.victim = self.cast.members["actor-1"]
        if version == self.join_at:
            self._start_actor(ACTORS)
            self.screen.note(f"actor-{ACTORS} starts late, from nothing")

    def _maybe_kill(self, member: DemoProcess) -> None:
        """The victim dies while it holds work, so that there is something to lease again."""
        if member is not self.victim or self.killed:
            return
        self.killed = True
        self.cast.kill(member)
        member.state = f"killed at version {member.version}"
        self.screen.note(f"{member.name} ({member.region}) is killed with SIGKILL while it holds rollout work")

    def _settle(self) -> None:
        """Wait until everyone runs the last version, and ask each for the hash of its weights."""
        live = [m for m in self.cast.members.values() if not m.ended and m is not self.trainer]
        last = self.versions
        while any((member.version or 0) < last for member in live):
            self._hear()
        for member in live:
            self.cast.end(member)
        self.cast.ask(self.trainer)
        while any(member.final is None for member in [*live, self.trainer]):
            self._hear()
        self.trainer.ended = True
        self.cast.ask(self.trainer)
