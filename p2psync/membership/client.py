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
from p2psync.membership.changes import put_together
from p2psync.membership.checks import MAX_REMARK
from p2psync.membership.measures import changed_much, fell
from p2psync.membership.records import RENEWALS_PER_TTL, Join, Lease, Measures, NodeInfo, Renew, View

_NEVER = float("inf")
#: Pauses after failures grow from the first to the last of these (seconds), with jitter so that nodes do not all
#: return at once.
FIRST_PAUSE = 0.2
LAST_PAUSE = 5.0
#: Measures that changed much are told without waiting for the next renewal, but not more often than this (seconds).
MEASURES_EVERY = 1.0
#: The same of measures that show that a way brings next to nothing any more, which others wait for.
FALLS_EVERY = 0.2
#: Where a renewal with measures failed and the next one without them did not, they wait for so long (seconds), growing
#: from the first to the last: what cannot get through must not cost the lease.
FIRST_BARE, LAST_BARE = 1.0, 300.0


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
class _Said:
    """What a call tells the hub of this node."""

    version: int | None = None
    digest: str = ""
    run: str = ""
    epoch: int = 0
    measures: Measures | None = None


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
        self._live = _Said()
        self._rejected = ""
        self._measures: Measures | None = None
        self._tell_after = _NEVER
        self._measures_told_at = -MEASURES_EVERY
        # Whether the last renewal with measures failed, and until when they wait since the next one did not.
        self._measures_failed = False
        self._bare_until, self._bare_for = -_NEVER, FIRST_BARE
        self._telling = _Said()
        self._told = _Said()
        self._lease: Lease | None = None
        self._lease_end = 0.0
        self._renew_at = 0.0
        self._lease_call = False
        self._view_call = False
        self._pause = FIRST_PAUSE
        self._wait_until = 0.0
        self._view_wait_until = 0.0
        # (instance, revision) of the plan that this node has its part of.
        self._plan_of = ("", 0)
        self._plan_call = False
        self._plan_pause = FIRST_PAUSE
        self._plan_wait_until = 0.0

    @property
    def lease(self) -> str | None:
        """The id of the live lease, None while out."""
        return self._lease.lease if self._lease else None

    @property
    def untold(self) -> bool:
        """Whether the hub has not yet confirmed what is live here."""
        return replace(self._told, measures=None) != self._live

    @property
    def measures(self) -> Measures | None:
        """What this node measured of its network, None: nothing yet.

        To be set at each change. Told with the next renewal when it is not what the hub confirmed last, and again after
        a join; a change that matters to plans does not wait for the renewal.
        """
        return self._measures

    @measures.setter
    def measures(self, measures: Measures | None) -> None:
        self._measures = measures
        self._weigh_measures()

    def running(self, version: int | None, digest: str, now: float, run: str = "", epoch: int = 0) -> None:
        """This version (digest in hex) of a run is live at this node: told to the hub at once."""
        self._live = _Said(version, digest, run, epoch)
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
                self._telling = live
            elif now >= self._renewal_due():
                renewal, third = self._renewal(self._lease.lease, now), self._lease.ttl / RENEWALS_PER_TTL
                calls.append(CallRenew(renewal, third))
                self._renew_at = now + third
                measures = self._told.measures if renewal.measures is None else renewal.measures
                self._telling = replace(self._live, measures=measures)
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
        self._measures_failed = False
        self._granted(lease, now)
        # What became live while the join was under way is told at once.
        self._renew_at = now if self.untold else now + lease.ttl / RENEWALS_PER_TTL

    def renewed(self, lease: Lease, now: float) -> None:
        """The hub renewed the lease."""
        if self._telling.measures is not self._told.measures:
            self._bare_for = FIRST_BARE
        elif self._measures_failed:
            self._bare_until, self._bare_for = now + self._bare_for, min(LAST_BARE, 2 * self._bare_for)
        self._measures_failed = False
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
            self.view = put_together(self.view, view)
        except FormatError:
            self.view = None  # so that all of it is asked for
            self._view_wait_until = now + FIRST_PAUSE
        return self.view

    def planned(self, revision: int, now: float) -> None:
        """The hub gave this node's part of the plan of this revision."""
        self._plan_call = False
        self._plan_of = (self.view.instance if self.view else "", revision)
        if self._wants_plan:  # a hub that was started anew knows of no such plan yet, and the view of it is on its way
            self._put_off_plan(now)
        else:
            self._plan_pause = FIRST_PAUSE

    def failed(self, call: HubCall, now: float) -> None:
        """A call failed: the hub is unreachable or broken. Pauses grow until one succeeds."""
        if isinstance(call, CallPlan):
            self._plan_call = False
            self._put_off_plan(now)
            return
        if isinstance(call, CallRenew) and call.request.measures is not None:
            self._measures_failed = True
        pause = self._pause * (0.75 + 0.5 * self._rng.random())
        self._pause = min(LAST_PAUSE, self._pause * 2)
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
        self._plan_pause = min(LAST_PAUSE, self._plan_pause * 2)

    def _renewal_due(self) -> float:
        return min(self._renew_at, max(self._measures_told_at + self._tell_after, self._bare_until))

    def _renewal(self, lease: str, now: float) -> Renew:
        bare = self._measures_failed or now < self._bare_until or self._measures == self._told.measures
        measures = None if bare else self._measures
        if measures is not None:
            self._measures_told_at = now
        return Renew(
            lease=lease,
            version=self._live.version,
            digest=self._live.digest,
            run=self._live.run,
            epoch=self._live.epoch,
            waits=self.why_waiting()[:MAX_REMARK],
            fetch_rate=int(float(f"{self.fetch_rate:.1e}")),
            measures=measures,
            rejected=self._rejected,
        )

    def _weigh_measures(self) -> None:
        told, known = self._told.measures, self._measures
        self._tell_after = _NEVER
        if known is None or known is told:
            return
        if fell(told, known):
            self._tell_after = FALLS_EVERY
        elif changed_much(told, known):
            self._tell_after = MEASURES_EVERY

    def _granted(self, lease: Lease, now: float) -> None:
        self._lease_call = False
        self._lease = lease
        self._told = self._telling
        self._weigh_measures()
        self._lease_end = now + lease.ttl
        self._pause = FIRST_PAUSE
        self._wait_until = now
