"""What the hub and its clients say to each other: the control plane's messages (JSON on the wire)."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["trainer", "actor", "relay"]

#: How long a lease lasts unless it is renewed, and how often it is renewed (seconds).
DEFAULT_TTL = 10.0
RENEWALS_PER_TTL = 3


#: The host of a node that runs beside the hub: each peer reaches it by the name by which it reaches the hub.
HUB_HOST = "@hub"


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who a node is and where its peers reach it. port 0: it cannot be dialled and dials out instead.

    node: 32 hex digits, kept over restarts of the same daemon. region: free text; "" when unknown.
    host "" in a join means: the address the hub sees; `HUB_HOST`: wherever the asker reaches the hub.
    further: other hosts of the same node, tried beside `host`; a hub that fills `host` in drops those of no use.
    name: what people call the node; "" when it has none.
    """

    node: str
    role: Role
    region: str = ""
    host: str = ""
    port: int = 0
    further: tuple[str, ...] = ()
    name: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Where to dial the node, in the order of trying."""
        return self.host, *self.further

    @property
    def place(self) -> str:
        """Where the node is dialled, for people."""
        if not self.port:
            return "dials out"
        if self.host == HUB_HOST:
            return f"beside the hub, port {self.port}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A node with a live lease, and the version it last said it runs (None: none yet). digest: 32 hex digits.

    run, epoch: those of that version; versions of two runs have nothing to do with each other. run "": not told.
    fetch_rate: bytes a second at which chunks last came while it was busy fetching, by its own measure; 0: none yet.
    rejected: digest of the version that it fetched last and found other bits in than were signed; "": none since it
    last committed one.
    """

    info: NodeInfo
    version: int | None = None
    digest: str = ""
    run: str = ""
    epoch: int = 0
    fetch_rate: int = 0
    rejected: str = ""


class Path(msgspec.Struct, frozen=True, array_like=True):
    """What a node measured of its connections to one peer. Mbit/s, seconds.

    sent, received: the highest rates that chunks or probes reached to and from the peer while nothing but the network
    held them up; 0: none yet. rtt: the least round trip, 0: none yet. loss: share of what was sent to the peer that had
    to be sent again. failed: no connection could be opened to it. fallen: what part is left of what it gave before, if
    it has changed since it was at its best; 0: it has not.
    """

    peer: str
    rtt: float = 0.0
    sent: float = 0.0
    received: float = 0.0
    loss: float = 0.0
    failed: bool = False
    fallen: float = 0.0


class Measures(msgspec.Struct, frozen=True, array_like=True):
    """What a node measured of its network. up, down: Mbit/s that it sent and received in all at best, 0: not known."""

    up: float = 0.0
    down: float = 0.0
    paths: list[Path] = []


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """What a join or renewal grants: renew within `ttl` seconds, better in a third of it.

    refused: one line on what the renewal told besides and the hub did not take; "" if it took all.
    """

    lease: str
    ttl: float
    revision: int
    refused: str = ""


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for membership; a node that joins again replaces its earlier lease."""

    info: NodeInfo
    version: int | None = None
    digest: str = ""
    run: str = ""
    epoch: int = 0


class Renew(msgspec.Struct, frozen=True, kw_only=True):
    """Keep a lease, and say which version is live: the acknowledgement of a commit is a renewal.

    The lease comes first, and is renewed whatever the rest says (see `p2psync.membership.renewal`). run, epoch,
    fetch_rate, rejected: see `Member`. waits: see `MemberAge`. measures: None if they are as they were told last.
    """

    lease: str
    version: int | None = None
    digest: str = ""
    run: str = ""
    epoch: int = 0
    waits: str = ""
    fetch_rate: int = 0
    measures: Measures | None = None
    rejected: str = ""


class Leave(msgspec.Struct, frozen=True, kw_only=True):
    """Give a lease back."""

    lease: str


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """A nonce for one claim; it may be used once, within `ttl` seconds."""

    nonce: str
    ttl: float


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer takes a run over at `epoch`: above the hub's, or equal to it from the same node (after a hub restart).

    key: raw public key in hex; signature (hex) over `claim_bytes` of this claim, whose nonce the hub gave.
    take_over: take the hub from another run, whose trainer may be at work, or from a newer one; see `fencing`.
    """

    node: str
    run: str
    epoch: int
    nonce: str
    key: str
    signature: str = ""
    take_over: bool = False


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """The secret that later announcements of this epoch carry."""

    token: str
    epoch: int


