"""The hub's scheduler begins plans at the right times, in virtual time."""

from __future__ import annotations

import pytest
from membership_parts import node

from p2psync.membership.planning import (
    ANNOUNCE_SETTLE_SECONDS,
    REPLAN_MAX_SECONDS,
    REPLAN_MIN_SECONDS,
    RETRY_MAX_SECONDS,
    SETTLE_MAX_SECONDS,
    SETTLE_SECONDS,
    PlanScheduler,
    PlanTask,
)
from p2psync.membership.records import Member, NodeStatistics, PathStatistics, Role
from p2psync.protocol.plan import NodePlan

TRAINER = node(0, role="trainer").node


def members(count: int, role: Role = "trainer") -> list[Member]:
    """The trainer (or another node as the first) and actors."""
    return [Member(info=node(i, role=role if i == 0 else "actor")) for i in range(count)]


class Book:
    """An empty plan, or one with the given peers of each node."""

    def __init__(self, revision: int, peers: dict[str, list[str]] | None = None) -> None:
        self.revision = revision
        self.diagnostics: dict[str, str] = {}
        self._peers = peers or {}

    def node_plan(self, node: str) -> NodePlan | None:
        return NodePlan(self.revision, self._peers[node], [], []) if node in self._peers else None


class SchedulerBench:
    """A scheduler for a hub with this many members."""

    def __init__(self, count: int = 4) -> None:
        self.scheduler = PlanScheduler()
        self.members = members(count)
        self.reported: dict[str, NodeStatistics] = {}
        self.revision = 0

    def change(self, now: float) -> None:
        self.scheduler.members_changed(len(self.members), now)

    def measure(self, number: int, statistics: NodeStatistics, now: float) -> None:
        self.reported[node(number).node] = statistics
        self.scheduler.measured(node(number).node, statistics, now)

    def begin(self, now: float, trainer: str | None = TRAINER) -> PlanTask | None:
        return self.scheduler.begin(trainer, self.members, self.reported, now)

    def make(self, now: float, took: float = 0.0) -> float:
        """Waits until a plan is due and makes it; returns the time."""
        now = max(now, self.scheduler.due)
        assert self.begin(now) is not None
        self.revision += 1
        assert self.scheduler.made(Book(self.revision), now + took)
        return now + took


def test_nothing_is_planned_before_anything_happens() -> None:
    scheduler = PlanScheduler()
    assert scheduler.due == float("inf")
    assert scheduler.revision == 0
    assert scheduler.begin(TRAINER, members(5), {}, 1e9) is None


def test_a_plan_is_due_soon_after_members_change_but_not_at_once() -> None:
    made = SchedulerBench(4)
    made.change(10.0)
    assert 10.0 + SETTLE_SECONDS <= made.scheduler.due < 10.0 + 2 * SETTLE_SECONDS
    assert made.begin(10.0 + SETTLE_SECONDS / 2) is None
    task = made.begin(made.scheduler.due)
    assert task == PlanTask(TRAINER, made.members, {})


def test_simultaneous_changes_make_one_plan_without_postponing_it() -> None:
    made = SchedulerBench(4)
    made.change(10.0)
    due = made.scheduler.due
    for k in range(5):
        made.change(10.0 + k / 100)
    assert made.scheduler.due == due
    made.make(due)
    assert made.scheduler.due == float("inf")


def test_changes_settle_longer_with_more_members() -> None:
    few, many, most = SchedulerBench(2), SchedulerBench(1000), SchedulerBench(5000)
    for made in (few, many, most):
        made.change(0.0)
    assert few.scheduler.due < many.scheduler.due <= most.scheduler.due == SETTLE_MAX_SECONDS


@pytest.mark.parametrize("trainer", [None, "f" * 32])
def test_without_a_trainer_among_the_members_there_is_no_plan(trainer: str | None) -> None:
    made = SchedulerBench(4)
    made.change(0.0)
    assert made.begin(5.0, trainer) is None
    assert made.scheduler.due == float("inf")
    made.change(6.0)
    assert made.begin(7.0) is not None


