"""The settings of a trainer."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2psync.arguments import Directory, PrivateKey, as_directory, as_private_key, required
from p2psync.delta.container import PROFILES
from p2psync.net.addresses import check_url
from p2psync.net.tcp import AUTO_CONGESTION
from p2psync.setting_checks import check_choice, check_flags, check_number, check_texts
from p2psync.trainer.versions.profile_choice import AUTO
from p2psync.trainer.versions.retention import ANCHOR_DELTAS, ANCHOR_SECONDS

#: The shortest lease (seconds): shorter ones end between two renewals on a slow path.
MIN_TTL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Settings of a trainer, one line for each: meaning, unit, default.

    store: directory of versions and snapshot; a path or text [required]
    key: the signing key; a private key, a key file (path or text), or a key file's text [required]
    hub_url: the hub to publish through, like http://host:7070; none: embed one at (host, hub_port) [none]
    host: address to listen on; "": every address, of IPv4 and IPv6 [""]
    hub_port: TCP port of the embedded hub (HTTP); 0: any [7070]
    port: TCP port where peers connect; 0: any [7071]
    advertise: addresses told to peers, separated by commas; "": what the hub sees [""]
    region: where this machine is, any word; nodes of one region reach each other cheaply [""]
    token: join token that every node must know; none: anyone may join [none]
    streams: TCP connections to each peer, 1 to 16; 0: as measurements say [0]
    congestion: congestion control of connections to peers: auto (bbr, else cubic) or its name in the kernel [auto]
    probe: measure links with short bursts, which cost up to 1 % of a link [yes]
    profile: how deltas are coded: fast, tight, or auto (the last actor commits soonest) [auto]
    link_mbps: what the slowest link gives, in Mbit/s, for auto; 0: as actors measure it [0]
    squash: squash deltas into one for actors that are behind [yes]
    anchor_ratio: a new anchor once the deltas since the last outweigh it by this factor [1]
    anchor_deltas: a new anchor after so many deltas, however small [256]
    anchor_seconds: a new anchor once the last one is so many seconds old [86400]
    keep: versions that an absent actor may be behind and still get by deltas [64]
    ttl: seconds of a lease at the embedded hub [10]
    plan: the embedded hub plans who sends what to whom, from what nodes measure [yes]
    wait_for_hub: where hub_url cannot be reached at the start, try again until it can [no]
    take_over: take the hub at hub_url from another run on purpose [no]
    supersede: go back on purpose: go on under a new run, newer than the one whose id begins so [""]
    name: what people read in the status; "": the name of this machine [""]
    """

    store: Directory = required(Directory)
    key: PrivateKey = required(PrivateKey, shown=False)
    hub_url: str | None = None
    host: str = ""
    hub_port: int = 7070
    port: int = 7071
    advertise: str = ""
    region: str = ""
    token: str | None = field(default=None, repr=False)
    streams: int = 0
    congestion: str = AUTO_CONGESTION
    probe: bool = True
    profile: str = AUTO
    link_mbps: float = 0.0
    squash: bool = True
    anchor_ratio: float = 1.0
    anchor_deltas: int = ANCHOR_DELTAS
    anchor_seconds: float = ANCHOR_SECONDS
    keep: int = 64
    ttl: float = 10.0
    plan: bool = True
    wait_for_hub: bool = False
    take_over: bool = False
    supersede: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        """Raises `UsageError` for a setting that cannot be meant."""
        object.__setattr__(self, "store", as_directory(self.store, "store"))
        object.__setattr__(self, "key", as_private_key(self.key, "key"))
        if self.hub_url is not None:
            check_url(self.hub_url)
        for name in ("hub_port", "port"):
            check_number(getattr(self, name), name, 0, 65535, whole=True)
        check_number(self.streams, "streams", 0, 16, whole=True)
        check_number(self.link_mbps, "link_mbps", 0)
        check_number(self.anchor_ratio, "anchor_ratio", 0)
        check_number(self.anchor_deltas, "anchor_deltas", 1, whole=True)
        check_number(self.anchor_seconds, "anchor_seconds", 0)
        check_number(self.keep, "keep", 0, whole=True)
        check_number(self.ttl, "ttl", MIN_TTL_SECONDS)
        check_choice(self.profile, "profile", (AUTO, *PROFILES))
        names = ("host", "advertise", "region", "congestion", "supersede", "name")
        check_texts({name: getattr(self, name) for name in names})
        flags = ("probe", "squash", "plan", "wait_for_hub", "take_over")
        check_flags({name: getattr(self, name) for name in flags})
