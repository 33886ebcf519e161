"""The ledger: who leases which rollout work, and what came back, each result exactly once.

Pure: time and ids are arguments; `now` is in seconds on a clock that does not go back. Its contract:
docs/guides/ledger.md.

    put ──▶ pooled ──lease──▶ claimed ──complete──▶ done ──take──▶ taken ──commit_step──▶ gone
              ▲                  │                    ▲              │
              └── claim ended ◀──┘                    └─ hand_back ◀─┘   the trainer's step was not committed

Two limits end a claim. `claim_ttl` ends it unless the node's membership is renewed (`renew_node`); `max_hold` ends it
in any case, so that a node that lives but is stuck does not keep work for ever. A result counts only while its claim
lives: what comes later is refused, even if the item is still in the pool, so that an item cannot come back twice.
Two nodes may hold an item at a time (`p2psync.trainer.ledger.allotment`); the first result that is accepted ends both
claims.

Every change of state is told to `record` as it happens, and `Ledger(saved=…)` begins where these changes led to.
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
from p2psync.trainer.ledger.admission import Admission
from p2psync.trainer.ledger.claims import Claim, Claims
from p2psync.trainer.ledger.config import Counts, LedgerConfig
from p2psync.trainer.ledger.grants import Granting
from p2psync.trainer.ledger.items import Items
from p2psync.trainer.ledger.pool import Pool
from p2psync.trainer.ledger.records import (
    Accepted,
    Admitted,
    Claimed,
    Done,
    Dropped,
    HandedBack,
    HandedOut,
    Put,
    Recorder,
    Saved,
    StepCommitted,
    Unclaimed,
    keep_nothing,
)
from p2psync.trainer.ledger.results import Results
from p2psync.trainer.ledger.throughput import Pace

__all__ = ["Counts", "Done", "Ledger", "LedgerConfig"]


class Ledger:
    """The account of rollout work. Every operation is O(log n) per item it touches, and a lease O(nodes) besides."""

    def __init__(
        self,
        config: LedgerConfig | None = None,
        *,
        record: Recorder = keep_nothing,
        saved: Saved | None = None,
        now: float = 0.0,
    ) -> None:
        """record: told of every change. saved: a state to begin with; its claims last from `now` as if just made. See
        `resume`."""
        self.config = config or LedgerConfig()
        self.pace = Pace(self.config.max_staleness, self.config.max_rate)
        self._record = record
        self._admission = Admission(self.config.max_staleness)
        self._pool = Pool()
        self._claims = Claims(self.config.claim_ttl, self.config.max_hold)
        self._granting = Granting(self.config, self._pool, self._claims, self.pace)
        self._items = Items(self.config)
        self._results = Results()
        self._leased_before: set[int] = set()
        self._next_order = 0
        self._step = 0
        self._counts: Counter[str] = Counter()
        self._refused: Counter[Verdict] = Counter()
        if saved is not None:
            self._restore(saved, now)

    # ---- what there is ---------------------------------------------------------------------------------------------

    @property
    def head(self) -> int | None:
        """The newest version, None before the first."""
        return self._admission.head

    @property
    def pooled(self) -> int:
        """Items that nobody has claimed."""
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
    def counts(self) -> Counts:
        """A copy of all counters."""
        c = self._counts
        return Counts(
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
            self.pace.admitted(version, now)
            self._granting.changed()
            self._record(Admitted(version=version, digest=digest, oldest=self._admission.oldest))

    def put(self, version: int, items: Iterable[tuple[str, bytes]], *, skip_known: bool = False) -> int:
        """Put in work for `version`: ids never used before, and payloads. All or nothing; returns how many.

        skip_known: pass over ids that were put in before, for a trainer that starts anew and puts in the same. Raises
        `UsageError` for an id that was used or is over 128 characters, a payload over 1 MiB, or a full ledger.
        """
        new = self._items.new(version, items, self.done + self.taken, skip_known=skip_known)
        first = self._items.next
        self._items.next += len(new)
        self._record(Put(first=first, items=new))
        for number, work in enumerate(new, first):
            self._items.open(number, work)
            self._pool.add(number, work)
        self._granting.changed()
        self._counts["put"] += len(new)
        return len(new)

    def take(self, max_items: int, version: int | None = None) -> list[Done]:
        """Take up to `max_items` results out for the step in hand, oldest first, and so make room.

        version: only of items that were put in for it. They are the caller's; should its step come to nothing, they
        can be taken again after `hand_back`, until `commit_step`.
        """
        taken = self._results.take(max_items, version)
        if taken:
            self._record(HandedOut(step=self._step, items=[done.number for done in taken]))
        return taken

    def hand_back(self, results: Iterable[Done] | None = None) -> int:
        """These results (None: all) of what was taken for the step in hand wait to be taken again.

        Those that are gone already are passed over. Returns how many there were.
        """
        back = self._results.hand_back(results)
        if back:
            self._record(HandedBack(items=[done.number for done in back]))
        return len(back)

    def commit_step(self, step: int | None = None) -> int:
        """The trainer's step (None: the one in hand) is durable on its side: what was taken for it is gone.

        Does nothing for a step that was committed before. Returns how many results are gone.
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
        """For a trainer that starts anew: what it took for steps up to `committed` is gone, the rest comes again.

        committed: the last step that its own saved state holds; None: none, or none that was not told by `commit_step`.
        Returns how many results wait to be taken again.
        """
        if committed is not None:
            self.commit_step(committed)
        return self.hand_back()

    def drop_before(self, version: int) -> int:
        """Give up unfinished work put in for versions below `version`, claimed or not. Returns how many items.

        Results of it that come later are refused as late.
        """
        held = {number: work for claim in self._claims.by_lease.values() for number, work in claim.items.items()}
        old = {number for number, work in held.items() if work.version < version}
        dropped = [(number, held[number]) for number in sorted(old)]
        for number in old:
            for lease in list(self._claims.holders(number)):
                self.pace.returned(self._claims.by_lease[lease].node, 1)
                self._void(lease, number)
        pooled = [work for work in self._pool if work.version < version]
        for work in pooled:
            self._pool.remove(self._items.numbers[work.item])
        dropped += [(self._items.numbers[work.item], work) for work in pooled]
        for number, work in dropped:
            self._close(number, work)
        self._counts["dropped"] += len(dropped)
        if dropped:
            self._record(Dropped(items=[number for number, _ in dropped]))
        return len(dropped)

    # ---- the nodes' side -------------------------------------------------------------------------------------------

    def lease(self, node: str, lease_id: str, max_items: int, now: float, version: int | None = None) -> list[WorkItem]:
        """Claim items for `node` under `lease_id`, a fresh secret, oldest first: at most `max_items`, and no more than
        it should have; perhaps none.

        version: the policy that the node would use, None: not told. If the node has claimed under this id already,
        and the answer was lost, what it still holds is given again. Raises `UsageError` for a lease id that another
        node uses.
        """
        self.expire(now)
        known = self._claims.by_lease.get(lease_id)
        if known is not None:
            if known.node != node:
                raise UsageError("this work lease id is in use; draw another")
            return list(known.items.values())
        self.pace.asked(node, version, now)
        if not self._room(self._oldest()):
            return []
        upto = None if self._room(None) else self._oldest()
        most = min(max_items, MAX_GRANT_ITEMS, self.config.max_per_node - self._claims.count[node])
        pooled, hedged = self._granting.choose(node, most, MAX_GRANT_BYTES, now, upto)
        for number, _ in pooled:
            self._pool.remove(number)
        if items := pooled + hedged:
            self._claims.add(lease_id, node, items, now)
            self.pace.leased(node, len(items), now)
            self._count_leased(items, len(hedged))
            self._record(Claimed(lease=lease_id, node=node, items=[number for number, _ in items]))
        return [work for _, work in items]

    def judge(self, lease_id: str, item: str, size: int, version: int, digest: str, now: float) -> Verdict:
        """What would become of a result of `size` bytes. Changes nothing but what time does."""
        self.expire(now)
        return self._judge(lease_id, item, size, version, digest)

    def complete(
        self, lease_id: str, item: str, result: bytes, version: int, digest: str, now: float, tokens: int = 0
    ) -> Verdict:
        """Offer the result of `item`, made under `version` with `digest`; see `Verdict`. Only "accepted" counts.

        tokens: how many it took, 0: not told. A result refused for its version or digest returns the item to the pool.
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
        """Count a refused result; one that was made under wrong weights ends its claim."""
        self._refused[verdict] += 1
        if verdict in ("stale", "unknown_version", "wrong_digest"):
            self._release(lease_id, [self._items.numbers[item]])

    def void(self, lease_id: str) -> list[str]:
        """Items of a work lease that need not be done any more, told once."""
        claim = self._claims.by_lease.get(lease_id)
        if claim is None:
            return []
        void, claim.void = claim.void, []
        return void

    def renew_node(self, node: str, now: float, version: int | None = None) -> None:
        """The node's membership was renewed: so are its claims, up to their `max_hold`. version: what it runs."""
        self.expire(now)
        self._claims.renew(node, now)
        if version is not None:
            self.pace.acknowledged(node, version, now)

    def release_node(self, node: str) -> int:
        """The node's membership ended: its work returns to the pool. Returns how many items."""
        return sum(self._release(lease) for lease in sorted(self._claims.of_node.get(node, ())))

    def expire(self, now: float) -> int:
        """End claims whose time is up. Returns how many items went back to the pool."""
        return sum(self._release(lease) for lease in self._claims.due(now))

    def next_expiry(self) -> float | None:
        """When the next claim ends unless it is renewed (seconds), None if there is none."""
        return self._claims.next_expiry()

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _judge(self, lease_id: str, item: str, size: int, version: int, digest: str) -> Verdict:
        claim = self._claims.by_lease.get(lease_id)
        if claim is None or self._items.numbers.get(item) not in claim.items:
            return "duplicate" if self._items.completed(item) else "late"
        objection = self._admission.objection(version, digest)
        if objection is not None:
            return objection
        return "accepted" if self._room(claim.items[self._items.numbers[item]].version, size) else "full"

    def _oldest(self) -> int | None:
        """The oldest version that there is unfinished work for."""
        return min([version for version, _ in self._pool.versions()] + self._claims.versions(), default=None)

    def _room(self, version: int | None, size: int = 1) -> bool:
        """Whether a result of an item put in for `version` finds room.

        Half of all room is kept for the oldest step: else results of later ones, which come early, could fill it all
        while the trainer waits for the last of this one.
        """
        whole = self.config.max_done_bytes
        return self._results.size + size <= (whole if version == self._oldest() else max(whole // 2, 1))

    def _accept(self, lease_id: str, number: int, result: bytes, version: int, tokens: int, now: float) -> None:
        claim = self._claims.by_lease[lease_id]
        order = self._next_order
        self._next_order += 1
        self.pace.completed(claim.node, tokens, now - claim.since, now)
        work = self._claims.remove(lease_id, number)
        self._end_claims(number, now)
        self._record(Accepted(item=number, order=order, node=claim.node, version=version, tokens=tokens, result=result))
        self._close(number, work)
        self._results.add(
            Done(
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
        """Nobody needs to work on an item any more."""
        for lease in list(self._claims.holders(number)):
            self.pace.overtaken(self._claims.by_lease[lease].node, now)
            self._void(lease, number)

    def _void(self, lease: str, number: int) -> None:
        claim = self._claims.by_lease[lease]
        claim.void.append(self._claims.remove(lease, number).item)

    def _release(self, lease_id: str, numbers: list[int] | None = None) -> int:
        """End a lease's claims on these items (None: all); what nobody else holds returns to the pool."""
        claim: Claim = self._claims.by_lease[lease_id]
        numbers = list(claim.items) if numbers is None else numbers
        back = 0
        for number in numbers:
            work = self._claims.remove(lease_id, number)
            if not self._claims.holders(number):
                self._pool.add(number, work)
                back += 1
        self.pace.returned(claim.node, len(numbers))
        self._record(Unclaimed(lease=lease_id, items=numbers))
        self._granting.changed()
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

    def _restore(self, saved: Saved, now: float) -> None:
        self._admission.restore(saved.versions)
        if self.head is not None:
            self.pace.admitted(self.head, now)
        self._step, self._items.next, self._next_order = saved.step, saved.next_number, saved.next_order
        for item in saved.remembered:
            self._items.remember(item)
        items = dict(saved.open)
        claims: dict[tuple[str, str], list[tuple[int, WorkItem]]] = {}
        for lease, node, number in saved.claims:
            claims.setdefault((lease, node), []).append((number, items[number]))
        for (lease, node), claimed in claims.items():
            self._claims.add(lease, node, claimed, now)
            self.pace.leased(node, len(claimed), now)
            self._leased_before.update(number for number, _ in claimed)
        for number, work in saved.open:
            self._items.open(number, work)
            if not self._claims.holders(number):
                self._pool.add(number, work)
        for done in saved.done:
            self._results.add(done)
        self._results.taken = {done.order: done for done in saved.taken}