def test_a_trainer_alone_needs_no_plan() -> None:
    made = SchedulerBench(1)
    made.change(0.0)
    assert made.begin(5.0) is None


def test_a_trainer_that_lost_the_run_is_left_out() -> None:
    made = SchedulerBench(3)
    fenced = Member(info=node(9, role="trainer"))
    made.members.append(fenced)
    made.change(0.0)
    task = made.begin(5.0)
    assert task is not None and fenced not in task.members and len(task.members) == 3


def test_a_payload_of_another_size_calls_for_another_plan() -> None:
    made = SchedulerBench()
    made.change(0.0)
    made.scheduler.announced(64 << 20, 0.0)
    made.make(made.scheduler.due)
    for payload in (60 << 20, 20 << 20, 200 << 20):
        made.scheduler.announced(payload, 1.0)
        assert made.scheduler.due == float("inf")
    made.scheduler.announced(2 << 20, 5.0)
    assert made.scheduler.due == 5.0 + ANNOUNCE_SETTLE_SECONDS, "not while the transfer begins"
    task = made.begin(10.0)
    assert task is not None and task.payload == 2 << 20


def test_changes_during_a_plan_make_the_next_one() -> None:
    made = SchedulerBench()
    made.change(0.0)
    assert made.begin(1.0) is not None
    made.change(1.1)
    assert made.scheduler.due == float("inf")
    assert made.begin(50.0) is None
    assert made.scheduler.made(Book(1), 1.2)
    assert made.begin(made.scheduler.due) is not None


@pytest.mark.parametrize(("took", "rest"), [(0.5, 1.5), (2.0, 3.0), (5.0, 5.0)])
def test_the_pause_after_a_plan_is_a_multiple_of_its_time_up_to_a_limit(took: float, rest: float) -> None:
    made = SchedulerBench()
    made.change(0.0)
    ended = made.make(0.0, took=took)
    made.change(ended)
    assert made.scheduler.due == ended + rest


def test_urgent_plans_pause_only_as_long_as_the_last_plan_took() -> None:
    made = SchedulerBench()
    made.change(0.0)
    ended = made.make(0.0, took=1.0)
    made.scheduler.members_changed(3, ended, gone=True)
    assert made.scheduler.due == ended + 1.0
    made.members = made.members[:3]
    peer, took = node(2).node, 1.0
    for path in (
        PathStatistics(peer, sent=9.0, degraded_to=0.1),
        PathStatistics(peer, sent=9.0, degraded_to=0.1, failed=True),
    ):
        ended = made.make(ended, took=took)
        made.measure(1, NodeStatistics(paths=[path]), ended)
        assert made.scheduler.due == ended + took, path
    ended = made.make(ended, took=took)
    made.measure(1, NodeStatistics(paths=[PathStatistics(peer, sent=30.0, degraded_to=0.1, failed=True)]), ended)
    assert made.scheduler.due == ended + 3.0, "earlier reports do not count again"


def test_substantial_changes_of_statistics_make_at_most_one_plan_a_second() -> None:
    made = SchedulerBench()
    made.change(0.0)
    began = made.make(0.0)
    made.measure(1, NodeStatistics(up=50.0), began + 0.1)
    assert made.scheduler.due == began + REPLAN_MIN_SECONDS
    began = made.make(0.0)
    made.measure(1, NodeStatistics(up=55.0), began + 5.0)
    assert made.scheduler.due == float("inf")
    made.measure(1, NodeStatistics(up=61.0), began + 5.0)
    assert made.scheduler.due == pytest.approx(began + 5.0 + SETTLE_SECONDS)


def test_statistics_make_no_plan_just_after_an_announcement() -> None:
    made = SchedulerBench()
    made.change(0.0)
    ended = made.make(0.0)
    made.scheduler.announced(0, ended + 5.0)
    made.measure(1, NodeStatistics(up=50.0), ended + 5.5)
    assert made.scheduler.due == ended + 5.0 + ANNOUNCE_SETTLE_SECONDS


