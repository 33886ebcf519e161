"""When the hub plans: soon after members change, not too often when measures do, and never twice at a time. Pure.

Theory of operation. The hub's core tells of changes (`members_changed`, `measured`); whoever drives it calls
`HubCore.begin_plan` at `due` and has a `Planner` carry the task out, in a thread or in virtual time, and then says
`made` or `failed`. A plan stays in use until another one replaces it: nodes that left are simply not there, and the
swarm pulls what a plan gets wrong. After a plan the keeper rests for longer than it took, so that planning takes little
of a core, and the least where cores are busy with chunks; but only as long as it took where trees bring nothing any
more, because someone is gone or a way has fallen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from p2psync.membership.records import Member, NodeStatistics
from p2psync.membership.statistics_changes import changed_substantially, has_degraded
from p2psync.protocol.plan import NodePlan

#: Seconds that a change of members waits for company: so many, and more for each member, up to a limit.
SETTLE_SECONDS = 0.05
SETTLE_SECONDS_PER_MEMBER = 0.0005
SETTLE_MAX_SECONDS = 1.0
#: Seconds between two plans that only measures call for: at first, and at most as long as such plans change nothing.
REPLAN_MIN_SECONDS, REPLAN_MAX_SECONDS = 1.0, 4.0
#: Seconds after an announcement in which neither measures nor the payload's size call for a plan: nothing was learnt
#: yet from what flows, and processors have it to carry.
ANNOUNCE_SETTLE_SECONDS = 2.0
#: How many times as long as a plan took no other one is begun, while that is not longer than so many seconds; after a
#: plan that took longer, as long as it took.
REST_FACTOR, REST_MAX_SECONDS = 3.0, 3.0
#: Pauses after failures grow from the first to the last of these (seconds).
RETRY_MIN_SECONDS = 1.0
RETRY_MAX_SECONDS = 10.0
#: A payload that is so many times larger or smaller than the one planned for may need another plan.
PAYLOAD_CHANGE_FACTOR = 4
_NEVER = float("inf")


class PlanResult(Protocol):
    """A plan for all. revision: above 0, and above that of every earlier plan of this hub."""

    @property
    def revision(self) -> int:
        """See the class."""

    def node_plan(self, node: str) -> NodePlan | None:
        """What this node must know; None if it has no place in the plan."""

    @property
    def diagnostics(self) -> Mapping[str, str]:
        """What people should know of it: lines, by what they are about."""


@dataclass(frozen=True)
class PlanTask:
    """What a plan is to be made from. trainer: a node among the members. measures: by node, of those that told any.

    beside: those among the members that put chunks into the trees beside the trainer. payload: bytes of what is usually
    sent, 0: nothing was yet. quiet: nothing is on its way, so that other trees hold nobody up.
    """

    trainer: str
    members: Sequence[Member]
    statistics: Mapping[str, NodeStatistics]
    co_publishers: frozenset[str] = frozenset()
    payload: int = 0
    idle: bool = False


class Planner(Protocol):
    """Makes plans, each in the light of the one before. Called in one thread at a time."""

    def warm(self) -> None:
        """Do what the first plan would else wait for; may take seconds."""

    def plan(self, task: PlanTask) -> PlanResult:
        """The plan; with the revision of the one before if nothing changes. May raise anything."""

    def close(self) -> None:
        """No plan is wanted any more. The one call that may come from another thread, while a plan is being made."""


class PlanScheduler:
    """Decides when a plan is made, and holds the one in use."""

    def __init__(self) -> None:
        #: The plan in use, None before the first.
        self.plan_result: PlanResult | None = None
        self._wanted_at = _NEVER
        self._rest_until = self._pause_until = 0.0
        self._urgent = False
        #: Whether somebody told anything since the last plan was begun.
        self._told = False
        self._started = self._calm_until = -_NEVER
        self._drift_every = REPLAN_MIN_SECONDS
        self._under_way = False
        # What the last plan was made from: small steps add up until they count.
        self._used: Mapping[str, NodeStatistics] = {}
        self._payload = self._used_payload = 0
        self._trouble = ""
        self._pause = RETRY_MIN_SECONDS

    @property
    def revision(self) -> int:
        """Of the plan in use; 0: there is none."""
        return 0 if self.plan_result is None else self.plan_result.revision

    @property
    def due(self) -> float:
        """When the next plan should be begun; inf while one is under way or none is wanted."""
        if self._under_way:
            return _NEVER
        return max(self._wanted_at, self._pause_until if self._urgent else self._rest_until)

    def members_changed(self, members: int, now: float, *, gone: bool = False) -> None:
        """Someone came, went or claimed the run; so many are members now. gone: somebody is not there any more."""
        self._urgent |= gone
        settle = min(SETTLE_MAX_SECONDS, SETTLE_SECONDS + SETTLE_SECONDS_PER_MEMBER * members)
        self._wanted_at = min(self._wanted_at, now + settle)

    def measured(self, node: str, statistics: NodeStatistics, now: float) -> None:
        """A member told what it measured."""
        self._told = True
        before = self._used.get(node)
        part = None if self.plan_result is None else self.plan_result.node_plan(node)
        planned = None if part is None else part.peers
        degraded = has_degraded(before, statistics, planned)
        self._urgent |= degraded
        if degraded:
            self._wanted_at = min(self._wanted_at, now + SETTLE_SECONDS)
        elif changed_substantially(before, statistics, planned):
            drifted = max(now + SETTLE_SECONDS, self._started + self._drift_every, self._calm_until)
            self._wanted_at = min(self._wanted_at, drifted)

    def settled(self, now: float) -> None:
        """Nothing is on its way any more: what was left as it was while chunks flowed may be changed now."""
        if self._told:
            self._wanted_at = min(self._wanted_at, max(now + SETTLE_SECONDS, self._started + REPLAN_MIN_SECONDS))

    def announced(self, payload: int, now: float) -> None:
        """The newest version is a payload of so many bytes for those who keep up."""
        self._payload, self._calm_until = payload, now + ANNOUNCE_SETTLE_SECONDS
        small, large = sorted((payload, self._used_payload))
        if large > PAYLOAD_CHANGE_FACTOR * small:
            self._wanted_at = min(self._wanted_at, self._calm_until)

    def begin(
        self,
        trainer: str | None,
        members: Iterable[Member],
        statistics: Mapping[str, NodeStatistics],
        now: float,
        co_publishers: frozenset[str] = frozenset(),
        idle: bool = False,
    ) -> PlanTask | None:
        """The plan to be made now; None if none is due, or there is nobody to plan for.

        trainer: the node that holds the run. beside: those that publish together with it. Other trainers have lost the
        run, and are left out. quiet: see `PlanTask`.
        """
        if now < self.due:
            return None
        self._wanted_at, self._urgent, self._told = _NEVER, False, False
        planned = [
            m for m in members if m.info.role != "trainer" or m.info.node == trainer or m.info.node in co_publishers
        ]
        names = {m.info.node for m in planned}
        co_publishers = co_publishers & names - {trainer or ""}
        if trainer is None or trainer not in names or len(planned) - len(co_publishers) < 2:
            return None  # whoever is missing will change the members when he comes
        self._used = {node: reported for node, reported in statistics.items() if node in names}
        self._used_payload = self._payload
        self._started = now
        self._under_way = True
        return PlanTask(trainer, planned, self._used, co_publishers, self._payload, idle)

    def made(self, plan_result: PlanResult, now: float) -> bool:
        """The plan that was under way; True if it is another one than that in use."""
        self._under_way = False
        took = now - self._started
        self._pause_until = now + took
        self._rest_until = now + max(took, min(REST_FACTOR * took, REST_MAX_SECONDS))
        self._trouble, self._pause = "", RETRY_MIN_SECONDS
        if plan_result.revision <= self.revision:
            self._drift_every = min(REPLAN_MAX_SECONDS, 2 * self._drift_every)
            return False
        self.plan_result, self._drift_every = plan_result, REPLAN_MIN_SECONDS
        return True

    def failed(self, message: str, now: float) -> bool:
        """The planner could not; it will be asked again. True if people have not been told of this yet."""
        self._under_way = False
        self._rest_until = self._pause_until = now + self._pause
        self._wanted_at = min(self._wanted_at, self._rest_until)
        self._pause = min(RETRY_MAX_SECONDS, 2 * self._pause)
        news = message != self._trouble
        self._trouble = message
        return news
