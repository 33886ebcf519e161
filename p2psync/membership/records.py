"""The messages between the hub and its clients (JSON on the wire)."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["trainer", "actor", "relay"]

#: How long a lease lasts unless it is renewed, and how often it is renewed (seconds).
DEFAULT_TTL_SECONDS = 10.0
RENEWALS_PER_TTL = 3


#: The host of a node on the hub's machine: each peer replaces it by the name at which it reaches the hub.
HUB_HOST = "@hub"


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a node and the addresses at which peers reach it.

    node: 32 hex digits, kept over restarts of the same daemon. region: free text; "" when unknown. host: "" in a join
    means the address that the hub sees; `HUB_HOST` means the host at which the reader reaches the hub. port 0: the node
    cannot be dialled and dials out instead. further: other hosts of the node, tried after `host`; a hub that fills in
    `host` drops those that peers cannot use. name: what people call the node; "" when it has none.
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
        """The hosts at which to dial the node, in the order of trying."""
        return self.host, *self.further

    @property
    def location(self) -> str:
        """The node's address, for people."""
        if not self.port:
            return "dials out"
        if self.host == HUB_HOST:
            return f"on the hub's machine, port {self.port}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A node with a live lease, and the version that it last reported as live (None: none yet). digest: 32 hex digits.

    run, epoch: of that version; versions of two runs are unrelated. run "": not reported. fetch_rate: bytes a second at
    which the node last received chunks while it was busy fetching, by its own measurement; 0: none yet. rejected:
    digest of the version that it last fetched and whose bits differ from those signed; "": none since its last commit.
    """

    info: NodeInfo
    version: int | None = None
    digest: str = ""
    run: str = ""
    epoch: int = 0
    fetch_rate: int = 0
    rejected: str = ""


class PathStatistics(msgspec.Struct, frozen=True, array_like=True):
    """One node's statistics of its connections to one peer. Mbit/s, seconds.

    sent, received: the highest rates of chunks or probes to and from the peer while only the network limited them; 0:
    none yet. rtt: the minimum round trip, 0: none yet. loss: share of the sent bytes that were retransmitted. failed:
    no connection could be opened to the peer. degraded_to: the share that is left of the path's best rate if it has
    degraded; 0: it has not.
    """

    peer: str
    rtt: float = 0.0
    sent: float = 0.0
    received: float = 0.0
    loss: float = 0.0
    failed: bool = False
    degraded_to: float = 0.0


class NodeStatistics(msgspec.Struct, frozen=True, array_like=True):
    """A node's network statistics. up, down: the highest total Mbit/s that it sent and received, 0: not known."""

    up: float = 0.0
    down: float = 0.0
    paths: list[PathStatistics] = []


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a join or renewal: renew within `ttl` seconds, preferably after a third of it.

    refused: one line on the reported figures that the hub dropped; "" if it took all.
    """

    lease: str
    ttl: float
    revision: int
    refused: str = ""


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for membership; a node that joins again replaces its earlier lease."""

    info: NodeInfo
    version: int | None = None
    digest: str = ""
    run: str = ""
    epoch: int = 0


class Renew(msgspec.Struct, frozen=True, kw_only=True):
    """Renews a lease and reports the live version: the acknowledgement of a commit is a renewal.

    The lease is the first field, and is renewed whatever the other fields hold (see `p2psync.membership.renewal`). run,
    epoch, fetch_rate, rejected: see `Member`. waits: see `MemberAge`. statistics: None if unchanged since the last
    report.
    """

    lease: str
    version: int | None = None
    digest: str = ""
    run: str = ""
    epoch: int = 0
    waits: str = ""
    fetch_rate: int = 0
    statistics: NodeStatistics | None = None
    rejected: str = ""


class Leave(msgspec.Struct, frozen=True, kw_only=True):
    """Ends a lease."""

    lease: str


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """A nonce for one claim; valid once, for `ttl` seconds."""

    nonce: str
    ttl: float


class RunClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer takes a run over at `epoch`: above the hub's, or equal to it from the same node (after a hub restart).

    key: raw public key in hex. signature (hex): over `claim_bytes` of this claim, with a nonce of this hub. take_over:
    take the hub from another run, whose trainer may be at work, or from a newer run; see `fencing`.
    """

    node: str
    run: str
    epoch: int
    nonce: str
    key: str
    signature: str = ""
    take_over: bool = False


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """The secret token that later announcements of this epoch carry."""

    token: str
    epoch: int


class Announce(msgspec.Struct, frozen=True, kw_only=True):
    """Adds manifests (bytes of SignedManifest; base64 in JSON) to the run's lineage, and retires others by id (hex).

    note: a line about the newest version, for people who read the status; "" keeps the last one. co_publishers: nodes
    that publish together with the trainer, each some of the chunks; plans treat them and the trainer as one node. None
    keeps them.
    """

    token: str
    manifests: list[bytes] = []
    retire: list[str] = []
    note: str = ""
    co_publishers: list[str] | None = None


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to an announcement: the first revision of the view that shows it."""

    revision: int


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of one manifest of the lineage. id, digest, base_digest: hex.

    profile: the codec profile of its chunks. inline: the signed manifest if it is small and new to the reader; any
    other is fetched by its id.
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
    """The view that the hub gives every node, at one revision.

    instance: differs after each start of the hub, so that clients notice that revisions begin again. run: "" until a
    trainer has claimed one. claim: who holds the run and how it got it, one line for people; "" before the first claim.
    head: the newest announced version of the highest announced epoch, None before the first. plan: revision of the plan
    in use, 0: none; it rises with each plan of this instance. members: sorted by node; a change of their versions does
    not raise the revision. lineage: in the order of announcement, oldest first. since: None if members and lineage are
    complete; otherwise they hold those that are new or changed since this revision, `gone` the nodes that left and
    `retired` the ids of manifests that were retired: see `merge_views`.
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
    """The seconds for which a node has held its lease, and those since the hub last heard from it.

    up, down: see `NodeStatistics`. waits: why the node does not run the version that the hub offers, or how far its
    fetch is, in its own words; "" if it does, or is about to.
    """

    node: str
    joined: float
    heard: float
    up: float = 0.0
    down: float = 0.0
    waits: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The hub's state for people: the view without inlined manifests, seconds since the hub's start, and each member's
    age.

    note: the trainer's last note on its newest version.
    """

    view: View
    uptime: float
    ages: list[MemberAge] = []
    note: str = ""


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The hub's reply to a refused request: the name of an exception of `p2psync.errors`, and its one line."""

    error: str
    message: str


def claim_bytes(claim: RunClaim) -> bytes:
    """Returns the bytes that a claim's signature covers: a context, then every field but the signature, in order.

    `take_over` is covered only when it is set.
    """
    fields = [claim.node, claim.run, str(claim.epoch), claim.nonce, claim.key]
    if claim.take_over:
        fields.append("take over")
    return b"p2psync claim v1\0" + "\0".join(fields).encode()


def new_run(unix_ms: int, randomness: bytes) -> str:
    """Returns a run id of 32 hex digits that sorts by time: 12 of milliseconds, 20 of randomness (10 bytes)."""
    return f"{unix_ms & (1 << 48) - 1:012x}{randomness[:10].hex()}"
