"""What is said to a router: its configuration, requests while it runs, and its counters."""

from __future__ import annotations

import msgspec

from p2psync.topology.emulator.layout import RouterLayout


class RouterConfig(msgspec.Struct, frozen=True):
    """The first line on a router's standard input.

    congestion: the hosts' TCP congestion control, or "" for the kernel's choice. quantum_us: how long one super-packet
    may hold the slowest stage of its way. tick_us: how long the router sleeps at least, and so the error of a packet's
    time; longer costs less CPU. detached: live on when standard input ends.
    """

    layout: RouterLayout
    file: str = ""
    congestion: str = ""
    seed: int = 0
    quantum_us: int = 1000
    tick_us: int = 200
    detached: bool = False


class StageChange(msgspec.Struct, frozen=True, tag=True):
    """Change one stage; None: as it is. rate: Mbit/s."""

    stage: str
    rate: float | None = None
    delay_ms: float | None = None
    loss: float | None = None
    buffer_ms: float | None = None
    cut: bool | None = None


class StageChanges(msgspec.Struct, frozen=True, tag=True):
    """Change several stages at one moment."""

    changes: list[StageChange]


class ReadCounters(msgspec.Struct, frozen=True, tag=True):
    """Ask for the counters."""


class StopRouter(msgspec.Struct, frozen=True, tag=True):
    """End the network."""


RouterRequest = StageChanges | ReadCounters | StopRouter


class Counter(msgspec.Struct, frozen=True):
    """What went through one direction of a link, and what did not. bytes: of IP packets, headers included.

    packets, bytes: sent. lost: packets lost at random. overflowed: packets that found the buffer full. severed: packets
    that came while the link was cut. queue_peak: the most bytes that ever waited.
    """

    packets: int
    bytes: int
    lost: int
    overflowed: int
    severed: int
    queue_peak: int

    @property
    def offered(self) -> int:
        """Packets that came to the link."""
        return self.packets + self.lost + self.overflowed + self.severed


class Counters(msgspec.Struct, frozen=True):
    """All counters of a network since it came up.

    links: by name, `eu>us`, `eu-0 up`, `eu-0 down`. unroutable: packets for nobody, or for a region without a link.
    barred: connections asked for by a host that cannot dial the other.
    refused: packets that a host's kernel did not take. no_memory: packets that the router had no memory for. delivered:
    super-packets. late_ms_p50, late_ms_p99, late_ms_max: how much later than computed they were delivered, on which a
    loaded machine shows. cpu_seconds: what the router has used.
    """

    links: dict[str, Counter]
    unroutable: int
    barred: int
    refused: int
    no_memory: int
    delivered: int
    wakeups: int
    late_ms_p50: float
    late_ms_p99: float
    late_ms_max: float
    cpu_seconds: float
