"""The settings of a trainer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.arguments import as_directory, as_private_key
from p2psync.net.tcp import AUTO_CONGESTION
from p2psync.trainer.versions.profile_choice import AUTO
from p2psync.trainer.versions.retention import ANCHOR_DELTAS, ANCHOR_SECONDS


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Settings of a trainer.

    store: directory of versions and snapshot, a path or text. key: a private key, or a key file or its text.
    hub_url: an external hub; None: one is embedded at (host, hub_port).
    host, port: where peers connect ("": every address, of IPv4 and IPv6; 0: any port). advertise: addresses told to
    peers, separated by commas; "" lets the hub see one.
    streams: connections to each peer, 0: as measurements say. congestion: of these connections, see
    `p2psync.net.tcp.choose_congestion`. probe: measure links with short bursts.
    profile: of deltas, or "auto": see `p2psync.trainer.versions.profile_choice`. link_mbps: what the slowest link
    gives, 0: as members measure it. squash: make squashes for members that are behind. anchor_ratio, anchor_deltas,
    anchor_seconds, keep: see `p2psync.trainer.versions.retention`. ttl: seconds of a lease at the embedded hub. plan:
    whether that hub makes plans. wait_for_hub: where an external hub cannot be reached at the start, try again until it
    can. take_over: take an external hub from another run on purpose. supersede: go on under a new run, newer than the
    one of which this begins the id, unless the store's run is; see `p2psync.membership.runs`.
    """

    store: Path
    key: Ed25519PrivateKey
    hub_url: str | None = None
    host: str = ""
    hub_port: int = 7070
    port: int = 7071
    advertise: str = ""
    region: str = ""
    token: str | None = None
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

    def __post_init__(self) -> None:
        """Raises `UsageError` for a store or key that is none."""
        object.__setattr__(self, "store", as_directory(self.store, "store"))
        object.__setattr__(self, "key", as_private_key(self.key, "key"))
