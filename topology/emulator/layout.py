"""A topology as the router sees it: numbered hosts with addresses, and stages, each one direction of a link."""

from __future__ import annotations

import msgspec

from p2psync.errors import P2PSyncError
from p2psync.topology.model import MAX_RATE, Link, Topology

#: Bound on hosts; their addresses are 10.77.0.1 and up. Each host costs a namespace and a descriptor that every wake-up
#: polls.
MAX_HOSTS = 250
MASK = "255.255.0.0"
#: The queue of a host's own link, in milliseconds at its rate.
HOST_BUFFER_MS = 50.0
#: A link's default buffer is a round trip of it (bandwidth × delay), but at least this.
MIN_BUFFER_MS = 20.0
#: Least buffer in bytes, however slow a link is: eight full packets.
MIN_BUFFER_BYTES = 12_000


class LinkStage(msgspec.Struct, frozen=True):
    """One direction of a link. rate: Mbit/s. buffer_ms: its queue, in milliseconds at that rate."""

    name: str
    rate: float
    delay_ms: float = 0.0
    loss: float = 0.0
    buffer_ms: float = HOST_BUFFER_MS


class RouterLayout(msgspec.Struct, frozen=True):
    """hosts: (name, region). stages: H uplinks, H downlinks, then the links between regions, each way.

    link_of[a][b]: the stage from region a to region b, or -1; within a region there is one if it has a delay or loses
    packets. barred: pairs (i, j) where host i cannot open TCP connections to host j.
    """

    trainer: str
    hosts: list[tuple[str, str]]
    regions: list[str]
    stages: list[LinkStage]
    link_of: list[list[int]]
    barred: list[tuple[int, int]] = []

    def address(self, host: str) -> str:
        """Returns a host's IPv4 address. Raises `P2PSyncError` for an unknown host."""
        return host_address(self.number(host))

    def number(self, host: str) -> int:
        """Returns a host's number. Raises `P2PSyncError` for an unknown host."""
        for number, (name, _) in enumerate(self.hosts):
            if name == host:
                return number
        raise P2PSyncError(f"{host!r} is no host of this network; hosts are named like {self.hosts[0][0]}")

    def between(self, a: str, b: str, one_way: bool = False) -> list[LinkStage]:
        """Returns the stages of a link between two regions. Raises `P2PSyncError` without one."""
        if a not in self.regions or b not in self.regions:
            raise P2PSyncError(f"there is no link between {a} and {b}; regions are {', '.join(self.regions)}")
        i, j = self.regions.index(a), self.regions.index(b)
        if self.link_of[i][j] < 0:
            raise P2PSyncError(f"there is no link between {a} and {b} in the topology")
        ends = [(i, j)] if one_way or i == j else [(i, j), (j, i)]
        return [self.stages[self.link_of[x][y]] for x, y in ends]

    def of_host(self, host: str) -> tuple[LinkStage, LinkStage]:
        """Returns a host's uplink and downlink. Raises `P2PSyncError` for an unknown host."""
        number = self.number(host)
        return self.stages[number], self.stages[len(self.hosts) + number]

    def of_region(self, region: str, rest: set[str] | None = None) -> list[LinkStage]:
        """Returns the stages of all links between a region and those of `rest` (None: all). Raises `P2PSyncError` if it
        is unknown."""
        if region not in self.regions:
            raise P2PSyncError(f"{region!r} is no region of this network; regions are {', '.join(self.regions)}")
        i = self.regions.index(region)
        found = []
        for j, other in enumerate(self.regions):
            if i != j and self.link_of[i][j] >= 0 and (rest is None or other in rest):
                found += [self.stages[self.link_of[i][j]], self.stages[self.link_of[j][i]]]
        return found


def host_address(number: int) -> str:
    """Returns the address of the host with this number."""
    return f"10.77.{(number + 1) >> 8}.{(number + 1) & 255}"


def make_layout(topology: Topology) -> RouterLayout:
    """Numbers the hosts and links of a topology. Raises `P2PSyncError` for more hosts than one machine emulates."""
    hosts = topology.hosts
    if len(hosts) > MAX_HOSTS:
        raise P2PSyncError(f"{len(hosts)} hosts: the emulator takes up to {MAX_HOSTS}; `p2psync sim` takes more")
    regions = list(topology.region)
    ups = [LinkStage(f"{host} up", topology.up(host, region)) for host, region in hosts]
    downs = [LinkStage(f"{host} down", topology.down(host, region)) for host, region in hosts]
    stages = ups + downs
    link_of = [[-1] * len(regions) for _ in regions]
    for i, region in enumerate(topology.region.values()):
        if region.delay_ms or region.loss:
            link_of[i][i] = len(stages)
            stages.append(LinkStage(f"{regions[i]}>{regions[i]}", MAX_RATE, region.delay_ms, region.loss))
    for link in topology.link:
        for (a, b), rate in ((link.between, link.rate), (link.between[::-1], link.back)):
            link_of[regions.index(a)][regions.index(b)] = len(stages)
            stages.append(LinkStage(f"{a}>{b}", rate, link.delay_ms, link.loss, _buffer(link)))
    return RouterLayout(topology.trainer, hosts, regions, stages, link_of, _barred(topology))


def _barred(topology: Topology) -> list[tuple[int, int]]:
    """Returns the pairs of host numbers of which the first cannot dial the second."""
    names = [{host, region} for host, region in topology.hosts]
    closed = [not topology.dialable(host, region) for host, region in topology.hosts]
    return [
        (i, j)
        for i, one in enumerate(names)
        for j, other in enumerate(names)
        if i != j and (closed[j] or any(a in one and b in other for a, b in topology.blocked))
    ]


def _buffer(link: Link) -> float:
    return max(2 * link.delay_ms, MIN_BUFFER_MS) if link.buffer_ms is None else link.buffer_ms
