"""A node's side of membership: decides when to join, renew, fetch the view and the plan, and when to retry. Pure.

States: OUT (no lease: join, with exponential backoff) → IN (renew after a third of the TTL; one long poll for the view
always open) → OUT again when the hub no longer knows the lease or the lease expires. The last view stays in use while
the hub is unreachable, so peers go on exchanging. While IN, the client fetches its part of the plan whenever the view
shows a new plan revision.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from p2psync.errors import FormatError
from p2psync.membership.changes import merge_views
from p2psync.membership.checks import MAX_NOTE
from p2psync.membership.records import RENEWALS_PER_TTL, Join, Lease, NodeInfo, NodeStatistics, Renew, View
from p2psync.membership.statistics_changes import changed_substantially, has_degraded

_NEVER = float("inf")
#: Backoff after failed calls, seconds: the first and the longest pause, doubled in between, with jitter so that nodes
#: do not all return at once.
RETRY_MIN_SECONDS = 0.2
RETRY_MAX_SECONDS = 5.0
#: Statistics that changed substantially are reported without waiting for the next renewal, but at most once in this
#: many seconds. A larger value saves requests and delays better plans.
STATISTICS_MIN_SECONDS = 1.0
#: The same for a path that degraded or failed, which other nodes wait on: plans should leave it soon.
DEGRADATION_MIN_SECONDS = 0.2
#: Where a renewal with statistics fails and the next one without them succeeds, statistics are left out for this long
#: (seconds, the first and the longest pause): a body that cannot get through must not cost the lease.
BARE_MIN_SECONDS, BARE_MAX_SECONDS = 1.0, 300.0


@dataclass(frozen=True, slots=True)
class CallJoin:
    """Join the hub; answer with `joined` or `failed`."""

    request: Join


@dataclass(frozen=True, slots=True)
class CallRenew:
    """Renew the lease; answer with `renewed`, `failed`, or `lease_lost`.

    limit: seconds without an answer that count as a failure, so that there is time for another renewal.
    """

    request: Renew
    limit: float = _NEVER


@dataclass(frozen=True, slots=True)
class CallView:
    """Long-poll the view; answer with `viewed` (None: nothing new) or `failed`.

    whole: the client needs the whole view, not only the changes.
    """

    instance: str
    revision: int
    lease: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class CallPlan:
    """Get this node's part of the plan; answer with `planned` or `failed`."""

    lease: str


HubCall: TypeAlias = CallJoin | CallRenew | CallView | CallPlan


@dataclass(frozen=True, slots=True)
class _LocalState:
    """The report about this node in one call."""

    version: int | None = None
    digest: str = ""
    run: str = ""
    epoch: int = 0
    statistics: NodeStatistics | None = None


