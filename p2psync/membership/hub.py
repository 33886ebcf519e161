"""The hub's core: members, the claim on the run, the lineage, and the one view of them that every node sees.

Theory of operation. Pure: whoever drives it gives the time (`now`: seconds on a clock that does not go back) and the
secrets (lease ids, nonces, tokens), and calls `expire(now)` after each operation and at `next_expiry()`. `expire`
returns each lease that has ended since, whatever ended it, so that its plan and its work can be taken back at one
place. The driver wakes waiting nodes when `revision` has risen.

The revision rises at each change of the view that a node must act on: who is a member and where, run and epoch,
lineage, plan. The versions that members run are shown too, but raise nothing: a thousand acknowledgements of one
commit wake nobody.

A driver that has a `Planner` calls `begin_plan` at `next_plan()`, and says `plan_made` or `plan_failed`; without one
there is no plan. See `planning`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from p2psync.errors import FormatError, HubError, LineageFullError, ReplayError, UsageError
from p2psync.membership.changes import ChangeLog
from p2psync.membership.checks import (
    check_beside,
    check_info,
    check_remark,
    check_running,
    is_hex,
)
from p2psync.membership.fencing import Claimant, Fence
from p2psync.membership.leases import MAX_MEMBERS, Ended, Held, LeaseTable, running
from p2psync.membership.lineage import MAX_MANIFEST_BYTES, MAX_MANIFESTS, Entry, Lineage, entry_of
from p2psync.membership.planning import PlanBook, PlanKeeper, PlanTask
from p2psync.membership.records import (
    DEFAULT_TTL,
    Announce,
    Announced,
    Challenge,
    Claim,
    Claimed,
    Join,
    Lease,
    Leave,
    Measures,
    Member,
    MemberAge,
    Renew,
    Status,
    View,
)
from p2psync.membership.renewal import Told, take
from p2psync.membership.runs import run_name
from p2psync.membership.suspicion import Doubts
from p2psync.protocol.manifest import open_signed
from p2psync.protocol.plan import NodePlan, outside

#: Among so many members it is looked, at each acknowledgement, whether nothing is on its way any more; among more,
#: plans are not changed for that.
_FEW = 64


@dataclass(frozen=True, kw_only=True)
class HubConfig:
    """Settings of a hub, one line for each: meaning, unit, default.

    trusted: raw public keys (32 bytes each) that may claim the run and sign manifests [required]
    ttl: seconds of a lease [10]
    embedded: the hub is part of a trainer, and takes no other [no]
    max_members: nodes with a lease at once [16384]
    max_nonces: challenges that are out at once [1024]
    nonce_ttl: seconds for which a challenge can be answered [60]
    max_manifests: manifests of the lineage [4096]
    max_manifest_bytes: bytes of these manifests together [1 GiB]
    inline_bytes: bytes up to which a manifest rides in the view of a node that knows nothing yet [64 KiB]
    inline_total: bytes of all manifests in one such view [512 KiB]
    news_most: manifests that ride in the view of a node that has not seen them yet [8]
    news_bytes: bytes of these together [48 KiB]
    """

    trusted: frozenset[bytes]
    ttl: float = DEFAULT_TTL
    embedded: bool = False
    max_members: int = MAX_MEMBERS
    max_nonces: int = 1024
    nonce_ttl: float = 60.0
    max_manifests: int = MAX_MANIFESTS
    max_manifest_bytes: int = MAX_MANIFEST_BYTES
    inline_bytes: int = 64 << 10
    inline_total: int = 512 << 10
    news_most: int = 8
    news_bytes: int = 48 << 10

    def __post_init__(self) -> None:
        if any(len(key) != 32 for key in self.trusted):
            raise UsageError("a trusted key is not 32 bytes; see `p2psync keys new FILE`")
        if min(self.max_nonces, self.max_manifests, self.max_manifest_bytes) <= 0 or self.nonce_ttl <= 0:
            raise UsageError("the hub's bounds must be above 0")


class HubCore:
    """One run's control plane. `instance`: a fresh random string for each start, so that clients notice a restart."""

    def __init__(self, config: HubConfig, *, instance: str) -> None:
        self.config = config
        self.instance = instance
        self._revision = 0
        self._news = 0
        self._acknowledged = 0
        self._leases = LeaseTable(config.ttl, config.max_members)
        self._doubts = Doubts()
        self._fence = Fence(config.trusted, config.max_nonces, config.nonce_ttl, embedded=config.embedded)
        #: Until then the claimant holds the hub without a lease: it has claimed and not joined yet (seconds).
        self._held_until = 0.0
        self._lineage = Lineage(config.max_manifests, config.max_manifest_bytes)
        self._planning = PlanKeeper()
        self._ended: list[Ended] = []
        self._nodes_changed = ChangeLog()
        self._manifests_changed = ChangeLog()
        self._remark = ""
        self._beside: frozenset[str] = frozenset()

    @property
    def revision(self) -> int:
        """Of the view; rises at each change that a node must act on."""
        return self._revision

    @property
    def news(self) -> int:
        """The revision at which claim or lineage last changed: what nodes wait for most."""
        return self._news

    @property
    def acknowledged(self) -> int:
        """Rises whenever some member runs another version than before."""
        return self._acknowledged

    @property
    def claimant(self) -> Claimant | None:
        """The trainer that holds the run, None before the first claim."""
        return self._fence.claimant

    @property
    def head(self) -> int | None:
        """See `View.head`."""
        return self._lineage.head

    @property
    def announced(self) -> int:
        """Manifests in the lineage."""
        return len(self._lineage)

    def join(self, request: Join, *, lease: str, now: float, seen_host: str = "") -> Lease:
        """Make a node a member under `lease`, a fresh secret; an earlier lease of the node ends.

        seen_host: the address the request came from, for a node that does not name one. Raises `FormatError` for data
        out of bounds, `HubError` when the hub is full.
        """
        info = request.info
        if not info.host:
            info = msgspec.structs.replace(info, host=seen_host)
        check_info(info)
        check_running(request.version, request.digest, request.run, request.epoch)
        self._sweep(now)
        earlier = self._leases.of_node(info.node)
        member = Member(info=info, version=request.version, digest=request.digest, run=request.run, epoch=request.epoch)
        ended = self._leases.join(lease, member, now)
        if ended is not None:
            self._ended.append(ended)
            self.is_there(ended.lease, now)
        if earlier is None or earlier.info != info:
            self._members_changed([info.node], now)
        elif earlier != member:
            self._acknowledged += 1
        return self.lease(lease)

    def renew(self, request: Renew | Told, *, now: float) -> Lease:
        """Renew a lease, and note of what its holder runs and measured as much as is within bounds.

        Raises `LeaseError` if it has ended, and nothing else: what cannot be taken is named in `Lease.refused`.
        """
        told = request if isinstance(request, Told) else take(request)
        self._sweep(now)
        before = self._leases.holder(told.lease, now).member
        version, digest, run, epoch = told.running or running(before)
        fetch_rate = before.fetch_rate if told.fetch_rate is None else told.fetch_rate
        after = self._leases.renew(
            *(told.lease, version, digest, now, fetch_rate, told.measures),
            run=run,
            epoch=epoch,
            waits=told.waits,
            rejected=told.rejected,
        )
        self.is_there(told.lease, now)
        if told.measures is not None:
            self._planning.measured(after.info.node, told.measures, now)
        if running(after) != running(before):
            self._acknowledged += 1
            if len(self) <= _FEW and self._all_run_head(self._leases.members()):
                self._planning.settled(now)
        return self.lease(told.lease, told.refusal)

    def leave(self, request: Leave, *, now: float) -> None:
        """End a lease. Raises `LeaseError` if it has ended before."""
        self._sweep(now)
        ended = self._leases.leave(request.lease, now)
        self._ended.append(ended)
        if self.claimant is not None and ended.member.info.node == self.claimant.node:
            self._held_until = now
        self._doubts.heard(request.lease)
        self._members_changed([ended.member.info.node], now, gone=True)

    def is_there(self, lease: str, now: float) -> bool:
        """Who holds `lease`, if anybody does, is heard of. Returns whether it was missing, so that a plan is due."""
        was_missing = self._doubts.heard(lease)
        if was_missing:
            self._planning.members_changed(len(self), now)
        return was_missing

    def broke_off(self, lease: str, now: float) -> None:
        """A poll under this lease ended before it was answered. If its holder does not come back soon, plans are made
        without it, long before the lease ends: it was killed, most likely."""
        if self._leases.is_held(lease):
            self._doubts.broke_off(lease, now)

    def lease(self, lease: str, refused: str = "") -> Lease:
        """What a holder of `lease` is told: its length, and the revision as it is now. refused: see `Lease`."""
        return Lease(lease=lease, ttl=self.config.ttl, revision=self._revision, refused=refused)

    def holder(self, lease: str, now: float) -> Held:
        """Who holds `lease`. Raises `LeaseError` if it has ended or never was."""
        return self._leases.holder(lease, now)

    def expire(self, now: float) -> list[Ended]:
        """End leases whose time is up, and return all that ended since the last call: expired, left or replaced."""
        self._sweep(now)
        ended, self._ended = self._ended, []
        return ended

    def next_expiry(self) -> float | None:
        """When `expire` is due next (seconds on the clock of `now`), None while there are no members."""
        times = self._leases.next_expiry(), self._doubts.next()
        return min((time for time in times if time is not None), default=None)

    def challenge(self, *, nonce: str, now: float) -> Challenge:
        """Give out `nonce`, a fresh random string, for one claim."""
        self._fence.challenge(nonce, now)
        return Challenge(nonce=nonce, ttl=self.config.nonce_ttl)

    def own_challenge(self, *, nonce: str, now: float) -> None:
        """The same for the trainer that this hub is part of: never to be given to anybody outside the process."""
        self._fence.challenge(nonce, now, own=True)

    def claim(self, request: Claim, *, token: str, now: float, seen_host: str = "") -> Claimed:
        """Give the run to a trainer under `token`, a fresh secret; whoever held it is fenced.

        seen_host: the address the request came from. Raises `FormatError`, `TrustError` or `FencedError`: see
        `Fence.claim`. A new run begins a new lineage.
        """
        self._sweep(now)
        earlier = self._fence.claimant
        changed = self._fence.claim(request, token, now, held=self._holder(request, now), host=seen_host)
        self._held_until = now + self.config.ttl
        if earlier is not None and earlier.run != request.run:
            self._lineage.clear()
            self._manifests_changed.forget(self._revision + 1)
            self._remark = ""
        if changed:
            self._tell()
        if earlier is None or earlier.node != request.node:
            self._beside = frozenset()
            self._planning.members_changed(len(self), now)
        return Claimed(token=token, epoch=request.epoch)

    def holds_claim(self, token: str) -> bool:
        """Whether `token` is the live claimant's."""
        return self._fence.is_current(token)

    def announce(self, request: Announce, *, now: float) -> Announced:
        """Change the lineage, all or nothing; what is known already is passed over.

        Raises `FencedError` or `LeaseError` for the token, `TrustError` or `FormatError` for a manifest, `ReplayError`
        for one of another run, `UsageError` for one of an epoch above the claim, `BaseMismatchError` for one that
        contradicts the lineage, `LineageFullError` over the bounds.
        """
        claimant = self._fence.check(request.token)
        limit = self.config.max_manifests
        if len(request.manifests) > limit or len(request.retire) > limit:
            raise LineageFullError(f"more than {limit} manifests in one announcement; announce fewer")
        if not all(is_hex(manifest_id, 64) for manifest_id in request.retire):
            raise FormatError("a manifest's id is 64 lower-case hex digits")
        check_remark(request.remark)
        if request.beside is not None:
            check_beside(request.beside)
        entries = [self._open(data, claimant) for data in request.manifests]
        changes = self._lineage.update(entries, request.retire)
        if changes:
            self._tell()
            for manifest_id in changes:
                self._manifests_changed.add(self._revision, manifest_id)
            self._planning.announced(self._lineage.payload, now)
        self._remark = request.remark or self._remark
        if request.beside is not None and self._beside != set(request.beside):
            self._beside = frozenset(request.beside)
            self._planning.members_changed(len(self), 0.0)  # at once
        return Announced(revision=self._revision)

    def manifest(self, manifest_id: str) -> bytes | None:
        """The signed manifest of this id (hex), None if it is not in the lineage: never announced, or retired."""
        return self._lineage.get(manifest_id)

    def view(self, known: int = -1) -> View:
        """Everything at this revision; O(members log members + announcements).

        known: the last revision that the asker has seen, which decides what is inlined; -1: none. See `HubConfig`.
        """
        config = self.config
        if known < 0:
            return self._view(config.max_manifests, config.inline_bytes, config.inline_total)
        return self._view(self.news_after(known), config.news_bytes, config.news_bytes)

    def changes(self, known: int) -> View | None:
        """What is new at this revision to one who knows an earlier one of this instance; None where that must be told
        by a whole view. Versions that members run are those of when they came or changed."""
        nodes, manifests = self._nodes_changed.since(known), self._manifests_changed.since(known)
        if not 0 <= known <= self._revision or nodes is None or manifests is None:
            return None
        found = [self._leases.of_node(node) for node in sorted(nodes)]
        members = [member for member in found if member is not None]
        whole = self._view(self.news_after(known), self.config.news_bytes, self.config.news_bytes, members)
        return msgspec.structs.replace(
            whole,
            lineage=[a for a in whole.lineage if a.id in manifests],
            since=known,
            gone=sorted(nodes - {member.info.node for member in members}),
            retired=sorted(id for id in manifests if id not in self._lineage),
        )

    def news_after(self, known: int) -> int:
        """How many manifests are inlined at most for one who knows this revision: who gets as many gets the same."""
        return self._lineage.newer(known, self.config.news_most)

    def measures(self) -> dict[str, Measures]:
        """What members last told of their network, by node."""
        return {held.member.info.node: held.measures for held in self._leases.held() if held.measures is not None}

    def next_plan(self) -> float:
        """When `begin_plan` is due next (seconds); inf while none is wanted."""
        return self._planning.due

    def begin_plan(self, now: float) -> PlanTask | None:
        """What a plan is to be made from now; None if none is due. Answer with `plan_made` or `plan_failed`."""
        if now < self._planning.due:
            return None
        self._sweep(now)
        trainer = None if self._fence.claimant is None else self._fence.claimant.node
        there = [held.member for held in self._leases.held() if held.lease not in self._doubts]
        there.sort(key=lambda member: member.info.node)
        return self._planning.begin(trainer, there, self.measures(), now, self._beside, self._all_run_head(there))

    def plan_made(self, book: PlanBook, now: float) -> None:
        """The plan that was begun: shown from now on, if it is another one than before."""
        if self._planning.made(book, now):
            self._revision += 1

    def plan_failed(self, message: str, now: float) -> bool:
        """The plan that was begun cannot be made; the last one stays. True if people have not been told of it yet."""
        return self._planning.failed(message, now)

    def node_plan(self, lease: str, now: float) -> NodePlan:
        """The part in the plan of who holds `lease`; see `outside` for one that the plan does not know.

        Raises `LeaseError` if the lease has ended, `HubError` before the first plan.
        """
        node = self._leases.holder(lease, now).member.info.node
        book = self._planning.book
        if book is None:
            raise HubError("there is no plan yet; go on without, and look at the view")
        return book.node_plan(node) or outside(book.revision)

    def status(self, now: float, started: float) -> Status:
        """The view and everyone's age at `now`, for people. started: when the hub started, on the clock of `now`."""
        ages = [_age(held, now) for held in self._leases.held()]
        ages.sort(key=lambda age: age.node)
        return Status(view=self._view(0, 0, 0), uptime=now - started, ages=ages, remark=self._remark)

    def __len__(self) -> int:
        return len(self._leases)

    def _view(self, newest: int, inline_bytes: int, inline_total: int, members: list[Member] | None = None) -> View:
        claimant = self._fence.claimant
        return View(
            instance=self.instance,
            revision=self._revision,
            run="" if claimant is None else claimant.run,
            epoch=0 if claimant is None else claimant.epoch,
            claim="" if claimant is None else claimant.line(),
            head=self._lineage.head,
            plan=self._planning.revision,
            members=self._leases.members() if members is None else members,
            lineage=self._lineage.announcements(newest, inline_bytes, inline_total),
        )

    def _holder(self, request: Claim, now: float) -> str:
        """Who holds this hub, in words; "" if nobody does.

        That is the claimant while its lease lasts, unless it is the same node, whose process before has ended; and
        before anybody has claimed, a trainer of another run that is here: this hub was started anew, and that trainer
        is about to claim again.
        """
        claimant = self._fence.claimant
        if claimant is not None and claimant.node == request.node:
            return ""
        if claimant is not None:
            here = self._leases.of_node(claimant.node) is not None or now < self._held_until
            since = f"{max(0.0, now - claimant.at):.0f} s ago"
            return f"{claimant.line()}, {since}, and is at work" if here else ""
        others = (m for m in self._leases.members() if m.info.role == "trainer" and m.info.node != request.node)
        at_work = next((m for m in others if m.run not in ("", request.run)), None)
        if at_work is not None:
            where = f"{at_work.info.node[:8]} at {at_work.info.host}"
            return f"trainer {where} is at work on {run_name(at_work.run)}, and claims it again soon"
        return ""

    def _tell(self) -> None:
        self._revision += 1
        self._news = self._revision

    def _sweep(self, now: float) -> None:
        expired = self._leases.expire(now)
        self._ended.extend(expired)
        self._doubts.ended(ended.lease for ended in expired)
        if expired:
            self._members_changed([ended.member.info.node for ended in expired], now, gone=True)
        if self._doubts.sweep(now):
            self._planning.members_changed(len(self), now, gone=True)

    def _members_changed(self, nodes: Sequence[str], now: float, *, gone: bool = False) -> None:
        for node in nodes:
            self._revision += 1
            self._nodes_changed.add(self._revision, node)
        self._planning.members_changed(len(self), now, gone=gone)

    def _all_run_head(self, members: Iterable[Member]) -> bool:
        """Whether nothing is on its way to any of these."""
        head, claimant = self._lineage.head, self._fence.claimant
        trainer = claimant and claimant.node
        return head is None or all(
            member.version == head and member.run in ("", claimant.run if claimant is not None else "")
            for member in members
            if member.info.role != "trainer" and member.info.node != trainer
        )

    def _open(self, data: bytes, claimant: Claimant) -> Entry:
        manifest, signed = open_signed(data, self.config.trusted)
        if manifest.run != claimant.run:
            raise ReplayError(
                f"a manifest of run {manifest.run} was announced to run {claimant.run}; start a new store for a new run"
            )
        if manifest.epoch > claimant.epoch:
            raise UsageError(
                f"a manifest of epoch {manifest.epoch} under a claim of epoch {claimant.epoch}; claim that epoch first"
            )
        return entry_of(manifest, signed.id, data, self._revision + 1)


def _age(held: Held, now: float) -> MemberAge:
    told = held.measures if held.measures is not None else Measures()
    return MemberAge(
        node=held.member.info.node,
        joined=now - held.joined,
        heard=now - held.heard,
        up=told.up,
        down=told.down,
        waits=held.waits,
    )
