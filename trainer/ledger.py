"""The ledger: who leases which rollout work, and what came back, each result exactly once.

Pure: time and ids are arguments; `now` is in seconds on a clock that does not go back.

    put ──▶ pooled ──lease──▶ claimed ──complete──▶ done ──take──▶ (the trainer)
              ▲                  │
              └── claim ended ◀──┘   its time was up, its node's membership ended, or its result was refused

Two limits end a claim. `claim_ttl` ends it unless the node's membership is renewed (`renew_node`); `max_hold` ends it
in any case, so that a node that lives but is stuck does not keep work for ever. A result counts only while its claim
lives: what comes later is refused, even if the item is still in the pool, so that an item cannot come back twice.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2psync.errors import UsageError
from p2psync.membership.deadlines import Deadlines
from p2psync.membership.work import (
    MAX_GRANT_BYTES,
    MAX_GRANT_ITEMS,
    MAX_ITEM_ID,
    MAX_PAYLOAD_BYTES,
    MAX_RESULT_BYTES,
    Verdict,
    WorkItem,
)


@dataclass(frozen=True, kw_only=True)
class LedgerConfig:
    """claim_ttl, max_hold: seconds, see above. max_staleness: versions a result may lie behind the newest.

    max_items: in pool, claimed and done together. max_per_node: claimed by one node at once. max_done_bytes: results
    that wait to be taken; beyond it nothing is leased or accepted. max_payload_bytes: of all items together.
    remembered: ids of items that were completed and taken, kept to tell a duplicate from a late result.
    """

    claim_ttl: float = 30.0
    max_hold: float = 1800.0
    max_staleness: int = 1
    max_items: int = 65536
    max_per_node: int = 1024
    max_done_bytes: int = 1 << 30
    max_payload_bytes: int = 1 << 30
    remembered: int = 65536

    def __post_init__(self) -> None:
        bounds = (self.max_items, self.max_per_node, self.max_done_bytes, self.max_payload_bytes, self.remembered)
        if min(bounds) <= 0 or not 0 < self.claim_ttl <= self.max_hold or self.max_staleness < 0:
            raise UsageError("the ledger's bounds must be above 0, and claim_ttl at most max_hold")


@dataclass(frozen=True, kw_only=True)
class Done:
    """An accepted result. item: as it was put in. version: the policy the result was made under."""

    item: WorkItem
    node: str
    version: int
    result: bytes


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Since the start. leased counts grants of items, re-leased those that had been leased before."""

    put: int
    leased: int
    re_leased: int
    returned: int
    completed: int
    dropped: int
    refused: dict[Verdict, int]


@dataclass
class _Claim:
    node: str
    ends: float  # whatever is renewed
    items: dict[str, WorkItem] = field(default_factory=dict)