class MembershipClient:
    """Drives one node's lease, its view of the swarm and its part of the plan."""

    def __init__(self, info: NodeInfo, rng: random.Random) -> None:
        self.info = info
        self.view: View | None = None
        #: Bytes a second, reported to two digits with each renewal: see `Member.fetch_rate`.
        self.fetch_rate = 0.0
        #: Called for each renewal: see `MemberAge.waits`.
        self.why_waiting: Callable[[], str] = lambda: ""
        self._rng = rng
        self._live = _LocalState()
        self._rejected = ""
        self._statistics: NodeStatistics | None = None
        self._report_after = _NEVER
        self._statistics_reported_at = -STATISTICS_MIN_SECONDS
        # Whether the last renewal with statistics failed, and until when renewals leave them out.
        self._statistics_failed = False
        self._bare_until, self._bare_for = -_NEVER, BARE_MIN_SECONDS
        self._reporting = _LocalState()
        self._reported = _LocalState()
        self._lease: Lease | None = None
        self._lease_end = 0.0
        self._renew_at = 0.0
        self._lease_call = False
        self._view_call = False
        self._pause = RETRY_MIN_SECONDS
        self._wait_until = 0.0
        self._view_wait_until = 0.0
        # (instance, revision) of the plan whose part this node holds.
        self._plan_of = ("", 0)
        self._plan_call = False
        self._plan_pause = RETRY_MIN_SECONDS
        self._plan_wait_until = 0.0

    @property
    def lease(self) -> str | None:
        """The id of the live lease, None while out."""
        return self._lease.lease if self._lease else None

    @property
    def has_unreported_version(self) -> bool:
        """Whether the hub has not yet confirmed the version that is live here."""
        return replace(self._reported, statistics=None) != self._live

    @property
    def statistics(self) -> NodeStatistics | None:
        """This node's network statistics; None: nothing was measured yet.

        Set at each change. The next renewal reports them if they differ from what the hub confirmed last, and so does
        the first renewal after a join; a change that matters to plans does not wait for the renewal.
        """
        return self._statistics

    @statistics.setter
    def statistics(self, statistics: NodeStatistics | None) -> None:
        self._statistics = statistics
        self._schedule_statistics()

    def running(self, version: int | None, digest: str, now: float, run: str = "", epoch: int = 0) -> None:
        """Sets the live version (digest in hex) and its run; it is reported to the hub at once."""
        self._live = _LocalState(version, digest, run, epoch)
        if version is not None:
            self._rejected = ""
        self._renew_at = now

    def rejected(self, digest: str, now: float) -> None:
        """Reports that the version of this digest (hex) has other bits here than were signed: see `Member.rejected`."""
        self._rejected = digest
        self._renew_at = now

    def poll(self, now: float) -> list[HubCall]:
        """Returns the calls to make now. At most one call of each kind is under way."""
        calls: list[HubCall] = []
        if self._lease is not None and now >= self._lease_end:
            self._lease = None
        if not self._lease_call and now >= self._wait_until:
            if self._lease is None:
                live = self._live
                request = Join(info=self.info, version=live.version, digest=live.digest, run=live.run, epoch=live.epoch)
                calls.append(CallJoin(request))
                self._reporting = live
            elif now >= self._renewal_due():
                renewal, third = self._renewal(self._lease.lease, now), self._lease.ttl / RENEWALS_PER_TTL
                calls.append(CallRenew(renewal, third))
                self._renew_at = now + third
                statistics = self._reported.statistics if renewal.statistics is None else renewal.statistics
                self._reporting = replace(self._live, statistics=statistics)
            self._lease_call = bool(calls)
        if self._lease is not None and not self._view_call and now >= self._view_wait_until:
            known = (self.view.instance, self.view.revision) if self.view else ("", -1)
            calls.append(CallView(*known, self._lease.lease, whole=self._wants_whole))
            self._view_call = True
        if self._lease is not None and self._wants_plan and now >= self._plan_wait_until:
            calls.append(CallPlan(self._lease.lease))
            self._plan_call = True
        return calls

    def next_wake(self) -> float:
        """Returns when `poll` may have something to do next (seconds)."""
        waits = []
        if not self._lease_call:
            waits.append(self._wait_until if self._lease is None else max(self._renewal_due(), self._wait_until))
        if self._lease is not None:
            waits.append(self._lease_end)
            if not self._view_call:
                waits.append(self._view_wait_until)
            if self._wants_plan:
                waits.append(self._plan_wait_until)
        return min(waits, default=float("inf"))

    def joined(self, lease: Lease, now: float) -> None:
        """The hub granted a lease."""
        self._statistics_failed = False
        self._granted(lease, now)
        # A version that became live during the join is reported at once.
        self._renew_at = now if self.has_unreported_version else now + lease.ttl / RENEWALS_PER_TTL

    def renewed(self, lease: Lease, now: float) -> None:
        """The hub renewed the lease."""
        if self._reporting.statistics is not self._reported.statistics:
            self._bare_for = BARE_MIN_SECONDS
        elif self._statistics_failed:
            self._bare_until, self._bare_for = now + self._bare_for, min(BARE_MAX_SECONDS, 2 * self._bare_for)
        self._statistics_failed = False
        self._granted(lease, now)

    def lease_lost(self, now: float) -> None:
        """The hub does not know the lease (it expired, or the hub was restarted): join again at once."""
        self._lease_call = False
        self._lease = None
        self._wait_until = now

    def viewed(self, view: View | None, now: float) -> View | None:
        """Ends the long poll. Returns the whole view, merged with the changes if only those came; None: nothing
        changed."""
        self._view_call = False
        self._view_wait_until = now
        if view is None:
            return None
        try:
            self.view = merge_views(self.view, view)
        except FormatError:
            self.view = None  # so that the next poll asks for the whole view
            self._view_wait_until = now + RETRY_MIN_SECONDS
        return self.view

    def planned(self, revision: int, now: float) -> None:
        """The hub gave this node its part of the plan of this revision."""
        self._plan_call = False
        self._plan_of = (self.view.instance if self.view else "", revision)
        if self._wants_plan:  # a restarted hub has no such plan yet; its view will say so
            self._put_off_plan(now)
        else:
            self._plan_pause = RETRY_MIN_SECONDS

    def failed(self, call: HubCall, now: float) -> None:
        """A call failed: the hub is unreachable or broken. The backoff grows until a call succeeds."""
        if isinstance(call, CallPlan):
            self._plan_call = False
            self._put_off_plan(now)
            return
        if isinstance(call, CallRenew) and call.request.statistics is not None:
            self._statistics_failed = True
        pause = self._pause * (0.75 + 0.5 * self._rng.random())
        self._pause = min(RETRY_MAX_SECONDS, self._pause * 2)
        if isinstance(call, CallView):
            self._view_call = False
            self._view_wait_until = now + pause
        else:
            self._lease_call = False
            self._wait_until = now + pause
            self._renew_at = min(self._renew_at, now + pause)

    @property
    def _wants_whole(self) -> bool:
        """Whether the client needs whole views: a trainer must know which versions members run, which changes leave
        out."""
        return self.info.role == "trainer"

    @property
    def _wants_plan(self) -> bool:
        if self._plan_call or self.view is None or not self.view.plan:
            return False
        instance, revision = self._plan_of
        return self.view.instance != instance or self.view.plan > revision

    def _put_off_plan(self, now: float) -> None:
        self._plan_wait_until = now + self._plan_pause * (0.75 + 0.5 * self._rng.random())
        self._plan_pause = min(RETRY_MAX_SECONDS, self._plan_pause * 2)

    def _renewal_due(self) -> float:
        return min(self._renew_at, max(self._statistics_reported_at + self._report_after, self._bare_until))

    def _renewal(self, lease: str, now: float) -> Renew:
        bare = self._statistics_failed or now < self._bare_until or self._statistics == self._reported.statistics
        statistics = None if bare else self._statistics
        if statistics is not None:
            self._statistics_reported_at = now
        return Renew(
            lease=lease,
            version=self._live.version,
            digest=self._live.digest,
            run=self._live.run,
            epoch=self._live.epoch,
            waits=self.why_waiting()[:MAX_NOTE],
            fetch_rate=int(float(f"{self.fetch_rate:.1e}")),
            statistics=statistics,
            rejected=self._rejected,
        )

    def _schedule_statistics(self) -> None:
        reported, known = self._reported.statistics, self._statistics
        self._report_after = _NEVER
        if known is None or known is reported:
            return
        if has_degraded(reported, known):
            self._report_after = DEGRADATION_MIN_SECONDS
        elif changed_substantially(reported, known):
            self._report_after = STATISTICS_MIN_SECONDS

    def _granted(self, lease: Lease, now: float) -> None:
        self._lease_call = False
        self._lease = lease
        self._reported = self._reporting
        self._schedule_statistics()
        self._lease_end = now + lease.ttl
        self._pause = RETRY_MIN_SECONDS
        self._wait_until = now
