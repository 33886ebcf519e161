"""The events of an emulated network: the `[[event]]` tables of a topology file.

    [[event]]
    at = 5.0                            # seconds after the start
    kind = "degrade"                    # sets the figures of a degraded link
    link = ["eu", "us"]                 # or host = "eu-0": both its uplink and its downlink
    rate = 10                           # any of rate (Mbit/s), delay_ms, loss

    [[event]]
    at = 8.0
    kind = "kill"                       # kill -9 of all processes of a host
    host = "us-1"

`join` starts a host's command at that time. `cut` blocks all packets: of a link, a host, or all links of the given
regions. `partition` cuts all links between the given regions and the rest. `restore` resets a link, a host, or (given
neither) the whole network to the file's figures.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec

from p2psync.errors import FormatError

EventKind = Literal["join", "kill", "degrade", "cut", "partition", "restore"]


class NetworkEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One event, `at` seconds after the start."""

    at: float
    kind: EventKind
    host: str | None = None
    link: tuple[str, str] | None = None
    regions: tuple[str, ...] = ()
    rate: float | None = None
    delay_ms: float | None = None
    loss: float | None = None

    def check(self, hosts: Collection[str], regions: Collection[str], links: Collection[frozenset[str]]) -> None:
        """Raise `FormatError` if the event is impossible in a network of these hosts, regions and links."""
        where = f"the event {self.kind} at {self.at:g} s"
        if self.at < 0:
            raise FormatError(f"{where}: at must be 0 or more")
        if self.host is not None and self.host not in hosts:
            raise FormatError(f"{where}: {self.host!r} is no host")
        if self.link is not None and frozenset(self.link) not in links:
            raise FormatError(f"{where}: there is no link between {' and '.join(self.link)}")
        for region in self.regions:
            if region not in regions:
                raise FormatError(f"{where}: {region!r} is no region")
        self._check_kind(where)
        self._check_values(where)

    def _check_kind(self, where: str) -> None:
        given = [self.host is not None, self.link is not None, bool(self.regions)]
        wanted = {
            "join": ([1, 0, 0],),
            "kill": ([1, 0, 0],),
            "degrade": ([1, 0, 0], [0, 1, 0]),
            "cut": ([1, 0, 0], [0, 1, 0], [0, 0, 1]),
            "partition": ([0, 0, 1],),
            "restore": ([1, 0, 0], [0, 1, 0], [0, 0, 0]),
        }[self.kind]
        if given not in wanted:
            fields = ("host", "link", "regions")
            choices = [" and ".join(f for f, w in zip(fields, ws, strict=True) if w) or "nothing" for ws in wanted]
            raise FormatError(f"{where}: it needs {' or '.join(choices)}")

    def _check_values(self, where: str) -> None:
        values = (self.rate, self.delay_ms, self.loss)
        if (self.kind == "degrade") == all(value is None for value in values):
            raise FormatError(f"{where}: rate, delay_ms and loss belong to degrade, which needs one of them")
        if (self.rate is not None and self.rate <= 0) or (self.delay_ms or 0) < 0 or not 0 <= (self.loss or 0) < 1:
            raise FormatError(f"{where}: rate above 0, delay from 0, loss from 0 to below 1")
