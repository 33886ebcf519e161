"""A virtual network: hosts with limited links, and TCP-like connections over lossy paths.

A message queues at its sender's uplink, travels for the pair's delay, is delayed by retransmissions, and queues at its
receiver's downlink; messages of one connection stay in order. A partition holds messages back until it heals or the
connection times out. A connection that breaks loses its data in flight, and its two ends notice at different times.
Data is never altered: TCP does not alter it, so a peer that does is a liar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from p2psync.sim.clock import VirtualClock

#: Seconds after which a connection without progress times out, and a dial does.
CONNECTION_TIMEOUT_SECONDS = 12.0
DIAL_TIMEOUT_SECONDS = 3.0
_SEGMENT_BYTES = 1400


@dataclass(eq=False)
class SimHost:
    """A machine in the network. up, down: bytes a second. delay: its share of a one-way delay (seconds).

    shut: hosts that cannot dial this one (asymmetric reachability). alive: whether its process runs. slow: whether its
    link is currently slowed down.
    """

    name: str
    up: float
    down: float
    delay: float
    loss: float = 0.0
    alive: bool = True
    slow: bool = False
    shut: set[str] = field(default_factory=set)
    up_free: float = 0.0
    down_free: float = 0.0
    accept: Callable[[Endpoint], None] = lambda end: None


class Endpoint:
    """One side of a connection. The owner sets `on_data` and `on_close`; the latter is called once, unless the owner
    closes."""

    def __init__(self, network: SimNetwork, host: SimHost) -> None:
        self.host = host
        self.other: Endpoint = self
        self.open = True
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_close: Callable[[], None] = lambda: None
        self._network = network
        self._last = 0.0
        self._held_up: list[bytes] = []

    def send(self, data: bytes, left: Callable[[], None] | None = None) -> None:
        """Sends data; calls `left` when it has left this host's uplink, or was lost with the connection."""
        clock, host = self._network.clock, self.host
        host.up_free = max(clock.now, host.up_free) + len(data) / host.up
        if left is not None:
            clock.at(host.up_free, left)
        if self.open:
            delay = self._network.delay(self, len(data))
            self._last = max(self._last, host.up_free + delay)
            clock.at(self._last, self.arrive, data)

    def arrive(self, data: bytes) -> None:
        """Data of this end reaches the other host's downlink."""
        other, clock = self.other, self._network.clock
        if not other.open:
            return
        if self._network.partitioned(self.host, other.host) or self._held_up:
            self._held_up.append(data)
            return
        other.host.down_free = max(clock.now, other.host.down_free) + len(data) / other.host.down
        clock.at(other.host.down_free, other.deliver, data)

    def deliver(self, data: bytes) -> None:
        """Data has passed this host's downlink."""
        if self.open and self.host.alive:
            self.on_data(data)

    def resume(self) -> None:
        """The path works again: delivers the data held back, in order."""
        waiting, self._held_up = self._held_up, []
        for data in waiting:
            self.arrive(data)

    def close(self) -> None:
        """The owner closes; data sent before still arrives, then the other side is notified."""
        if self.open:
            self.open = False
            after = max(self._network.clock.now, self._last) + self._network.delay(self, 40) + 0.001
            self._network.clock.at(after, self.other.lose)

    def lose(self) -> None:
        """Notifies this side that the connection is gone."""
        if self.open:
            self.open = False
            if self.host.alive:
                self.on_close()


class SimNetwork:
    """All hosts and connections."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.hosts: dict[str, SimHost] = {}
        self._connections: list[tuple[Endpoint, Endpoint]] = []
        self._islands: dict[str, int] = {}
        self._partitions = 0

    def add(self, host: SimHost) -> SimHost:
        """Adds a host."""
        self.hosts[host.name] = host
        return host

    def delay(self, end: Endpoint, size: int) -> float:
        """Returns the one-way delay of a message (seconds), retransmissions included."""
        delay = end.host.delay + end.other.host.delay
        loss = end.host.loss + end.other.host.loss
        if loss and self.clock.rng.random() < 1 - (1 - loss) ** (1 + size // _SEGMENT_BYTES):
            # A lost segment costs a round trip, or a timeout if no later segment reveals the gap.
            delay += 2 * delay + (0.2 if self.clock.rng.random() < 0.3 else 0.0)
        return delay

    def partitioned(self, a: SimHost, b: SimHost) -> bool:
        """Returns whether a partition separates two hosts."""
        return self._islands.get(a.name, 0) != self._islands.get(b.name, 0)

    def dial(
        self, source: SimHost, target: str, opened: Callable[[Endpoint], None], failed: Callable[[], None]
    ) -> None:
        """Connects; calls `opened` or `failed` a round trip or the dial's limit later, if the source is still alive."""
        host = self.hosts.get(target)
        if host is None or source.name in host.shut or self.partitioned(source, host):
            self.clock.after(DIAL_TIMEOUT_SECONDS, failed)
            return
        self.clock.after(2 * (source.delay + host.delay), self._connect, source, host, opened, failed)

    def _connect(
        self, source: SimHost, host: SimHost, opened: Callable[[Endpoint], None], failed: Callable[[], None]
    ) -> None:
        if not source.alive:
            return
        if not host.alive or self.partitioned(source, host):
            failed()
            return
        near, far = Endpoint(self, source), Endpoint(self, host)
        near.other, far.other = far, near
        self._connections = [pair for pair in self._connections if pair[0].open or pair[1].open]
        self._connections.append((near, far))
        host.accept(far)
        opened(near)

    def partition(self, names: Iterable[str], seconds: float) -> None:
        """Partitions these hosts from all others for a while."""
        self._partitions += 1
        island = self._partitions
        for name in names:
            self._islands[name] = island
        for near, far in self._connections:
            if self.partitioned(near.host, far.host):
                self.clock.after(CONNECTION_TIMEOUT_SECONDS, self._give_up, near, far)
        self.clock.after(seconds, self._heal, island)

    def cut(self, a: str, b: str) -> None:
        """Breaks the connections of two hosts; each side notices after a while of its own."""
        for near, far in self._connections:
            if {near.host.name, far.host.name} == {a, b}:
                self._break(near, far)

    def crash(self, host: SimHost) -> None:
        """The host's process ends silently; its peers notice soon, or only by timeout."""
        host.alive = False
        soon = self.clock.rng.random() < 0.5
        for near, far in self._connections:
            for end in (near, far):
                if end.host is host:
                    end.open = False
                    self.clock.after(0.05 if soon else CONNECTION_TIMEOUT_SECONDS, end.other.lose)

    def _break(self, near: Endpoint, far: Endpoint) -> None:
        for end in (near, far):
            if end.open:
                self.clock.after(self.clock.rng.random() * 2, end.lose)
            # Data in flight is lost.
            end.on_data = lambda data: None

    def _give_up(self, near: Endpoint, far: Endpoint) -> None:
        if self.partitioned(near.host, far.host):
            self._break(near, far)

    def _heal(self, island: int) -> None:
        self._islands = {name: its for name, its in self._islands.items() if its != island}
        for pair in self._connections:
            for end in pair:
                if not self.partitioned(end.host, end.other.host):
                    self.clock.after(self.clock.rng.random(), end.resume)
