"""Runs commands in an emulated network's hosts, and the events of its topology file at their times."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from p2psync.errors import P2PSyncError
from p2psync.topology.emulator import runs
from p2psync.topology.emulator.network import EmulatedNetwork
from p2psync.topology.events import NetworkEvent

#: Seconds between checks for ended processes and due events: the accuracy of an event's time.
_POLL_SECONDS = 0.005

#: Starts a host's command.
StartCommand = Callable[[str], "subprocess.Popen[Any]"]


@dataclass
class CommandOutcome:
    """The outcome of a host's command. code: its exit status, negative for a signal. killed: by an event or at
    the end."""

    host: str
    code: int | None = None
    killed: bool = False


@dataclass
class Scenario:
    """Runs commands and events on a network: `Scenario(network, events, start).play()`.

    start(host) starts a host's command; hosts with a `join` event start at its time, others at once. hosts: if not
    empty, only these run commands. notice: called for every event as it happens, with its text and its time in seconds.
    """

    network: EmulatedNetwork
    events: Sequence[NetworkEvent]
    start: StartCommand
    hosts: Sequence[str] = ()
    notice: Callable[[str, float], None] = lambda text, at: None
    outcomes: list[CommandOutcome] = field(default_factory=list)

    def play(self, seconds: float | None = None) -> list[CommandOutcome]:
        """Runs until all commands have ended and all hosts have joined, or for `seconds`; then kills the rest. Returns
        all outcomes.

        Raises `P2PSyncError` as soon as the network is gone, because commands could wait for each other forever.
        """
        begin = time.monotonic()
        hosts = self.hosts or self.network.hosts
        happening = (event for event in self.events if event.kind != "join" or event.host in hosts)
        waiting = sorted(happening, key=lambda event: event.at)
        joining = {event.host for event in waiting if event.kind == "join"}
        self._running: dict[str, tuple[subprocess.Popen[Any], CommandOutcome]] = {}
        try:
            for host in hosts:
                if host not in joining:
                    self._join(host)
            while self._running or any(event.kind == "join" for event in waiting):
                now = time.monotonic() - begin
                while waiting and waiting[0].at <= now:
                    event = waiting.pop(0)
                    self.notice(describe(event), now)
                    self._happen(event)
                if seconds is not None and now >= seconds:
                    break
                self._collect()
                if self._running and not runs.is_alive(self.network.state.run):
                    raise runs.network_gone()
                time.sleep(_POLL_SECONDS)
        finally:
            # An interrupt may arrive just after a host's process was started.
            for outcome in self.outcomes:
                if outcome.code is None:
                    self._kill(outcome.host)
        return self.outcomes

    def _join(self, host: str) -> None:
        if host in self._running:
            return
        outcome = CommandOutcome(host)
        self.outcomes.append(outcome)
        try:
            self._running[host] = (self.start(host), outcome)
        except Exception:
            self.outcomes.remove(outcome)  # no process was started, so none must be killed
            raise

    def _kill(self, host: str) -> None:
        self.network.kill(host)
        if host in self._running:
            process, outcome = self._running.pop(host)
            outcome.code, outcome.killed = process.wait(), True

    def _collect(self) -> None:
        for host, (process, outcome) in list(self._running.items()):
            if process.poll() is not None:
                outcome.code = process.returncode
                del self._running[host]

    def _happen(self, event: NetworkEvent) -> None:
        if event.kind == "join" and event.host is not None:
            self._join(event.host)
        elif event.kind == "kill" and event.host is not None:
            self._kill(event.host)
        else:
            change_network(self.network, event)


def change_network(network: EmulatedNetwork, event: NetworkEvent) -> None:
    """Applies an event to a network's links. Raises `P2PSyncError`."""
    if event.kind == "degrade" and event.link is not None:
        network.set_link(*event.link, rate=event.rate, delay_ms=event.delay_ms, loss=event.loss)
    elif event.kind == "degrade" and event.host is not None:
        network.set_host(event.host, up=event.rate, down=event.rate, delay_ms=event.delay_ms, loss=event.loss)
    elif event.kind == "partition":
        network.partition(event.regions)
    elif event.kind in ("cut", "restore"):
        act = network.cut if event.kind == "cut" else network.restore
        for ends in _targets(event):
            act(*ends)
        if event.kind == "restore" and not _targets(event):
            network.restore()
    else:
        raise P2PSyncError(f"{describe(event)}: this event concerns processes, not links")


def _targets(event: NetworkEvent) -> list[tuple[str, ...]]:
    if event.link is not None:
        return [event.link]
    return [(name,) for name in ((event.host,) if event.host is not None else event.regions)]


def describe(event: NetworkEvent) -> str:
    """Returns an event for people: `degrade eu–us to 10 Mbit/s`."""
    what = " ".join("–".join(ends) for ends in _targets(event))
    values: Iterable[str] = (
        f"{value:g} {unit}".strip()
        for value, unit in ((event.rate, "Mbit/s"), (event.delay_ms, "ms"), (event.loss, "lost"))
        if value is not None
    )
    to = ", ".join(values)
    return " ".join(part for part in (event.kind, what, f"to {to}" if to else "") if part)
