"""The hub's core: members, the claim on the run, the lineage, and the one view of them that every node sees.

Theory of operation. Pure: the driver passes the time (`now`: seconds on a monotonic clock) and the secrets (lease ids,
nonces, tokens), and calls `expire(now)` after each operation and at `next_expiry()`. `expire` returns each lease that
ended since its last call, whatever ended it, so that one place takes back its plan and its work. The driver wakes
waiting nodes when `revision` has risen.

The revision rises at each change of the view that a node must act on: members and their addresses, run and epoch,
lineage, plan. The view also shows the versions that members run, but they do not raise the revision: a thousand
acknowledgements of one commit wake nobody.

A driver with a `Planner` calls `begin_plan` at `next_plan()` and answers with `plan_made` or `plan_failed`; without a
planner there is no plan. See `planning`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from p2psync.errors import FormatError, HubError, LineageFullError, ReplayError, UsageError
from p2psync.membership.changes import ChangeLog
from p2psync.membership.checks import (
    check_co_publishers,
    check_info,
    check_note,
    check_running,
    is_hex,
)
from p2psync.membership.fencing import Claimant, Fence
from p2psync.membership.leases import MAX_MEMBERS, EndedLease, HeldLease, LeaseTable, running
from p2psync.membership.lineage import MAX_MANIFEST_BYTES, MAX_MANIFESTS, Lineage, LineageEntry, lineage_entry
from p2psync.membership.planning import PlanResult, PlanScheduler, PlanTask
from p2psync.membership.records import (
    DEFAULT_TTL_SECONDS,
    Announce,
    Announced,
    Challenge,
    Claimed,
    Join,
    Lease,
    Leave,
    Member,
    MemberAge,
    NodeStatistics,
    Renew,
    RunClaim,
    Status,
    View,
)
from p2psync.membership.renewal import ParsedRenewal, check_renewal
from p2psync.membership.runs import run_name
from p2psync.membership.suspicion import SuspicionTable
from p2psync.protocol.manifest import open_signed
from p2psync.protocol.plan import NodePlan, unplanned

#: Up to this many members, each acknowledgement checks whether all run the newest version, so that plans may change;
#: with more members that check would cost more than such plans gain.
_SETTLED_MAX_MEMBERS = 64


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
    new_manifests_max: manifests that ride in the view of a node that has not seen them yet [8]
    new_manifests_bytes: bytes of these together [48 KiB]
    """

    trusted: frozenset[bytes]
    ttl: float = DEFAULT_TTL_SECONDS
    embedded: bool = False
    max_members: int = MAX_MEMBERS
    max_nonces: int = 1024
    nonce_ttl: float = 60.0
    max_manifests: int = MAX_MANIFESTS
    max_manifest_bytes: int = MAX_MANIFEST_BYTES
    inline_bytes: int = 64 << 10
    inline_total: int = 512 << 10
    new_manifests_max: int = 8
    new_manifests_bytes: int = 48 << 10

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
        self._urgent_revision = 0
        self._acknowledgements = 0
        self._leases = LeaseTable(config.ttl, config.max_members)
        self._suspicion = SuspicionTable()
        self._fence = Fence(config.trusted, config.max_nonces, config.nonce_ttl, embedded=config.embedded)
        #: Until then (seconds) the claimant holds the hub without a lease: it has claimed and not joined yet.
        self._held_until = 0.0
        self._lineage = Lineage(config.max_manifests, config.max_manifest_bytes)
        self._planning = PlanScheduler()
        self._ended: list[EndedLease] = []
        self._nodes_changed = ChangeLog()
        self._manifests_changed = ChangeLog()
        self._note = ""
        self._co_publishers: frozenset[str] = frozenset()

    @property
    def revision(self) -> int:
        """The view's revision; rises at each change that a node must act on."""
        return self._revision

    @property
    def urgent_revision(self) -> int:
        """The revision at which claim or lineage last changed: such changes wake waiting nodes at once."""
        return self._urgent_revision

    @property
    def acknowledgements(self) -> int:
        """Counts how often a member has reported another version than before."""
        return self._acknowledgements

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
        """Number of manifests in the lineage."""
        return len(self._lineage)

    def join(self, request: Join, *, lease: str, now: float, seen_host: str = "") -> Lease:
        """Makes a node a member under `lease`, a fresh secret; an earlier lease of the node ends.

        seen_host: the address that the request came from, for a node that does not name one. Raises `FormatError` for
        data out of bounds, `HubError` when the hub is full.
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
            self.heard_from(ended.lease, now)
        if earlier is None or earlier.info != info:
            self._members_changed([info.node], now)
        elif earlier != member:
            self._acknowledgements += 1
        return self.lease(lease)

    def renew(self, request: Renew | ParsedRenewal, *, now: float) -> Lease:
        """Renews a lease, and records those reported figures that are within bounds.

        Raises `LeaseError` if the lease has ended, and nothing else: `Lease.refused` names what was dropped.
        """
        renewal = request if isinstance(request, ParsedRenewal) else check_renewal(request)
        self._sweep(now)
        before = self._leases.holder(renewal.lease, now).member
        version, digest, run, epoch = renewal.running or running(before)
        fetch_rate = before.fetch_rate if renewal.fetch_rate is None else renewal.fetch_rate
        after = self._leases.renew(
            *(renewal.lease, version, digest, now, fetch_rate, renewal.statistics),
            run=run,
            epoch=epoch,
            waits=renewal.waits,
            rejected=renewal.rejected,
        )
        self.heard_from(renewal.lease, now)
        if renewal.statistics is not None:
            self._planning.measured(after.info.node, renewal.statistics, now)
        if running(after) != running(before):
            self._acknowledgements += 1
            if len(self) <= _SETTLED_MAX_MEMBERS and self._all_run_head(self._leases.members()):
                self._planning.settled(now)
        return self.lease(renewal.lease, renewal.refusal)

    def leave(self, request: Leave, *, now: float) -> None:
        """Ends a lease. Raises `LeaseError` if it has ended before."""
        self._sweep(now)
        ended = self._leases.leave(request.lease, now)
        self._ended.append(ended)
        if self.claimant is not None and ended.member.info.node == self.claimant.node:
            self._held_until = now
        self._suspicion.refute(request.lease)
        self._members_changed([ended.member.info.node], now, gone=True)

    def heard_from(self, lease: str, now: float) -> bool:
        """Clears suspicion of the holder of `lease`. Returns whether it was missing, so that a plan is due."""
        was_missing = self._suspicion.refute(lease)
        if was_missing:
            self._planning.members_changed(len(self), now)
        return was_missing

    def suspect(self, lease: str, now: float) -> None:
        """A poll under this lease broke off before it was answered, most likely because its process was killed. If the
        holder does not call again soon, plans leave it out, long before the lease ends."""
        if self._leases.is_held(lease):
            self._suspicion.suspect(lease, now)

    def lease(self, lease: str, refused: str = "") -> Lease:
        """Returns the reply to the holder of `lease`: its length, and the current revision. refused: see `Lease`."""
        return Lease(lease=lease, ttl=self.config.ttl, revision=self._revision, refused=refused)

    def holder(self, lease: str, now: float) -> HeldLease:
        """Returns the holder of `lease`. Raises `LeaseError` if it has ended or never was."""
        return self._leases.holder(lease, now)

    def expire(self, now: float) -> list[EndedLease]:
        """Ends the leases whose time is up. Returns all leases that ended since the last call: expired, left or
        replaced."""
        self._sweep(now)
        ended, self._ended = self._ended, []
        return ended

    def next_expiry(self) -> float | None:
        """Returns when `expire` is due next (seconds on the clock of `now`), None while there are no members."""
        times = self._leases.next_expiry(), self._suspicion.next()
        return min((time for time in times if time is not None), default=None)

    def challenge(self, *, nonce: str, now: float) -> Challenge:
        """Issues `nonce`, a fresh random string, for one claim."""
        self._fence.challenge(nonce, now)
        return Challenge(nonce=nonce, ttl=self.config.nonce_ttl)

    def own_challenge(self, *, nonce: str, now: float) -> None:
        """Issues a nonce to the trainer that embeds this hub; it must never leave the process."""
        self._fence.challenge(nonce, now, own=True)

    def claim(self, request: RunClaim, *, token: str, now: float, seen_host: str = "") -> Claimed:
        """Gives the run to a trainer under `token`, a fresh secret, and fences the earlier claimant.

        seen_host: the address that the request came from. A new run begins a new lineage. Raises `FormatError`,
        `TrustError` or `FencedError`: see `Fence.claim`.
        """
        self._sweep(now)
        earlier = self._fence.claimant
        changed = self._fence.claim(request, token, now, held=self._holder(request, now), host=seen_host)
        self._held_until = now + self.config.ttl
        if earlier is not None and earlier.run != request.run:
            self._lineage.clear()
            self._manifests_changed.forget(self._revision + 1)
            self._note = ""
        if changed:
            self._raise_urgent_revision()
        if earlier is None or earlier.node != request.node:
            self._co_publishers = frozenset()
            self._planning.members_changed(len(self), now)
        return Claimed(token=token, epoch=request.epoch)

    def holds_claim(self, token: str) -> bool:
        """Returns whether `token` is the live claimant's."""
        return self._fence.is_current(token)

    def announce(self, request: Announce, *, now: float) -> Announced:
        """Changes the lineage, all or nothing; skips manifests that it holds already.

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
        check_note(request.note)
        if request.co_publishers is not None:
            check_co_publishers(request.co_publishers)
        entries = [self._open(data, claimant) for data in request.manifests]
        changes = self._lineage.update(entries, request.retire)
        if changes:
            self._raise_urgent_revision()
            for manifest_id in changes:
                self._manifests_changed.add(self._revision, manifest_id)
            self._planning.announced(self._lineage.payload, now)
        self._note = request.note or self._note
        if request.co_publishers is not None and self._co_publishers != set(request.co_publishers):
            self._co_publishers = frozenset(request.co_publishers)
            self._planning.members_changed(len(self), 0.0)  # at once
        return Announced(revision=self._revision)

    def manifest(self, manifest_id: str) -> bytes | None:
        """The signed manifest of this id (hex), None if it is not in the lineage: never announced, or retired."""
        return self._lineage.get(manifest_id)

    def view(self, known: int = -1) -> View:
        """Returns the whole view at this revision; O(members log members + announcements).

        known: the last revision that the reader has seen, which decides which manifests are inlined; -1: none. See
        `HubConfig`.
        """
        config = self.config
        if known < 0:
            return self._view(config.max_manifests, config.inline_bytes, config.inline_total)
        return self._view(self.new_manifests_after(known), config.new_manifests_bytes, config.new_manifests_bytes)

    def changes(self, known: int) -> View | None:
        """Returns the changes since `known`, an earlier revision of this instance; None if only a whole view can tell
        them. The versions that members run are those of the time when they joined or changed."""
        nodes, manifests = self._nodes_changed.since(known), self._manifests_changed.since(known)
        if not 0 <= known <= self._revision or nodes is None or manifests is None:
            return None
        found = [self._leases.of_node(node) for node in sorted(nodes)]
        members = [member for member in found if member is not None]
        whole = self._view(
            self.new_manifests_after(known), self.config.new_manifests_bytes, self.config.new_manifests_bytes, members
        )
        return msgspec.structs.replace(
            whole,
            lineage=[a for a in whole.lineage if a.id in manifests],
            since=known,
            gone=sorted(nodes - {member.info.node for member in members}),
            retired=sorted(id for id in manifests if id not in self._lineage),
        )

    def new_manifests_after(self, known: int) -> int:
        """Returns how many manifests are inlined for a reader of this revision. Readers with equal numbers get equal
        views."""
        return self._lineage.newer(known, self.config.new_manifests_max)

    def statistics(self) -> dict[str, NodeStatistics]:
        """Returns the network statistics that members last reported, by node."""
        return {held.member.info.node: held.statistics for held in self._leases.held() if held.statistics is not None}

    def next_plan(self) -> float:
        """Returns when `begin_plan` is due next (seconds); inf while none is wanted."""
        return self._planning.due

    def begin_plan(self, now: float) -> PlanTask | None:
        """Returns the task of the plan to make now, None if none is due. Answer with `plan_made` or `plan_failed`."""
        if now < self._planning.due:
            return None
        self._sweep(now)
        trainer = None if self._fence.claimant is None else self._fence.claimant.node
        there = [held.member for held in self._leases.held() if held.lease not in self._suspicion]
        there.sort(key=lambda member: member.info.node)
        return self._planning.begin(
            trainer, there, self.statistics(), now, self._co_publishers, self._all_run_head(there)
        )

    def plan_made(self, plan_result: PlanResult, now: float) -> None:
        """Puts the plan that was begun into use; the revision rises if it differs from the last one."""
        if self._planning.made(plan_result, now):
            self._revision += 1

    def plan_failed(self, message: str, now: float) -> bool:
        """The plan that was begun cannot be made; the last one stays in use. Returns whether this message is new."""
        return self._planning.failed(message, now)

    def node_plan(self, lease: str, now: float) -> NodePlan:
        """Returns the part of the plan of the holder of `lease`; see `unplanned` for a node that is in no tree.

        Raises `LeaseError` if the lease has ended, `HubError` before the first plan.
        """
        node = self._leases.holder(lease, now).member.info.node
        plan_result = self._planning.plan_result
        if plan_result is None:
            raise HubError("there is no plan yet; continue without one, and watch the view")
        return plan_result.node_plan(node) or unplanned(plan_result.revision)

    def status(self, now: float, started: float) -> Status:
        """Returns the view and every member's age at `now`, for people. started: when the hub started, on the clock of
        `now`."""
        ages = [_age(held, now) for held in self._leases.held()]
        ages.sort(key=lambda age: age.node)
        return Status(view=self._view(0, 0, 0), uptime=now - started, ages=ages, note=self._note)

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

    def _holder(self, request: RunClaim, now: float) -> str:
        """Returns the holder of this hub, in words; "" if there is none.

        The claimant holds it while its lease lasts, unless the claim comes from the same node, whose earlier process
        has ended. Before any claim, a member that is a trainer of another run holds it: this hub was restarted, and
        that trainer is about to claim again.
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

    def _raise_urgent_revision(self) -> None:
        self._revision += 1
        self._urgent_revision = self._revision

    def _sweep(self, now: float) -> None:
        expired = self._leases.expire(now)
        self._ended.extend(expired)
        self._suspicion.ended(ended.lease for ended in expired)
        if expired:
            self._members_changed([ended.member.info.node for ended in expired], now, gone=True)
        if self._suspicion.sweep(now):
            self._planning.members_changed(len(self), now, gone=True)

    def _members_changed(self, nodes: Sequence[str], now: float, *, gone: bool = False) -> None:
        for node in nodes:
            self._revision += 1
            self._nodes_changed.add(self._revision, node)
        self._planning.members_changed(len(self), now, gone=gone)

    def _all_run_head(self, members: Iterable[Member]) -> bool:
        """Returns whether all these members run the newest version, so that no chunk is in flight."""
        head, claimant = self._lineage.head, self._fence.claimant
        trainer = claimant and claimant.node
        return head is None or all(
            member.version == head and member.run in ("", claimant.run if claimant is not None else "")
            for member in members
            if member.info.role != "trainer" and member.info.node != trainer
        )

    def _open(self, data: bytes, claimant: Claimant) -> LineageEntry:
        manifest, signed = open_signed(data, self.config.trusted)
        if manifest.run != claimant.run:
            raise ReplayError(
                f"a manifest of run {manifest.run} was announced to run {claimant.run}; start a new store for a new run"
            )
        if manifest.epoch > claimant.epoch:
            raise UsageError(
                f"a manifest of epoch {manifest.epoch} under a claim of epoch {claimant.epoch}; claim that epoch first"
            )
        return lineage_entry(manifest, signed.id, data, self._revision + 1)


def _age(held: HeldLease, now: float) -> MemberAge:
    statistics = held.statistics if held.statistics is not None else NodeStatistics()
    return MemberAge(
        node=held.member.info.node,
        joined=now - held.joined,
        heard=now - held.heard,
        up=statistics.up,
        down=statistics.down,
        waits=held.waits,
    )
