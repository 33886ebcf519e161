"""The messages between actors and the rollout ledger: leases of work, and results.

Leases are JSON. A result's bytes are the request's body as they are, and its description (`ResultHead`) travels in one
header, so that the ledger can refuse a result before a byte of it is sent.
"""

from __future__ import annotations

import base64
import binascii
from typing import Literal

import msgspec

from p2psync.errors import FormatError
from p2psync.protocol.wire import decode_msgpack, encode_msgpack

#: Bounds of one item's payload, of one result, and of all payloads in one grant (bytes).
MAX_PAYLOAD_BYTES = 1 << 20
MAX_RESULT_BYTES = 4 << 20
MAX_GRANT_BYTES = 8 << 20
#: Items in one grant, and characters of an item's id.
MAX_GRANT_ITEMS = 256
MAX_ITEM_ID = 128
#: Longest wait of a request for work, with or without work at its end (seconds).
MAX_WORK_WAIT_SECONDS = 20.0
#: The header that carries `ResultHead`, and its greatest length: a character of an id may take six bytes.
RESULT_HEADER = "P2PSync-Result"
MAX_RESULT_HEAD = 2048
#: Tokens that a result may claim to hold.
MAX_TOKENS = 1 << 32

#: The ledger's verdict on a result. accepted: it counts, once. late: the claim on the item has ended; the item is
#: leased to another node or to nobody. duplicate: the item has a result already. stale: made under a version too far
#: behind the newest. unknown_version: made under a version that was not admitted. wrong_digest: made under other
#: weights than that version's. full: the ledger has no space until the trainer takes results out; the claim stays, so
#: offer the result again later.
Verdict = Literal["accepted", "late", "duplicate", "stale", "unknown_version", "wrong_digest", "full"]


class WorkItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item of rollout work. item: an id, unique in the run. version: the policy for which it was put in."""

    item: str
    version: int
    payload: bytes


class LeaseWork(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for up to `max_items` items. lease: the sender's membership lease. wait: seconds to wait for work.

    work: the work lease's id, 32 random hex digits that the sender draws. A request that repeats it, after a lost
    reply, gets the same items again. version: the policy that the sender would use; None: any version is assumed to do.
    """

    lease: str
    work: str
    max_items: int = 1
    wait: float = 0.0
    version: int | None = None


class WorkGrant(msgspec.Struct, frozen=True, kw_only=True):
    """Items that are leased to the sender for `ttl` seconds, renewed with its membership. No items: there was no work
    for it.

    work: the work lease's id, which results name. A result is admitted if it was made under a version of at least
    `head` minus `max_staleness`, for the head at the time when the result arrives. Work on the items in this order.
    """

    work: str
    ttl: float
    head: int | None
    max_staleness: int
    items: list[WorkItem] = []


class ResultHead(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an item's result. version, digest (32 hex digits): the weights that it was made under.

    tokens: how many it took to generate; 0: not reported. It decides how much work the node is given, within what the
    ledger itself measures. packed: the body is compressed (zstd).
    """

    work: str
    item: str
    version: int
    digest: str
    tokens: int = 0
    packed: bool = False


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's reply to a result.

    void: items of the same work lease that need no result any more: another node's result of them counted.
    """

    verdict: Verdict
    void: list[str] = []


class PutWork(msgspec.Struct, frozen=True, kw_only=True):
    """From the trainer: puts items (id, payload) in for `version`; known ids are skipped."""

    version: int
    items: list[tuple[str, bytes]]


class PutReply(msgspec.Struct, frozen=True, kw_only=True):
    """The number of new items."""

    new: int


class TakeWork(msgspec.Struct, frozen=True, kw_only=True):
    """From the trainer: takes up to `max_items` results, of items that were put in for `version` (None: any).

    wait: seconds to wait for the first. again: first repeat the results that were already handed out for the current
    step, for a loop that restarts.
    """

    max_items: int = 64
    version: int | None = None
    wait: float = 0.0
    again: bool = False


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """One result that was taken. item, put_for, payload: as put in. node: who made it, under `version`."""

    item: str
    put_for: int
    payload: bytes
    node: str
    version: int
    tokens: int
    result: bytes


class TakeReply(msgspec.Struct, frozen=True, kw_only=True):
    """Results for `step`, the current one."""

    step: int
    results: list[Taken]


class CommitStep(msgspec.Struct, frozen=True, kw_only=True):
    """From the trainer: `step` (None: the current one) is durable at the trainer; the ledger drops its results."""

    step: int | None = None


class CommitReply(msgspec.Struct, frozen=True, kw_only=True):
    """The current step now, and the number of results that were dropped with the one before."""

    step: int
    gone: int


def encode_head(head: ResultHead) -> str:
    """Encodes a result's description as a header value."""
    return base64.urlsafe_b64encode(encode_msgpack(head)).decode()


def decode_head(text: str) -> ResultHead:
    """Decodes a header value of `encode_head`. Raises `FormatError` for anything else."""
    if not 0 < len(text) <= MAX_RESULT_HEAD:
        raise FormatError(f"a result needs its description in {RESULT_HEADER}, of at most {MAX_RESULT_HEAD} characters")
    try:
        head = decode_msgpack(base64.b64decode(text.encode(), b"-_", validate=True), ResultHead)
    except (msgspec.MsgspecError, binascii.Error, UnicodeError) as error:
        raise FormatError(f"{RESULT_HEADER} is malformed: {error}") from None
    if not 0 <= head.tokens <= MAX_TOKENS or abs(head.version) > MAX_TOKENS**2:
        raise FormatError(f"a result claims {head.tokens} tokens under version {head.version}")
    return head
