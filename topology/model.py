"""A network as a file gives it: regions of hosts behind their own up- and downlinks, joined by shared links.

A topology file (TOML):

    trainer = "eu-0"                    # a host: <region>-<number>
    blocked = [["us-1", "eu-2"]]        # us-1 cannot dial eu-2 (the other way round it may go); hosts or regions

    [region.eu]
    hosts = 3
    up = 100                            # Mbit/s of each host; `down` is the same unless given
    down = 200
    delay_ms = 0.2                      # one way, between hosts of the region
    loss = 0.0001                       # probability that a packet between them is lost

    [region.us]
    hosts = 3
    up = 100
    dialable = false                    # behind NAT: these hosts can only dial out

    [host.eu-1]                         # what is different about one host: up, down, dialable
    up = 25

    [[link]]
    between = ["eu", "us"]              # both directions, each with this rate
    rate = 50                           # Mbit/s, shared by all hosts of the two regions
    rate_back = 20                      # of the direction from the second to the first, where it is another
    delay_ms = 35                       # one way
    loss = 0.001                        # probability that a packet is lost
    buffer_ms = 70                      # what may wait for it in the emulator, in time [a round trip, or 20]

Within a region only the hosts' own links bind. Regions without a link cannot talk to each other directly. Two hosts
exchange data, in both directions, if either can dial the other. What happens to the network while it is emulated stands
in the same file: see `events`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from p2psync.errors import FormatError
from p2psync.protocol.wire import check_finite
from p2psync.topology.events import NetworkEvent
from p2psync.topology.file_errors import explain

#: Bound on hosts: more than any plan is made for, and few enough that no file exhausts memory.
MAX_HOSTS = 100_000
#: The highest rate in Mbit/s; a higher one never binds.
MAX_RATE = 1e6


class Region(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hosts that reach each other cheaply. up, down: Mbit/s of each host's own link; down None: as up."""

    hosts: int
    up: float
    down: float | None = None
    delay_ms: float = 0.0
    dialable: bool = True
    loss: float = 0.0

    @property
    def downlink(self) -> float:
        """Mbit/s into each host."""
        return self.up if self.down is None else self.down


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one host that differ from its region's; None: as its region."""

    up: float | None = None
    down: float | None = None
    dialable: bool | None = None


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A path between two regions, shared by all their hosts. rate: Mbit/s each way. loss: probability, 0 to 1.

    rate_back: Mbit/s from the second region to the first if it differs. buffer_ms: the queue in the emulator, in
    milliseconds at `rate`.
    """

    between: tuple[str, str]
    rate: float
    delay_ms: float = 0.0
    loss: float = 0.0
    rate_back: float | None = None
    buffer_ms: float | None = None

    @property
    def back(self) -> float:
        """Mbit/s from the second region to the first."""
        return self.rate if self.rate_back is None else self.rate_back


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network as a topology file describes it."""

    trainer: str
    region: dict[str, Region]
    link: list[Link] = []
    host: dict[str, Host] = {}
    blocked: list[tuple[str, str]] = []
    event: list[NetworkEvent] = []

    @property
    def hosts(self) -> list[tuple[str, str]]:
        """(host, its region) of all hosts, in the order of the file."""
        return [(f"{name}-{i}", name) for name, region in self.region.items() for i in range(region.hosts)]

    def up(self, host: str, region: str) -> float:
        """Mbit/s that a host can send."""
        own = self.host.get(host)
        return own.up if own is not None and own.up is not None else self.region[region].up

    def down(self, host: str, region: str) -> float:
        """Mbit/s that a host can receive; a host that sets only `up` keeps its region's `down`."""
        own = self.host.get(host)
        return own.down if own is not None and own.down is not None else self.region[region].downlink

    def dialable(self, host: str, region: str) -> bool:
        """Returns whether others can open connections to a host."""
        own = self.host.get(host)
        return own.dialable if own is not None and own.dialable is not None else self.region[region].dialable

    def slower(self, times: float) -> Topology:
        """Returns the same network with all rates divided by `times`; delays and losses stay. Raises `FormatError`
        where no rate is left."""

        def less(rate: float | None) -> float | None:
            return None if rate is None else rate / times

        change = msgspec.structs.replace
        slow = change(
            self,
            region={n: change(r, up=r.up / times, down=less(r.down)) for n, r in self.region.items()},
            link=[change(link, rate=link.rate / times, rate_back=less(link.rate_back)) for link in self.link],
            host={n: change(h, up=less(h.up), down=less(h.down)) for n, h in self.host.items()},
            event=[change(event, rate=less(event.rate)) for event in self.event],
        )
        slow.check()
        return slow

    def check(self) -> None:
        """Raise `FormatError` unless this describes a consistent network."""
        if sum(region.hosts for region in self.region.values()) > MAX_HOSTS:
            raise FormatError(f"more than {MAX_HOSTS} hosts")
        for name, region in self.region.items():
            if region.hosts < 1 or not (_is_rate(region.up) and _is_rate(region.downlink)):
                raise FormatError(f"region {name}: it needs a host, and rates above 0 and up to {MAX_RATE:.0f} Mbit/s")
            if not 0 <= region.delay_ms < 60_000:
                raise FormatError(f"region {name}: delay_ms from 0 to below a minute")
            if not 0 <= region.loss < 1:
                raise FormatError(f"region {name}: loss from 0 to below 1")
        for link in self.link:
            self._check_link(link)
        pairs = [frozenset(link.between) for link in self.link]
        if len(set(pairs)) < len(pairs):
            raise FormatError("two links between the same regions: give their sum as one")
        hosts = {host for host, _ in self.hosts}
        self._check_hosts(hosts)
        for name in {name for pair in self.blocked for name in pair} - hosts - set(self.region):
            raise FormatError(f"blocked names {name!r}, which is neither a host nor a region of the file")
        for event in self.event:
            event.check(hosts, self.region, pairs)

    def _check_hosts(self, hosts: set[str]) -> None:
        if self.trainer not in hosts:
            example = self.hosts[0][0] if hosts else "eu-0"
            raise FormatError(f"the trainer {self.trainer!r} is no host; hosts are named like {example}")
        for name, host in self.host.items():
            if name not in hosts:
                raise FormatError(f"[host.{name}] is no host; hosts are named like {self.hosts[0][0]}")
            if not all(rate is None or _is_rate(rate) for rate in (host.up, host.down)):
                raise FormatError(f"[host.{name}]: rates above 0 and up to {MAX_RATE:.0f} Mbit/s")

    def _check_link(self, link: Link) -> None:
        for name in link.between:
            if name not in self.region:
                raise FormatError(f"a link names the region {name!r}, which is not in the file")
        if link.between[0] == link.between[1]:
            raise FormatError(f"a link from {link.between[0]} to itself; hosts of a region need none")
        fine = _is_rate(link.rate) and _is_rate(link.back) and 0 <= link.delay_ms < 60_000 and 0 <= link.loss < 1
        if not fine:
            raise FormatError(
                f"the link {'–'.join(link.between)}: rate above 0 and up to {MAX_RATE:.0f} Mbit/s, delay_ms from 0 "
                "to below a minute, loss from 0 to below 1"
            )
        if link.buffer_ms is not None and link.buffer_ms <= 0:
            raise FormatError(f"the link {'–'.join(link.between)}: a buffer above 0")


#: The types of a file's tables, by the tables' names.
_TABLES: dict[str, type[msgspec.Struct]] = {"region": Region, "host": Host, "link": Link, "event": NetworkEvent}


def _is_rate(rate: float) -> bool:
    return 0 < rate <= MAX_RATE


def load(path: Path) -> Topology:
    """Read a topology file. Raises `FormatError`, naming the file."""
    raw: object = None
    try:
        raw = msgspec.toml.decode(path.read_bytes())
        topology = msgspec.convert(raw, Topology)
        topology.check()
        check_finite(topology)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise FormatError(f"{path}: {explain(raw, _TABLES, error)}") from None
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    return topology