class Announce(msgspec.Struct, frozen=True, kw_only=True):
    """Add manifests (bytes of SignedManifest; base64 in JSON) to the run's lineage, and retire others by id (hex).

    remark: a line about the newest version, for people who ask for the status; "" leaves the last one. beside: nodes
    that publish together with the trainer, each some of the chunks, which plans treat as one with it; None leaves them.
    """

    token: str
    manifests: list[bytes] = []
    retire: list[str] = []
    remark: str = ""
    beside: list[str] | None = None


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an announcement: the revision of the view that shows it."""

    revision: int


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """One manifest of the lineage in short. id, digest, base_digest: hex.

    profile: that of its chunks. `inline` holds the signed manifest when it is small and news to the asker; any other
    is had by its id.
    """

    id: str
    version: int
    base: int | None
    epoch: int
    digest: str
    base_digest: str
    payload_bytes: int
    manifest_bytes: int
    profile: str = "fast"
    inline: bytes | None = None


class View(msgspec.Struct, frozen=True, kw_only=True):
    """All that a node needs to know, at one revision. run is "" until a trainer has claimed one.

    claim: who holds the run and how it came to, in one line for people; "" before the first claim.
    instance: differs after each start of the hub, so a client sees that revisions began anew.
    head: the newest announced version of the highest epoch that announced one, None before the first.
    plan: revision of the plan in use, 0: none. It rises with each plan of this instance.
    members: sorted by node. Their versions are news that does not raise the revision.
    lineage: in the order announced, oldest first.
    since: None: members and lineage are all there are; else they are those that are new or others since this revision,
    `gone` the nodes that left since, and `retired` the ids of manifests that went: see `put_together`.
    """

    instance: str
    revision: int
    run: str = ""
    epoch: int = 0
    claim: str = ""
    head: int | None = None
    plan: int = 0
    members: list[Member] = []
    lineage: list[Announcement] = []
    since: int | None = None
    gone: list[str] = []
    retired: list[str] = []


class MemberAge(msgspec.Struct, frozen=True, kw_only=True):
    """For how long a node has held its lease, and how long ago it was last heard of (seconds).

    up, down: see `Measures`. waits: why the node does not run what the hub offers, or how far its fetch is, by its own
    word, for people; "": it does, or will in a moment.
    """

    node: str
    joined: float
    heard: float
    up: float = 0.0
    down: float = 0.0
    waits: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The hub at a glance: the view without inlined manifests, seconds since the hub's start, and each member's age.

    remark: what the trainer last said of its newest version.
    """

    view: View
    uptime: float
    ages: list[MemberAge] = []
    remark: str = ""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """What the hub answers instead of a result: the name of an exception of `p2psync.errors`, and its one line."""

    error: str
    message: str


def claim_bytes(claim: Claim) -> bytes:
    """The bytes that a claim's signature covers: context, then every field but the signature, in order.

    A claim that takes nothing over is signed as it was before there was such a field.
    """
    fields = [claim.node, claim.run, str(claim.epoch), claim.nonce, claim.key]
    if claim.take_over:
        fields.append("take over")
    return b"p2psync claim v1\0" + "\0".join(fields).encode()


def new_run(unix_ms: int, randomness: bytes) -> str:
    """A run id of 32 hex digits that sorts by time: 12 of milliseconds, 20 of randomness (10 bytes)."""
    return f"{unix_ms & (1 << 48) - 1:012x}{randomness[:10].hex()}"
