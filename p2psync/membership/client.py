"""A node's side of membership: when to join, renew, ask for the view, and how long to wait after a failure. Pure.

States: OUT (no lease: join, with growing pauses) → IN (renew at a third of the TTL; one long poll for the view always
open) → OUT again when the hub no longer knows the lease or the lease has run out unrenewed. The last view stays in use
while the hub is away: peers go on exchanging what they know of. While in, the node's part of the plan is asked for
whenever the view shows another revision of it.
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
#: Pauses after failures grow from the first to the last of these (seconds), with jitter so that nodes do not all
#: return at once.
RETRY_MIN_SECONDS = 0.2
RETRY_MAX_SECONDS = 5.0
#: Measures that changed much are told without waiting for the next renewal, but not more often than this (seconds).
STATISTICS_MIN_SECONDS = 1.0
#: The same of measures that show that a way brings next to nothing any more, which others wait for.
DEGRADATION_MIN_SECONDS = 0.2
#: Where a renewal with measures failed and the next one without them did not, they wait for so long (seconds), growing
#: from the first to the last: what cannot get through must not cost the lease.
BARE_MIN_SECONDS, BARE_MAX_SECONDS = 1.0, 300.0


@dataclass(frozen=True, slots=True)
class CallJoin:
    """Join the hub; answer with `joined` or `failed`."""

    request: Join


@dataclass(frozen=True, slots=True)
class CallRenew:
    """Renew the lease; answer with `renewed`, `failed`, or `lease_lost`.

    limit: seconds after which no answer counts as a failure, so that there is time for another renewal.
    """

    request: Renew
    limit: float = _NEVER


@dataclass(frozen=True, slots=True)
class CallView:
    """Long-poll the view; answer with `viewed` (None: nothing new) or `failed`.

    whole: a view that tells only what changed does not do.
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
    """What a call tells the hub of this node."""

    version: int | None = None
    digest: str = ""
    run: str = ""
    epoch: int = 0
    statistics: NodeStatistics | None = None


class MembershipClient:
    """Drives one node's lease and view."""

    def __init__(self, info: NodeInfo, rng: random.Random) -> None:
        self.info = info
        self.view: View | None = None
        #: Two digits of it are told with each renewal: see `Member.fetch_rate`.
        self.fetch_rate = 0.0
        #: Asked with each renewal: see `MemberAge.waits`.
        self.why_waiting: Callable[[], str] = lambda: ""
        self._rng = rng
        self._live = _LocalState()
        self._rejected = ""
        self._statistics: NodeStatistics | None = None
        self._report_after = _NEVER
        self._statistics_reported_at = -STATISTICS_MIN_SECONDS
        # Whether the last renewal with measures failed, and until when they wait since the next one did not.
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
        # (instance, revision) of the plan that this node has its part of.
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
        """Whether the hub has not yet confirmed what is live here."""
        return replace(self._reported, statistics=None) != self._live

    @property
    def statistics(self) -> NodeStatistics | None:
        """What this node measured of its network, None: nothing yet.

        To be set at each change. Told with the next renewal when it is not what the hub confirmed last, and again after
        a join; a change that matters to plans does not wait for the renewal.
        """
        return self._statistics

    @statistics.setter
    def statistics(self, statistics: NodeStatistics | None) -> None:
        self._statistics = statistics
        self._schedule_statistics()

    def running(self, version: int | None, digest: str, now: float, run: str = "", epoch: int = 0) -> None:
        """This version (digest in hex) of a run is live at this node: told to the hub at once."""
        self._live = _LocalState(version, digest, run, epoch)
        if version is not None:
            self._rejected = ""
        self._renew_at = now

    def rejected(self, digest: str, now: float) -> None:
        """The version of this digest (hex) has other bits here than were signed: see `Member.rejected`."""
        self._rejected = digest
        self._renew_at = now

    def poll(self, now: float) -> list[HubCall]:
        """The calls to make now. Each kind is under way at most once."""
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
        """When `poll` may have something to do next."""
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
        # What became live while the join was under way is told at once.
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
        """The hub does not know the lease (it ended, or the hub started anew): join again at once."""
        self._lease_call = False
        self._lease = None
        self._wait_until = now

    def viewed(self, view: View | None, now: float) -> View | None:
        """The long poll ended. Returns the whole view, where this one tells only what changed; None: nothing did."""
        self._view_call = False
        self._view_wait_until = now
        if view is None:
            return None
        try:
            self.view = merge_views(self.view, view)
        except FormatError:
            self.view = None  # so that all of it is asked for
            self._view_wait_until = now + RETRY_MIN_SECONDS
        return self.view

    def planned(self, revision: int, now: float) -> None:
        """The hub gave this node's part of the plan of this revision."""
        self._plan_call = False
        self._plan_of = (self.view.instance if self.view else "", revision)
        if self._wants_plan:  # a hub that was started anew knows of no such plan yet, and the view of it is on its way
            self._put_off_plan(now)
        else:
            self._plan_pause = RETRY_MIN_SECONDS

    def failed(self, call: HubCall, now: float) -> None:
        """A call failed: the hub is unreachable or broken. Pauses grow until one succeeds."""
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
        """A trainer must know which versions members run, of which changes tell nothing."""
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
