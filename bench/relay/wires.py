"""A seed, a relay and its leaves, each in a network namespace, joined by the kernel's own links (veth).

Seed and leaves have a link to the relay, and none to each other; the relay's kernel forwards nothing. So a leaf can
receive from the relay alone, whatever it is told of others. Unlike the emulator, nothing in user space carries
the packets: that would take more of the machine than the relay. Needs root.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from p2psync.errors import P2PSyncError
from p2psync.topology.emulator import EmulatedNetwork, namespaces, runs
from p2psync.topology.emulator.layout import make_layout
from p2psync.topology.model import MAX_RATE, Link, Region, Topology

SEED, RELAY = "seed-0", "relay-0"
#: Bytes that a limited link lets through at once: more than a super-packet, so that none must be cut up; and how long
#: what does not fit may wait.
_BURST, _LATENCY = 256 << 10, "50ms"


@dataclass(frozen=True)
class Traffic:
    """Bytes that went through a host's links: of packets, headers included."""

    received: int
    sent: int


def star(leaves: int) -> Topology:
    """A seed, a relay, and so many leaves behind the relay, each a region of its own."""
    names = ["seed", "relay", *(f"leaf{i}" for i in range(leaves))]
    regions = {name: Region(1, MAX_RATE) for name in names}
    return Topology(SEED, regions, [Link((name, "relay"), MAX_RATE) for name in names if name != "relay"])


class Wires(EmulatedNetwork):
    """The network of `star`, while a `with` lasts: its hosts, their addresses, commands in them. Its links cannot be
    changed. Raises `P2PSyncError` where there can be none."""

    def __init__(self, leaves: int, *, rate: float = 0.0, congestion: str = "") -> None:
        """rate: Mbit/s of each link and direction, 0: no limit. congestion: the hosts' TCP, "": the kernel's choice."""
        self._topology = star(leaves)
        self._rate, self._congestion = rate, congestion
        self._lock = -1

    def __enter__(self) -> Wires:
        # Networks of killed runs are removed first, as by the emulator, whose names are used here.
        reason = namespaces.missing()
        if reason is not None:
            raise P2PSyncError(reason)
        runs.sweep()
        run, self._lock = runs.claim()
        super().__init__(runs.EmulatedRun(run, "", os.getpid(), True, make_layout(self._topology)))
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def traffic(self, host: str) -> Traffic:
        """Bytes that went through a host's links since they came up."""
        with self.inside(host):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
        counts = [line.split() for line in lines if not line.strip().startswith("lo:")]
        return Traffic(sum(int(fields[1]) for fields in counts), sum(int(fields[9]) for fields in counts))

    def _make(self) -> None:
        names = [self.namespace(host) for host in self.hosts]
        namespaces.add(names)
        if self._congestion:
            namespaces.set_namespace_congestion(names, self._congestion)
        for host in self.hosts:
            self._ip(host, "link", "set", "lo", "up")
        for number, host in enumerate(host for host in self.hosts if host != RELAY):
            self._join(host, "relay", f"to{number}")

    def _join(self, host: str, device: str, back: str) -> None:
        """A link between a host and the relay, which know the way to each other over it, and no other."""
        ends = ("peer", "name", back, "netns", self.namespace(RELAY))
        _run("ip", "link", "add", device, "netns", self.namespace(host), "type", "veth", *ends)
        for one, its, other in ((host, device, RELAY), (RELAY, back, host)):
            self._ip(one, "addr", "add", f"{self.address(one)}/32", "dev", its)
            self._ip(one, "link", "set", its, "up")
            self._ip(one, "route", "add", self.address(other), "dev", its, "src", self.address(one))
            if self._rate:
                limit = ("rate", f"{self._rate:g}mbit", "burst", str(_BURST), "latency", _LATENCY)
                _run("tc", "-n", self.namespace(one), "qdisc", "add", "dev", its, "root", "tbf", *limit)

    def _ip(self, host: str, *arguments: str) -> None:
        _run("ip", "-n", self.namespace(host), *arguments)

    def _remove(self) -> None:
        if self._lock >= 0:
            runs.clear(self.state.run)
            os.close(self._lock)
            self._lock = -1


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise P2PSyncError(f"there is no {command[0]}: install iproute2") from None
    if done.returncode:
        why = done.stderr.strip().splitlines()[:1] or ["it failed"]
        raise P2PSyncError(f"{command[0]}: {why[0]}")
