"""The messages to a router: its configuration, requests while it runs, and its counters."""

from __future__ import annotations

import msgspec

from p2psync.topology.emulator.layout import RouterLayout


class RouterConfig(msgspec.Struct, frozen=True):
    """The first line on a router's standard input.

    congestion: the hosts' TCP congestion control, or "" for the kernel's default. quantum_us: how long one super-packet
    may occupy the slowest stage of its path. tick_us: the router's least sleep, and so the error of a packet's time; a
    longer tick costs less CPU. detached: whether the router outlives its standard input.
    """

    layout: RouterLayout
    file: str = ""
    congestion: str = ""
    seed: int = 0
    quantum_us: int = 1000
    tick_us: int = 200
    detached: bool = False


class StageChange(msgspec.Struct, frozen=True, tag=True):
    """Changes one stage; None: unchanged. rate: Mbit/s."""

    stage: str
    rate: float | None = None
    delay_ms: float | None = None
    loss: float | None = None
    buffer_ms: float | None = None
    cut: bool | None = None


class StageChanges(msgspec.Struct, frozen=True, tag=True):
    """Changes several stages at the same time."""

    changes: list[StageChange]


class ReadCounters(msgspec.Struct, frozen=True, tag=True):
    """Requests the counters."""


class StopRouter(msgspec.Struct, frozen=True, tag=True):
    """Ends the network."""


RouterRequest = StageChanges | ReadCounters | StopRouter


class Counter(msgspec.Struct, frozen=True):
    """The counters of one direction of a link. bytes: of IP packets, headers included.

    packets, bytes: sent. lost: lost at random. overflowed: dropped by a full buffer. severed: dropped while the link
    was cut. queue_peak: the most bytes that were ever queued.
    """

    packets: int
    bytes: int
    lost: int
    overflowed: int
    severed: int
    queue_peak: int

    @property
    def offered(self) -> int:
        """Packets that arrived at the link."""
        return self.packets + self.lost + self.overflowed + self.severed


class Counters(msgspec.Struct, frozen=True):
    """All counters of a network since it came up.

    links: by name, `eu>us`, `eu-0 up`, `eu-0 down`. unroutable: packets to an unknown address, or to a region without a
    link. barred: connection attempts of a host that cannot dial the other. refused: packets that a host's kernel did
    not accept. no_memory: packets for which the router had no memory. delivered: super-packets. late_ms_p50,
    late_ms_p99, late_ms_max: delay of deliveries beyond the computed time, which grows on a loaded machine.
    cpu_seconds: of the router.
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
