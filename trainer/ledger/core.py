"""The ledger: the account of which node leases which rollout work, and of the results, each exactly once.

Pure: time and ids are arguments; `now` is in seconds on a clock that does not go back. Its contract:
docs/guides/ledger.md.

    put ──▶ pooled ──lease──▶ claimed ──complete──▶ done ──take──▶ taken ──commit_step──▶ gone
              ▲                  │                    ▲              │
              └── claim ended ◀──┘                    └─ hand_back ◀─┘   the trainer's step was not committed

Two limits end a claim. `claim_ttl` ends it unless the node's membership is renewed (`renew_node`); `max_hold` ends it
in any case, so that a live node that is stuck does not keep work for ever. A result counts only while its claim lives:
a later one is refused, even if the item is still in the pool, so that an item cannot come back twice.
Two nodes may hold an item at a time (`p2psync.trainer.ledger.allotment`); the first result that is accepted ends both
claims.

The ledger passes every change of state to `record` as it happens; `Ledger(saved=…)` begins in the state that these
changes led to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from p2psync.errors import UsageError
from p2psync.membership.work import (
    MAX_GRANT_BYTES,
    MAX_GRANT_ITEMS,
    MAX_RESULT_BYTES,
    Verdict,
    WorkItem,
)
from p2psync.trainer.ledger.admission import VersionAdmission
from p2psync.trainer.ledger.claims import WorkClaim, WorkClaims
from p2psync.trainer.ledger.config import LedgerConfig, LedgerCounts
from p2psync.trainer.ledger.grants import GrantChooser
from p2psync.trainer.ledger.items import OpenItems
from p2psync.trainer.ledger.pool import ItemPool
from p2psync.trainer.ledger.records import (
    ClaimsEnded,
    ItemsClaimed,
    ItemsDropped,
    ItemsPut,
    LedgerResult,
    Recorder,
    ResultAccepted,
    ResultsReturned,
    ResultsTaken,
    SavedLedger,
    StepCommitted,
    VersionAdmitted,
    discard_change,
)
from p2psync.trainer.ledger.results import ResultQueue
from p2psync.trainer.ledger.throughput import Throughput

__all__ = ["Ledger", "LedgerConfig", "LedgerCounts", "LedgerResult"]


class Ledger:
    """The account of rollout work. Every operation is O(log n) per item it touches, and a lease O(nodes) besides."""

    def __init__(
        self,
        config: LedgerConfig | None = None,
        *,
        record: Recorder = discard_change,
        saved: SavedLedger | None = None,
        now: float = 0.0,
    ) -> None:
        """record: called with every change. saved: a state to begin with; its claims last from `now` as if just made.
        See `resume`."""
        self.config = config or LedgerConfig()
        self.throughput = Throughput(self.config.max_staleness, self.config.max_rate)
        self._record = record
        self._admission = VersionAdmission(self.config.max_staleness)
        self._pool = ItemPool()
        self._claims = WorkClaims(self.config.claim_ttl, self.config.max_hold)
        self._grant_chooser = GrantChooser(self.config, self._pool, self._claims, self.throughput)
        self._items = OpenItems(self.config)
        self._results = ResultQueue()
        self._leased_before: set[int] = set()
        self._next_order = 0
        self._step = 0
        self._counts: Counter[str] = Counter()
        self._refused: Counter[Verdict] = Counter()
        if saved is not None:
            self._restore(saved, now)

    # ---- counts ---------------------------------------------------------------------------------------------

    @property
    def head(self) -> int | None:
        """The newest version, None before the first."""
        return self._admission.head

    @property
    def pooled(self) -> int:
        """Items that no node has claimed."""
        return len(self._pool)

    @property
    def claimed(self) -> int:
        """Items that are claimed now."""
        return len(self._claims)

    @property
    def done(self) -> int:
        """Results that wait to be taken."""
        return len(self._results.waiting)

    @property
    def taken(self) -> int:
        """Results that were taken for the step in hand."""
        return len(self._results.taken)

    @property
    def step(self) -> int:
        """The trainer's step in hand: results are taken for it, and are gone once it is committed."""
        return self._step

    @property
    def counts(self) -> LedgerCounts:
        """A copy of all counters."""
        c = self._counts
        return LedgerCounts(
            put=c["put"],
            leased=c["leased"],
            re_leased=c["re_leased"],
            hedged=c["hedged"],
            returned=c["returned"],
            completed=c["completed"],
            committed=c["committed"],
            dropped=c["dropped"],
            refused=dict(self._refused),
        )

    # ---- the trainer's side ----------------------------------------------------------------------------------------

    def admit(self, version: int, digest: str, now: float = 0.0) -> None:
        """Take `version` (digest: 32 hex digits) as the newest policy. Does nothing if it is that already.

        Raises `UsageError` unless versions rise.
        """
        if self._admission.admit(version, digest):
            self.throughput.admitted(version, now)
            self._grant_chooser.changed()
            self._record(VersionAdmitted(version=version, digest=digest, oldest=self._admission.oldest))

    def put(self, version: int, items: Iterable[tuple[str, bytes]], *, skip_known: bool = False) -> int:
        """Put in work for `version`: ids never used before, and payloads. All or nothing; returns how many.

        skip_known: pass over ids that were put in before, for a trainer that starts over and puts in the same. Raises
        `UsageError` for an id that was used or is over 128 characters, a payload over 1 MiB, or a full ledger.
        """
        new = self._items.new(version, items, self.done + self.taken, skip_known=skip_known)
        first = self._items.next
        self._items.next += len(new)
        self._record(ItemsPut(first=first, items=new))
        for number, work in enumerate(new, first):
            self._items.open(number, work)
            self._pool.add(number, work)
        self._grant_chooser.changed()
        self._counts["put"] += len(new)
        return len(new)

    def take(self, max_items: int, version: int | None = None) -> list[LedgerResult]:
        """Take up to `max_items` results for the step in hand, oldest first, which makes room for more.

        version: only results of items that were put in for it. If the caller's step fails, it can take them again after
        `hand_back`, until `commit_step`.
        """
        taken = self._results.take(max_items, version)
        if taken:
            self._record(ResultsTaken(step=self._step, items=[done.number for done in taken]))
        return taken

    def hand_back(self, results: Iterable[LedgerResult] | None = None) -> int:
        """Return these results (None: all) that were taken for the step in hand, so that they wait to be taken again.

        Results that are gone already are skipped. Returns how many were handed back.
        """
        back = self._results.hand_back(results)
        if back:
            self._record(ResultsReturned(items=[done.number for done in back]))
        return len(back)

    def commit_step(self, step: int | None = None) -> int:
        """Drop the results taken for the trainer's step (None: the one in hand), which is durable on its side now.

        Does nothing for a step that was committed before. Returns how many results were dropped.
        """
        if step is None:
            step = self._step
        if step < self._step:
            return 0
        gone = self._results.forget_taken()
        self._step = step + 1
        self._counts["committed"] += gone
        self._record(StepCommitted(step=self._step))
        return gone

    def resume(self, committed: int | None = None) -> int:
        """Starts over after a trainer's restart: drop results taken for steps up to `committed`, hand the others back.

        committed: the last step that the trainer's own saved state holds; None: none, or only steps that it had
        committed here. Returns how many results wait to be taken again.
        """
        if committed is not None:
            self.commit_step(committed)
        return self.hand_back()

    def drop_before(self, version: int) -> int:
        """Drop unfinished work put in for versions below `version`, claimed or not. Returns how many items.

        Later results of these items are refused as late.
        """
        held = {number: work for claim in self._claims.by_lease.values() for number, work in claim.items.items()}
        old = {number for number, work in held.items() if work.version < version}
        dropped = [(number, held[number]) for number in sorted(old)]
        for number in old:
            for lease in list(self._claims.holders(number)):
                self.throughput.returned(self._claims.by_lease[lease].node, 1)
                self._void(lease, number)
        pooled = [work for work in self._pool if work.version < version]
        for work in pooled:
            self._pool.remove(self._items.numbers[work.item])
        dropped += [(self._items.numbers[work.item], work) for work in pooled]
        for number, work in dropped:
            self._close(number, work)
        self._counts["dropped"] += len(dropped)
        if dropped:
            self._record(ItemsDropped(items=[number for number, _ in dropped]))
        return len(dropped)

    # ---- the nodes' side -------------------------------------------------------------------------------------------

    def lease(self, node: str, lease_id: str, max_items: int, now: float, version: int | None = None) -> list[WorkItem]:
        """Claim items for `node` under `lease_id`, a fresh secret, oldest first.

        Returns at most `max_items`, and no more than the node's share; perhaps none. version: the policy that the node
        would use, None: unknown. If the node has claimed under this id already, and the answer was lost, it returns the
        items that the lease still holds. Raises `UsageError` for a lease id that another node uses.
        """
        self.expire(now)
        known = self._claims.by_lease.get(lease_id)
        if known is not None:
            if known.node != node:
                raise UsageError("this work lease id is in use; draw another")
            return list(known.items.values())
        self.throughput.asked(node, version, now)
        if not self._fits(self._oldest()):
            return []
        upto = None if self._fits(None) else self._oldest()
        most = min(max_items, MAX_GRANT_ITEMS, self.config.max_per_node - self._claims.count[node])
        pooled, hedged = self._grant_chooser.choose(node, most, MAX_GRANT_BYTES, now, upto)
        for number, _ in pooled:
            self._pool.remove(number)
        if items := pooled + hedged:
            self._claims.add(lease_id, node, items, now)
            self.throughput.leased(node, len(items), now)
            self._count_leased(items, len(hedged))
            self._record(ItemsClaimed(lease=lease_id, node=node, items=[number for number, _ in items]))
        return [work for _, work in items]

    def judge(self, lease_id: str, item: str, size: int, version: int, digest: str, now: float) -> Verdict:
        """Returns the verdict that a result of `size` bytes would get. Changes no state, except that claims expire."""
        self.expire(now)
        return self._judge(lease_id, item, size, version, digest)

    def complete(
        self, lease_id: str, item: str, result: bytes, version: int, digest: str, now: float, tokens: int = 0
    ) -> Verdict:
        """Hand in the result of `item`, made under `version` with `digest`; see `Verdict`. Only "accepted" counts.

        tokens: how many it took, 0: unknown. A result refused for its version or digest returns the item to the pool.
        Raises `UsageError` for a result over 4 MiB.
        """
        if len(result) > MAX_RESULT_BYTES:
            raise UsageError(f"a result of {len(result)} bytes; at most {MAX_RESULT_BYTES} are taken")
        self.expire(now)
        verdict = self._judge(lease_id, item, len(result), version, digest)
        if verdict == "accepted":
            self._accept(lease_id, self._items.numbers[item], result, version, tokens, now)
        else:
            self.refuse(lease_id, item, verdict)
        return verdict

    def refuse(self, lease_id: str, item: str, verdict: Verdict) -> None:
        """Count a refused result, and end its claim if it was made under wrong weights."""
        self._refused[verdict] += 1
        if verdict in ("stale", "unknown_version", "wrong_digest"):
            self._release(lease_id, [self._items.numbers[item]])

    def void(self, lease_id: str) -> list[str]:
        """Returns the items of a work lease that need not be done any more, each once."""
        claim = self._claims.by_lease.get(lease_id)
        if claim is None:
            return []
        void, claim.void = claim.void, []
        return void

    def renew_node(self, node: str, now: float, version: int | None = None) -> None:
        """Renew the claims of a node whose membership was renewed, up to their `max_hold`. version: that it runs."""
        self.expire(now)
        self._claims.renew(node, now)
        if version is not None:
            self.throughput.acknowledged(node, version, now)

    def release_node(self, node: str) -> int:
        """Return the work of a node whose membership ended to the pool. Returns how many items."""
        return sum(self._release(lease) for lease in sorted(self._claims.of_node.get(node, ())))

    def expire(self, now: float) -> int:
        """End the claims that have expired. Returns how many items went back to the pool."""
        return sum(self._release(lease) for lease in self._claims.due(now))

    def next_expiry(self) -> float | None:
        """Returns when the next claim ends unless it is renewed (seconds); None if there is none."""
        return self._claims.next_expiry()

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _judge(self, lease_id: str, item: str, size: int, version: int, digest: str) -> Verdict:
        claim = self._claims.by_lease.get(lease_id)
        if claim is None or self._items.numbers.get(item) not in claim.items:
            return "duplicate" if self._items.completed(item) else "late"
        objection = self._admission.objection(version, digest)
        if objection is not None:
            return objection
        return "accepted" if self._fits(claim.items[self._items.numbers[item]].version, size) else "full"

    def _oldest(self) -> int | None:
        """Returns the oldest version that has unfinished work; None if there is none."""
        return min([version for version, _ in self._pool.versions()] + self._claims.versions(), default=None)

    def _fits(self, version: int | None, size: int = 1) -> bool:
        """Returns whether a result of `size` bytes, of an item put in for `version`, fits among those that wait.

        Half of the bytes are kept for the oldest step: else early results of later steps could fill them all while the
        trainer waits for the last result of this one.
        """
        whole = self.config.max_done_bytes
        return self._results.size + size <= (whole if version == self._oldest() else max(whole // 2, 1))

    def _accept(self, lease_id: str, number: int, result: bytes, version: int, tokens: int, now: float) -> None:
        claim = self._claims.by_lease[lease_id]
        order = self._next_order
        self._next_order += 1
        self.throughput.completed(claim.node, tokens, now - claim.since, now)
        work = self._claims.remove(lease_id, number)
        self._end_claims(number, now)
        self._record(
            ResultAccepted(item=number, order=order, node=claim.node, version=version, tokens=tokens, result=result)
        )
        self._close(number, work)
        self._results.add(
            LedgerResult(
                item=work,
                node=claim.node,
                version=version,
                result=result,
                tokens=tokens,
                number=number,
                order=order,
            )
        )
        self._counts["completed"] += 1
        self._items.remember(work.item)

    def _end_claims(self, number: int, now: float) -> None:
        """End all claims on an item whose result counted."""
        for lease in list(self._claims.holders(number)):
            self.throughput.overtaken(self._claims.by_lease[lease].node, now)
            self._void(lease, number)

    def _void(self, lease: str, number: int) -> None:
        claim = self._claims.by_lease[lease]
        claim.void.append(self._claims.remove(lease, number).item)

    def _release(self, lease_id: str, numbers: list[int] | None = None) -> int:
        """End a lease's claims on these items (None: all). Items that no other lease holds return to the pool.

        Returns how many returned.
        """
        claim: WorkClaim = self._claims.by_lease[lease_id]
        numbers = list(claim.items) if numbers is None else numbers
        back = 0
        for number in numbers:
            work = self._claims.remove(lease_id, number)
            if not self._claims.holders(number):
                self._pool.add(number, work)
                back += 1
        self.throughput.returned(claim.node, len(numbers))
        self._record(ClaimsEnded(lease=lease_id, items=numbers))
        self._grant_chooser.changed()
        self._counts["returned"] += back
        return back

    def _close(self, number: int, work: WorkItem) -> None:
        self._items.close(work)
        self._leased_before.discard(number)

    def _count_leased(self, items: list[tuple[int, WorkItem]], hedged: int) -> None:
        for number, _ in items:
            self._counts["leased"] += 1
            self._counts["re_leased"] += number in self._leased_before
            self._leased_before.add(number)
        self._counts["hedged"] += hedged

    def _restore(self, saved: SavedLedger, now: float) -> None:
        self._admission.restore(saved.versions)
        if self.head is not None:
            self.throughput.admitted(self.head, now)
        self._step, self._items.next, self._next_order = saved.step, saved.next_number, saved.next_order
        for item in saved.remembered:
            self._items.remember(item)
        items = dict(saved.open)
        claims: dict[tuple[str, str], list[tuple[int, WorkItem]]] = {}
        for lease, node, number in saved.claims:
            claims.setdefault((lease, node), []).append((number, items[number]))
        for (lease, node), claimed in claims.items():
            self._claims.add(lease, node, claimed, now)
            self.throughput.leased(node, len(claimed), now)
            self._leased_before.update(number for number, _ in claimed)
        for number, work in saved.open:
            self._items.open(number, work)
            if not self._claims.holders(number):
                self._pool.add(number, work)
        for done in saved.done:
            self._results.add(done)
        self._results.taken = {done.order: done for done in saved.taken}
