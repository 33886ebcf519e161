"""The interface of a contender in a race, and the track that all of them run on."""

from __future__ import annotations

import hashlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from p2psync.bench.swarm.processes import Child, Children
from p2psync.topology.emulator import EmulatedNetwork
from p2psync.topology.model import Topology
from p2psync.topology.network import from_topology

#: Seconds from when a torrent's processes are up to the start.
SETTLE_SECONDS = 2.0
#: Seconds in which a torrent's processes may connect before a warm run, at least.
CONNECT = 15.0
#: Random bytes that are drawn at a time: 256 MiB are more than `random` can count.
_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Track:
    """The network and the payload of a race. file: the payload of contenders that carry files; digest: its sha256.

    base: for a delta, bytes of the weights that it changes; 0: the payload is a whole checkpoint. piece: bytes of the
    torrents' pieces. settle: seconds that p2psync may measure the network and plan, at most, and that torrent clients
    may connect; those then rest for `SETTLE_SECONDS`. congestion: TCP's, of all hosts. meeting: the host that all can
    reach, where those who keep the others together (a tracker, the way to the hub) are; "": the trainer.
    reports_chunks: p2psync's receivers report chunks as they come.
    """

    topology: Topology
    network: EmulatedNetwork
    file: Path
    digest: str
    payload_bytes: int
    base: int = 0
    piece: int = 64 << 10
    settle: float = 60.0
    congestion: str = "auto"
    meeting: str = ""
    reports_chunks: bool = False

    @property
    def met_at(self) -> str:
        """The host of the tracker or hub."""
        return self.meeting or self.trainer

    @property
    def trainer(self) -> str:
        """The host that has it."""
        return self.topology.trainer

    @property
    def receivers(self) -> list[str]:
        """All other hosts."""
        return [host for host in self.network.hosts if host != self.trainer]


class Trial(ABC):
    """One contender in one run: `start`, `ready` and `go`; then `finished` until all have."""

    def __init__(self, track: Track, children: Children, place: Path, number: int) -> None:
        """place: an empty directory of this run. number: of the run, the seed of its draws."""
        self.track = track
        self.children = children
        self.place = place
        self.number = number
        #: Bytes that were carried, once that is known.
        self.payload_bytes = track.payload_bytes
        #: Bytes that are verified and passed on at a time; p2psync: on average, once that is known.
        self.piece_bytes = track.piece
        #: Receivers that have everything, each with the moment.
        self.done: dict[str, float] = {}

    @abstractmethod
    def start(self, cold: bool) -> None:
        """Starts all processes. cold: none of them connects to another before `go`."""

    @abstractmethod
    def ready(self, deadline: float) -> None:
        """Waits until all processes run and, unless cold, are connected, as far as the contender can be before `go`.

        Raises `P2PSyncError`.
        """

    @abstractmethod
    def go(self, deadline: float) -> float:
        """Has the payload carried; returns the moment (time.monotonic) when that began. Raises `P2PSyncError`."""

    @abstractmethod
    def finished(self) -> dict[str, float]:
        """The receivers that have everything, each with the moment."""

    @abstractmethod
    def trouble(self) -> str:
        """Returns why this cannot come to an end any more, in one line; "" while it may."""

    def unsound(self, hosts: Sequence[str]) -> list[str]:
        """Returns the receivers whose bytes differ from the payload."""
        return [host for host in hosts if sha256(self.result(host)) != self.track.digest]

    @abstractmethod
    def node(self, host: str) -> Child:
        """The process that receives and sends at a host, once it is started."""

    @abstractmethod
    def result(self, host: str) -> Path:
        """The file that a receiver has got."""

    def chunk_progress(self) -> dict[str, list[tuple[float, float]]]:
        """Returns the shares of the payload that each receiver held, each with the moment; empty: that is not known."""
        return {}

    def planned(self) -> list[float]:
        """Returns the times at which the nodes began to use another plan."""
        return []

    def plan_rate(self, at: float) -> float | None:
        """Mbit/s of the plan that was followed at this moment; None: there was none."""
        return None

    def connectable(self) -> dict[str, int]:
        """Returns how many other hosts each host can be connected to."""
        network = from_topology(self.track.topology)
        return dict(zip(network.names, map(int, network.connections().sum(axis=0)), strict=True))

    def connect_until(self, deadline: float) -> float:
        """Returns the time until which the trial waits for connections between a torrent's processes."""
        return min(deadline, time.monotonic() + max(CONNECT, self.track.settle))

    def more(self, end: float) -> dict[str, float]:
        """Seconds until `end` from other moments that are worth telling."""
        return {}


def in_turn(names: Sequence[str], number: int) -> list[str]:
    """Returns the order of a round: each is first in its turn, since a machine may give less after some than others."""
    first = number % max(1, len(names))
    return [*names[first:], *names[:first]]


def write_random(path: Path, nbytes: int, seed: int) -> None:
    """Make a file of so many random bytes, for which the folder is made if need be."""
    path.parent.mkdir(exist_ok=True)
    drawn = random.Random(seed)
    with path.open("wb") as out:
        for at in range(0, nbytes, _AT_ONCE):
            out.write(drawn.randbytes(min(_AT_ONCE, nbytes - at)))


def sha256(path: Path) -> str:
    """Returns a file's hash in hex; "" if there is no file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return ""