class Ledger:
    """The account of rollout work. Every operation is O(log n) per item it touches."""

    def __init__(self, config: LedgerConfig | None = None) -> None:
        self.config = config or LedgerConfig()
        self.head: int | None = None
        self._digests: OrderedDict[int, str] = OrderedDict()
        self._pool: deque[WorkItem] = deque()
        self._claims: dict[str, _Claim] = {}
        self._of_node: dict[str, set[str]] = {}
        self._claimed: Counter[str] = Counter()  # node → items
        self._deadlines = Deadlines()
        self._open: set[str] = set()  # pooled or claimed
        self._open_bytes = 0
        self._done: deque[Done] = deque()
        self._done_bytes = 0
        self._completed: OrderedDict[str, None] = OrderedDict()
        self._leased_before: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._refused: Counter[Verdict] = Counter()

    @property
    def pooled(self) -> int:
        """Items that nobody has claimed."""
        return len(self._pool)

    @property
    def claimed(self) -> int:
        """Items that are claimed now."""
        return sum(self._claimed.values())

    @property
    def done(self) -> int:
        """Results that wait to be taken."""
        return len(self._done)

    @property
    def counts(self) -> Counts:
        """A copy of all counters."""
        c = self._counts
        return Counts(
            put=c["put"],
            leased=c["leased"],
            re_leased=c["re_leased"],
            returned=c["returned"],
            completed=c["completed"],
            dropped=c["dropped"],
            refused=dict(self._refused),
        )

    def admit(self, version: int, digest: str) -> None:
        """Take `version` (digest: 32 hex digits) as the newest policy. Does nothing if it is that already.

        Raises `UsageError` unless versions rise.
        """
        if self.head is not None and version <= self.head:
            if self._digests.get(version) == digest:
                return
            raise UsageError(f"version {version} after version {self.head}: versions only rise in a ledger; begin anew")
        self.head = version
        self._digests[version] = digest
        while next(iter(self._digests)) < version - self.config.max_staleness:
            self._digests.popitem(last=False)

    def put(self, version: int, items: Iterable[tuple[str, bytes]]) -> int:
        """Put in work for `version`: ids never used before, and payloads. All or nothing; returns how many.

        Raises `UsageError` for an id that was used or is over 128 characters, a payload over 1 MiB, or a full ledger.
        """
        new = [WorkItem(item=item, version=version, payload=payload) for item, payload in items]
        ids = {work.item for work in new}
        if len(ids) < len(new) or not ids.isdisjoint(self._open) or not ids.isdisjoint(self._completed):
            raise UsageError("an item's id was put in before; each id stands for one piece of work")
        if any(not 0 < len(work.item) <= MAX_ITEM_ID or len(work.payload) > MAX_PAYLOAD_BYTES for work in new):
            raise UsageError(
                f"an item has an id of 1 to {MAX_ITEM_ID} characters and at most {MAX_PAYLOAD_BYTES} bytes"
            )
        size = sum(len(work.payload) for work in new)
        full = len(self._open) + len(self._done) + len(new) > self.config.max_items
        if full or self._open_bytes + size > self.config.max_payload_bytes:
            raise UsageError("the ledger is full; take results, or drop old work, before more is put in")
        self._pool.extend(new)
        self._open |= ids
        self._open_bytes += size
        self._counts["put"] += len(new)
        return len(new)

    def lease(self, node: str, lease_id: str, max_items: int, now: float) -> list[WorkItem]:
        """Claim up to `max_items` items for `node` under `lease_id`, a fresh secret; oldest first, perhaps none.

        If the node has claimed under this id already, and the answer was lost, what it still holds is given again.
        Raises `UsageError` for a lease id that another node uses.
        """
        self.expire(now)
        known = self._claims.get(lease_id)
        if known is not None:
            if known.node != node:
                raise UsageError("this work lease id is in use; draw another")
            return list(known.items.values())
        items = self._grab(min(max_items, MAX_GRANT_ITEMS, self.config.max_per_node - self._claimed[node]))
        if items:
            claim = _Claim(node, now + self.config.max_hold, {work.item: work for work in items})
            self._claims[lease_id] = claim
            self._of_node.setdefault(node, set()).add(lease_id)
            self._claimed[node] += len(items)
            self._set_deadline(lease_id, claim, now)
            self._count_leased(items)
        return items

    def complete(self, lease_id: str, item: str, result: bytes, version: int, digest: str, now: float) -> Verdict:
        """Offer the result of `item`, made under `version` with `digest`; see `Verdict`. Only "accepted" counts.

        A result refused for its version or digest returns the item to the pool. Raises `UsageError` for a result
        over 4 MiB.
        """
        if len(result) > MAX_RESULT_BYTES:
            raise UsageError(f"a result of {len(result)} bytes; at most {MAX_RESULT_BYTES} are taken")
        self.expire(now)
        claim = self._claims.get(lease_id)
        verdict = self._judge(claim, item, len(result), version, digest)
        if verdict != "accepted":
            self._refused[verdict] += 1
        if claim is None or verdict in ("late", "duplicate", "full"):
            return verdict
        work = self._unclaim(lease_id, claim, item)
        if verdict == "accepted":
            self._finish(Done(item=work, node=claim.node, version=version, result=result))
        else:
            self._return([work])
        return verdict

    def renew_node(self, node: str, now: float) -> None:
        """The node's membership was renewed: so are its claims, up to their `max_hold`."""
        self.expire(now)
        for lease_id in self._of_node.get(node, ()):
            self._set_deadline(lease_id, self._claims[lease_id], now)

    def release_node(self, node: str) -> int:
        """The node's membership ended: its work returns to the pool. Returns how many items."""
        return sum(self._release(lease_id) for lease_id in sorted(self._of_node.get(node, ())))

    def expire(self, now: float) -> int:
        """End claims whose time is up. Returns how many items went back to the pool."""
        return sum(self._release(lease_id) for lease_id in self._deadlines.pop_due(now))

    def next_expiry(self) -> float | None:
        """When the next claim ends unless it is renewed (seconds), None if there is none."""
        return self._deadlines.next()

    def take(self, max_items: int) -> list[Done]:
        """Take up to `max_items` results out, oldest first: they are the caller's then, and make room."""
        taken = [self._done.popleft() for _ in range(min(max_items, len(self._done)))]
        self._done_bytes -= sum(len(done.result) for done in taken)
        return taken

    def drop_before(self, version: int) -> int:
        """Give up unfinished work put in for versions below `version`, claimed or not. Returns how many items.

        Results of it that come later are refused as late.
        """
        dropped = [work for work in self._pool if work.version < version]
        if dropped:
            self._pool = deque(work for work in self._pool if work.version >= version)
        for lease_id, claim in list(self._claims.items()):
            old = [item for item, work in claim.items.items() if work.version < version]
            dropped += [self._unclaim(lease_id, claim, item) for item in old]
        for work in dropped:
            self._close(work)
        self._counts["dropped"] += len(dropped)
        return len(dropped)

    def _judge(self, claim: _Claim | None, item: str, size: int, version: int, digest: str) -> Verdict:
        if claim is None or item not in claim.items:
            return "duplicate" if item in self._completed else "late"
        if self.head is not None and version < self.head - self.config.max_staleness:
            return "stale"
        if version not in self._digests:
            return "unknown_version"
        if digest != self._digests[version]:
            return "wrong_digest"
        return "accepted" if self._done_bytes + size <= self.config.max_done_bytes else "full"

    def _grab(self, most: int) -> list[WorkItem]:
        items: list[WorkItem] = []
        room = MAX_GRANT_BYTES
        if self._done_bytes >= self.config.max_done_bytes:
            return items
        while self._pool and len(items) < most and len(self._pool[0].payload) <= room:
            work = self._pool.popleft()
            room -= len(work.payload)
            items.append(work)
        return items

    def _count_leased(self, items: list[WorkItem]) -> None:
        for work in items:
            self._counts["leased"] += 1
            self._counts["re_leased"] += work.item in self._leased_before
            self._leased_before.add(work.item)

    def _set_deadline(self, lease_id: str, claim: _Claim, now: float) -> None:
        self._deadlines.set(lease_id, min(now + self.config.claim_ttl, claim.ends))

    def _unclaim(self, lease_id: str, claim: _Claim, item: str) -> WorkItem:
        work = claim.items.pop(item)
        self._claimed[claim.node] -= 1
        if not claim.items:
            self._forget(lease_id, claim)
        return work

    def _release(self, lease_id: str) -> int:
        claim = self._claims[lease_id]
        items = list(claim.items.values())
        self._claimed[claim.node] -= len(items)
        self._forget(lease_id, claim)
        self._return(items)
        return len(items)

    def _forget(self, lease_id: str, claim: _Claim) -> None:
        del self._claims[lease_id]
        self._deadlines.discard(lease_id)
        leases = self._of_node[claim.node]
        leases.remove(lease_id)
        if not leases:
            del self._of_node[claim.node], self._claimed[claim.node]

    def _return(self, items: list[WorkItem]) -> None:
        self._pool.extendleft(reversed(items))
        self._counts["returned"] += len(items)

    def _finish(self, done: Done) -> None:
        self._close(done.item)
        self._done.append(done)
        self._done_bytes += len(done.result)
        self._counts["completed"] += 1
        self._completed[done.item.item] = None
        if len(self._completed) > self.config.remembered:
            self._completed.popitem(last=False)

    def _close(self, work: WorkItem) -> None:
        self._open.remove(work.item)
        self._open_bytes -= len(work.payload)
        self._leased_before.discard(work.item)
