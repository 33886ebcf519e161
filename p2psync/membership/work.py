"""What actors and the rollout ledger say to each other: leases of work, and results (JSON on the wire)."""

from __future__ import annotations

from typing import Literal

import msgspec

#: Bounds of one item's payload, of one result, and of all payloads in one grant (bytes).
MAX_PAYLOAD_BYTES = 1 << 20
MAX_RESULT_BYTES = 4 << 20
MAX_GRANT_BYTES = 8 << 20
#: Items in one grant, and characters of an item's id.
MAX_GRANT_ITEMS = 256
MAX_ITEM_ID = 128
#: A request for work is answered after this long at the latest, with or without work (seconds).
MAX_WORK_WAIT = 20.0

#: What became of a result. accepted: it counts, once. late: the claim on the item has ended, the item is someone else's
#: or nobody's. duplicate: the item has a result already. stale: made under a version too far behind the newest.
#: unknown_version: made under a version that was not admitted. wrong_digest: made under other weights than that
#: version's. full: the ledger has no room until the trainer takes results out; the claim stays, offer it again later.
Verdict = Literal["accepted", "late", "duplicate", "stale", "unknown_version", "wrong_digest", "full"]


class WorkItem(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of rollout work. item: an id, unique in the run. version: the policy it was put in for."""

    item: str
    version: int
    payload: bytes


class LeaseWork(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for up to `max_items` items. lease: the asker's membership lease. wait: seconds to wait for work.

    work: 32 random hex digits that the asker draws, the work lease's id. Asked again with the same one, when an answer
    was lost, the ledger gives the same items again.
    """

    lease: str
    work: str
    max_items: int = 1
    wait: float = 0.0


class WorkGrant(msgspec.Struct, frozen=True, kw_only=True):
    """Items that are the asker's alone for `ttl` seconds, renewed with its membership. No items: there was no work.

    work: the work lease's id, which results name. A result is admitted if it was made under a version of at least
    `head` minus `max_staleness`, for the head at the time the result arrives.
    """

    work: str
    ttl: float
    head: int | None
    max_staleness: int
    items: list[WorkItem] = []


class WorkResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one item. version, digest (32 hex digits): the weights it was made under."""

    work: str
    item: str
    version: int
    digest: str
    result: bytes


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's answer to a result."""

    verdict: Verdict
