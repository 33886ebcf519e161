"""The network model: regions of hosts behind their own up- and downlinks, joined by shared links between regions.

A topology file (TOML):

    trainer = "eu-0"                    # a host: <region>-<number>

    [region.eu]
    hosts = 3
    up = 100                            # Mbit/s of each host; `down` is the same unless given
    down = 200

    [region.us]
    hosts = 3
    up = 100

    [[link]]
    between = ["eu", "us"]              # both directions, each with this rate
    rate = 50                           # Mbit/s, shared by all hosts of the two regions
    delay_ms = 35                       # one way
    loss = 0.001                        # probability that a packet is lost
    buffer_ms = 70                      # what may wait for it in the emulator, in time [a round trip, or 20]

Within a region only the hosts' own links bind. Regions without a link cannot talk to each other directly. What happens
to the network while it is emulated stands in the same file: see `events`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from p2psync.errors import FormatError
from topology.events import Event

#: Hosts in all: more than any plan is made for, and few enough that no file can exhaust memory.
MAX_HOSTS = 100_000


class Region(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hosts that reach each other cheaply. up, down: Mbit/s of each host's own link; down None: as up."""

    hosts: int
    up: float
    down: float | None = None

    @property
    def downlink(self) -> float:
        """Mbit/s into each host."""
        return self.up if self.down is None else self.down


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A path between two regions, shared by all their hosts; the same each way. rate: Mbit/s. loss: 0..1."""

    between: tuple[str, str]
    rate: float
    delay_ms: float = 0.0
    loss: float = 0.0
    buffer_ms: float | None = None


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole network."""

    trainer: str
    region: dict[str, Region]
    link: list[Link] = []
    event: list[Event] = []

    @property
    def hosts(self) -> list[tuple[str, str]]:
        """(host, its region), in the order of the file."""
        return [(f"{name}-{i}", name) for name, region in self.region.items() for i in range(region.hosts)]

    def check(self) -> None:
        """Raise `FormatError` for anything that is no network."""
        if sum(region.hosts for region in self.region.values()) > MAX_HOSTS:
            raise FormatError(f"more than {MAX_HOSTS} hosts")
        for name, region in self.region.items():
            if region.hosts < 1 or region.up <= 0 or region.downlink <= 0:
                raise FormatError(f"region {name}: it needs a host, and rates above 0")
        for link in self.link:
            self._check_link(link)
        pairs = [frozenset(link.between) for link in self.link]
        if len(set(pairs)) < len(pairs):
            raise FormatError("two links between the same regions: give their sum as one")
        names = {host for host, _ in self.hosts}
        for event in self.event:
            event.check(names, self.region, pairs)
        if self.trainer not in {host for host, _ in self.hosts}:
            raise FormatError(f"the trainer {self.trainer!r} is no host; hosts are named like {self.hosts[0][0]}")

    def _check_link(self, link: Link) -> None:
        for name in link.between:
            if name not in self.region:
                raise FormatError(f"a link names the region {name!r}, which is not in the file")
        if link.between[0] == link.between[1]:
            raise FormatError(f"a link from {link.between[0]} to itself; hosts of a region need none")
        if link.rate <= 0 or link.delay_ms < 0 or not 0 <= link.loss < 1:
            raise FormatError(f"the link {'–'.join(link.between)}: rate above 0, delay from 0, loss from 0 to below 1")
        if link.buffer_ms is not None and link.buffer_ms <= 0:
            raise FormatError(f"the link {'–'.join(link.between)}: a buffer above 0")


def load(path: Path) -> Topology:
    """Read a topology file. Raises `FormatError`, naming the file."""
    try:
        topology = msgspec.toml.decode(path.read_bytes(), type=Topology)
        topology.check()
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}") from None
    except (msgspec.MsgspecError, FormatError) as error:
        raise FormatError(f"{path}: {error}") from None
    return topology
