"""Decides when the hub plans: soon after members change, less often when statistics do, one plan at a time. Pure.

Theory of operation. The hub's core reports changes (`members_changed`, `measured`). The driver calls
`HubCore.begin_plan` at `due`, has a `Planner` carry the task out, in a thread or in virtual time, and then calls `made`
or `failed`. A plan stays in use until another one replaces it: its trees lose nodes that left, and pulling in the swarm
compensates for what a plan gets wrong. After a plan the scheduler pauses for longer than the plan took, so that
planning takes a small share of a core that also carries chunks; it pauses only as long as the plan took if a member is
gone or a path has degraded, because trees over it carry nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from p2psync.membership.records import Member, NodeStatistics
from p2psync.membership.statistics_changes import changed_substantially, has_degraded
from p2psync.protocol.plan import NodePlan

#: Seconds between a change of members and the plan that it calls for, so that one plan covers several changes: a base,
#: an addition per member, and a maximum.
SETTLE_SECONDS = 0.05
SETTLE_SECONDS_PER_MEMBER = 0.0005
SETTLE_MAX_SECONDS = 1.0
#: Least seconds between two plans that only statistics call for: the first value, doubled up to the second while such
#: plans change nothing.
REPLAN_MIN_SECONDS, REPLAN_MAX_SECONDS = 1.0, 4.0
#: Seconds after an announcement in which neither statistics nor the payload's size call for a plan: the transfer has
#: taught nothing yet, and it needs the processors.
ANNOUNCE_SETTLE_SECONDS = 2.0
#: Pause after a plan, as a multiple of the time that it took, up to a maximum in seconds; a plan that took longer than
#: the maximum is followed by a pause of its own length.
REST_FACTOR, REST_MAX_SECONDS = 3.0, 3.0
#: Backoff after failed plans, seconds: the first and the longest pause.
RETRY_MIN_SECONDS = 1.0
RETRY_MAX_SECONDS = 10.0
#: A payload that is this many times larger or smaller than the planned one may need another plan.
PAYLOAD_CHANGE_FACTOR = 4
_NEVER = float("inf")


class PlanResult(Protocol):
    """A plan for all nodes. revision: above 0, and above that of every earlier plan of this hub."""

    @property
    def revision(self) -> int:
        """See the class."""

    def node_plan(self, node: str) -> NodePlan | None:
        """Returns this node's part; None if it is in no tree."""

    @property
    def diagnostics(self) -> Mapping[str, str]:
        """Lines for people about the plan's network, by subject."""


@dataclass(frozen=True)
class PlanTask:
    """The input of a plan. trainer: a node among the members. statistics: by node, of those that reported any.

    co_publishers: members that publish together with the trainer. payload: typical payload in bytes, 0: nothing was
    sent yet. idle: no chunk is in flight, so that other trees delay nobody.
    """

    trainer: str
    members: Sequence[Member]
    statistics: Mapping[str, NodeStatistics]
    co_publishers: frozenset[str] = frozenset()
    payload: int = 0
    idle: bool = False


class Planner(Protocol):
    """Makes plans, each based on the one before. Called in one thread at a time."""

    def warm(self) -> None:
        """Prepares for the first plan (compiles, starts processes); may take seconds."""

    def plan(self, task: PlanTask) -> PlanResult:
        """Returns the plan, with the revision of the one before if nothing changes. May raise anything."""

    def close(self) -> None:
        """Ends planning. The one call that may come from another thread while a plan is being made."""