def test_plans_that_change_nothing_lengthen_the_wait_for_the_next() -> None:
    made = SchedulerBench()
    made.change(0.0)
    began = made.make(0.0)
    waits = []
    for number in range(6):
        made.measure(1, NodeStatistics(up=2.0**number), began)
        waits.append(made.scheduler.due - began)
        began = made.scheduler.due
        assert made.begin(began) is not None
        assert not made.scheduler.made(Book(made.revision), began)
    assert waits == pytest.approx([min(REPLAN_MAX_SECONDS, 2**n * REPLAN_MIN_SECONDS) for n in range(6)])
    made.measure(1, NodeStatistics(up=100.0), began)
    began = made.make(began)
    made.measure(1, NodeStatistics(up=200.0), began)
    assert made.scheduler.due == began + REPLAN_MIN_SECONDS, "a plan that changed something may be followed soon"


def test_a_degraded_path_is_planned_for_at_once() -> None:
    made = SchedulerBench()
    made.change(0.0)
    began = made.make(0.0)
    made.measure(1, NodeStatistics(paths=[PathStatistics(node(2).node, sent=4.0, degraded_to=0.1)]), began + 0.1)
    assert made.scheduler.due == began + 0.1 + SETTLE_SECONDS


def test_small_changes_of_statistics_add_up() -> None:
    made = SchedulerBench()
    made.measure(1, NodeStatistics(up=50.0), 0.0)
    made.make(0.0)
    for step, rate in enumerate((54.0, 58.0)):
        made.measure(1, NodeStatistics(up=rate), 5.0 + step)
        assert made.scheduler.due == float("inf")
    made.measure(1, NodeStatistics(up=62.0), 8.0)
    assert made.scheduler.due < float("inf")


def test_a_failed_path_makes_a_plan() -> None:
    made = SchedulerBench()
    made.change(0.0)
    made.make(0.0)
    failed = NodeStatistics(paths=[PathStatistics(node(2).node, failed=True)])
    made.measure(1, failed, 20.0)
    task = made.begin(made.scheduler.due)
    assert task is not None and task.statistics == {node(1).node: failed}


def test_a_failed_path_that_no_plan_uses_makes_none() -> None:
    made = SchedulerBench()
    made.change(0.0)
    assert made.begin(made.scheduler.due) is not None
    made.scheduler.made(Book(1, {node(1).node: [node(3).node]}), 1.0)
    made.measure(1, NodeStatistics(paths=[PathStatistics(node(2).node, failed=True)]), 20.0)
    assert made.scheduler.due == float("inf")
    made.measure(1, NodeStatistics(paths=[PathStatistics(node(3).node, failed=True)]), 21.0)
    assert made.scheduler.due == 21.0 + SETTLE_SECONDS


def test_statistics_of_non_members_are_not_planned_with() -> None:
    made = SchedulerBench(2)
    made.reported["e" * 32] = NodeStatistics(up=1.0)
    made.change(0.0)
    task = made.begin(1.0)
    assert task is not None and task.statistics == {}


def test_an_unchanged_plan_is_not_reported_as_new() -> None:
    made = SchedulerBench()
    made.change(0.0)
    now = made.make(0.0)
    plan_result = made.scheduler.plan_result
    made.change(now)
    assert made.begin(made.scheduler.due) is not None
    assert not made.scheduler.made(Book(1), now + 1)
    assert made.scheduler.plan_result is plan_result


def test_a_failed_plan_is_reported_once_and_retried_while_the_old_one_stays() -> None:
    made = SchedulerBench()
    made.change(0.0)
    now = made.make(0.0)
    plan_result = made.scheduler.plan_result
    made.change(now)
    reported, pauses = [], []
    for _ in range(8):
        now = made.scheduler.due
        assert made.begin(now) is not None
        reported.append(made.scheduler.failed("cannot plan", now))
        pauses.append(made.scheduler.due - now)
    assert reported == [True] + [False] * 7
    assert pauses == sorted(pauses) and pauses[0] <= 1.0 and pauses[-1] == RETRY_MAX_SECONDS
    assert made.scheduler.plan_result is plan_result
    now = made.make(0.0)
    made.change(now)
    now = made.scheduler.due
    assert made.begin(now) is not None
    assert made.scheduler.failed("cannot plan", now), "a plan succeeded in between"
