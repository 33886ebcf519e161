"""What actors and the rollout ledger say to each other: leases of work, and results.

Leases are JSON. A result travels as it is: its bytes are the request's body, and what is said of it (`ResultHead`) goes
ahead in one header, so that the ledger may refuse a result before a byte of it is sent.
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
#: A request for work is answered after this long at the latest, with or without work (seconds).
MAX_WORK_WAIT = 20.0
#: The header that carries `ResultHead`, and what it may be long: an id's characters may take six bytes each.
RESULT_HEADER = "P2PSync-Result"
MAX_RESULT_HEAD = 2048
#: Tokens that a result may claim to hold.
MAX_TOKENS = 1 << 32

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
    was lost, the ledger gives the same items again. version: the policy that the asker would use; None: it does not
    say, and is taken to have one that will do.
    """

    lease: str
    work: str
    max_items: int = 1
    wait: float = 0.0
    version: int | None = None


class WorkGrant(msgspec.Struct, frozen=True, kw_only=True):
    """Items that are the asker's for `ttl` seconds, renewed with its membership. No items: there was no work for it.

    work: the work lease's id, which results name. A result is admitted if it was made under a version of at least
    `head` minus `max_staleness`, for the head at the time the result arrives. Items are to be worked on in this order.
    """

    work: str
    ttl: float
    head: int | None
    max_staleness: int
    items: list[WorkItem] = []


class ResultHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of an item's result. version, digest (32 hex digits): the weights it was made under.

    tokens: how many it took to generate; 0: not told. It decides how much work the node is given, within what the
    ledger itself sees. packed: the body is compressed (zstd).
    """

    work: str
    item: str
    version: int
    digest: str
    tokens: int = 0
    packed: bool = False


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's answer to a result.

    void: items of the same work lease that need not be done any more: somebody else's result of them counted.
    """

    verdict: Verdict
    void: list[str] = []


class PutWork(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's side: put items (id, payload) in for `version`; those that are known already are passed over."""

    version: int
    items: list[tuple[str, bytes]]


class PutReply(msgspec.Struct, frozen=True, kw_only=True):
    """How many items were new."""

    new: int


class TakeWork(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's side: take up to `max_items` results, of items that were put in for `version` (None: any).

    wait: seconds to wait for the first. again: first give what was handed out for the step in hand once more, for a
    loop that starts anew.
    """

    max_items: int = 64
    version: int | None = None
    wait: float = 0.0
    again: bool = False


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """One result that was taken. item, put_for, payload: as it was put in. node: who made it, under `version`."""

    item: str
    put_for: int
    payload: bytes
    node: str
    version: int
    tokens: int
    result: bytes


class TakeReply(msgspec.Struct, frozen=True, kw_only=True):
    """Results for step `step`, the one in hand."""

    step: int
    results: list[Taken]


class CommitStep(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's side: step `step` (None: the one in hand) is durable at the trainer's; its results are gone."""

    step: int | None = None


class CommitReply(msgspec.Struct, frozen=True, kw_only=True):
    """The step that is in hand now, and how many results went with the one before."""

    step: int
    gone: int


def encode_head(head: ResultHead) -> str:
    """As a header's value."""
    return base64.urlsafe_b64encode(encode_msgpack(head)).decode()


def decode_head(text: str) -> ResultHead:
    """Raises `FormatError` for anything but what `encode_head` gives."""
    if not 0 < len(text) <= MAX_RESULT_HEAD:
        raise FormatError(f"a result comes with its head in {RESULT_HEADER}, of at most {MAX_RESULT_HEAD} characters")
    try:
        head = decode_msgpack(base64.b64decode(text.encode(), b"-_", validate=True), ResultHead)
    except (msgspec.MsgspecError, binascii.Error, UnicodeError) as error:
        raise FormatError(f"{RESULT_HEADER} is not a result's head: {error}") from None
    if not 0 <= head.tokens <= MAX_TOKENS or abs(head.version) > MAX_TOKENS**2:
        raise FormatError(f"a result claims {head.tokens} tokens under version {head.version}")
    return head