class PlanScheduler:
    """Decides when a plan is made, and holds the plan in use."""

    def __init__(self) -> None:
        #: The plan in use, None before the first.
        self.plan_result: PlanResult | None = None
        self._wanted_at = _NEVER
        self._rest_until = self._pause_until = 0.0
        self._urgent = False
        #: Whether any member reported statistics since the last plan was begun.
        self._has_new_reports = False
        self._started = self._announce_settled_at = -_NEVER
        self._replan_seconds = REPLAN_MIN_SECONDS
        self._is_planning = False
        # The statistics and payload of the last plan: small changes add up until they count.
        self._used: Mapping[str, NodeStatistics] = {}
        self._payload = self._used_payload = 0
        self._last_failure = ""
        self._pause = RETRY_MIN_SECONDS

    @property
    def revision(self) -> int:
        """Revision of the plan in use; 0: there is none."""
        return 0 if self.plan_result is None else self.plan_result.revision

    @property
    def due(self) -> float:
        """When the next plan should be begun; inf while one is being made or none is wanted."""
        if self._is_planning:
            return _NEVER
        return max(self._wanted_at, self._pause_until if self._urgent else self._rest_until)

    def members_changed(self, members: int, now: float, *, gone: bool = False) -> None:
        """A node joined, left or claimed the run; `members` is their number now. gone: a member is no longer there."""
        self._urgent |= gone
        settle = min(SETTLE_MAX_SECONDS, SETTLE_SECONDS + SETTLE_SECONDS_PER_MEMBER * members)
        self._wanted_at = min(self._wanted_at, now + settle)

    def measured(self, node: str, statistics: NodeStatistics, now: float) -> None:
        """A member reported its statistics."""
        self._has_new_reports = True
        before = self._used.get(node)
        part = None if self.plan_result is None else self.plan_result.node_plan(node)
        planned = None if part is None else part.peers
        degraded = has_degraded(before, statistics, planned)
        self._urgent |= degraded
        if degraded:
            self._wanted_at = min(self._wanted_at, now + SETTLE_SECONDS)
        elif changed_substantially(before, statistics, planned):
            drifted = max(now + SETTLE_SECONDS, self._started + self._replan_seconds, self._announce_settled_at)
            self._wanted_at = min(self._wanted_at, drifted)

    def settled(self, now: float) -> None:
        """No chunk is in flight any more, so changes that were postponed may be planned now."""
        if self._has_new_reports:
            self._wanted_at = min(self._wanted_at, max(now + SETTLE_SECONDS, self._started + REPLAN_MIN_SECONDS))

    def announced(self, payload: int, now: float) -> None:
        """The newest version has this payload (bytes) for nodes that keep up."""
        self._payload, self._announce_settled_at = payload, now + ANNOUNCE_SETTLE_SECONDS
        small, large = sorted((payload, self._used_payload))
        if large > PAYLOAD_CHANGE_FACTOR * small:
            self._wanted_at = min(self._wanted_at, self._announce_settled_at)

    def begin(
        self,
        trainer: str | None,
        members: Iterable[Member],
        statistics: Mapping[str, NodeStatistics],
        now: float,
        co_publishers: frozenset[str] = frozenset(),
        idle: bool = False,
    ) -> PlanTask | None:
        """Returns the task of the plan to make now; None if none is due, or there is nobody to plan for.

        trainer: the node that holds the run. co_publishers: nodes that publish together with it. Other trainers have
        lost the run and are left out. idle: see `PlanTask`.
        """
        if now < self.due:
            return None
        self._wanted_at, self._urgent, self._has_new_reports = _NEVER, False, False
        planned = [
            m for m in members if m.info.role != "trainer" or m.info.node == trainer or m.info.node in co_publishers
        ]
        names = {m.info.node for m in planned}
        co_publishers = co_publishers & names - {trainer or ""}
        if trainer is None or trainer not in names or len(planned) - len(co_publishers) < 2:
            return None  # the missing node changes the members when it joins
        self._used = {node: reported for node, reported in statistics.items() if node in names}
        self._used_payload = self._payload
        self._started = now
        self._is_planning = True
        return PlanTask(trainer, planned, self._used, co_publishers, self._payload, idle)

    def made(self, plan_result: PlanResult, now: float) -> bool:
        """Takes the plan that was being made. Returns whether it differs from the one in use."""
        self._is_planning = False
        took = now - self._started
        self._pause_until = now + took
        self._rest_until = now + max(took, min(REST_FACTOR * took, REST_MAX_SECONDS))
        self._last_failure, self._pause = "", RETRY_MIN_SECONDS
        if plan_result.revision <= self.revision:
            self._replan_seconds = min(REPLAN_MAX_SECONDS, 2 * self._replan_seconds)
            return False
        self.plan_result, self._replan_seconds = plan_result, REPLAN_MIN_SECONDS
        return True

    def failed(self, message: str, now: float) -> bool:
        """The planner failed; it will be called again. Returns whether this message is new."""
        self._is_planning = False
        self._rest_until = self._pause_until = now + self._pause
        self._wanted_at = min(self._wanted_at, self._rest_until)
        self._pause = min(RETRY_MAX_SECONDS, 2 * self._pause)
        is_new = message != self._last_failure
        self._last_failure = message
        return is_new
