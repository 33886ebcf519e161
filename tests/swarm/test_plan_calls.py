"""How a node tells what it measured, gets its part of the plan, and connects accordingly. In virtual time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from swarm_parts import view_of

from p2psync.errors import FormatError
from p2psync.membership.client import (
    BARE_MIN_SECONDS,
    DEGRADATION_MIN_SECONDS,
    RETRY_MAX_SECONDS,
    RETRY_MIN_SECONDS,
    STATISTICS_MIN_SECONDS,
    CallJoin,
    CallPlan,
    CallRenew,
    CallView,
    MembershipClient,
)
from p2psync.membership.records import Lease, NodeInfo, NodeStatistics, PathStatistics, Renew, View
from p2psync.protocol.plan import NodePlan, TreePosition, unplanned
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.dialer import Dial
from p2psync.swarm.node import NodeCore

TTL = 9.0


def member() -> MembershipClient:
    """A client that joined at time 0, and whose long poll is open."""
    made = MembershipClient(NodeInfo(node="n", role="actor"), random.Random(1))
    made.poll(0.0)
    made.joined(Lease(lease="l", ttl=TTL, revision=1), 0.0)
    made.poll(0.0)
    return made


def renewal(made: MembershipClient, now: float) -> Renew | None:
    """What it tells the hub at a time, if anything; the hub confirms it."""
    found = [call.request for call in made.poll(now) if isinstance(call, CallRenew)]
    if not found:
        return None
    made.renewed(Lease(lease="l", ttl=TTL, revision=1), now)
    return found[0]


def plan_calls(made: MembershipClient, now: float) -> int:
    """How often it asks for the plan at a time."""
    return sum(isinstance(call, CallPlan) for call in made.poll(now))


def show_plan(made: MembershipClient, plan: int, now: float, instance: str = "hub") -> None:
    """The hub shows this revision of the plan."""
    shown = view_of(revision=plan)
    made.viewed(View(instance=instance, revision=plan, plan=plan, lineage=shown.lineage), now)


# what it measured


def test_measures_are_told_once_and_again_only_when_they_change() -> None:
    made = member()
    made.statistics = NodeStatistics(up=50.0)
    assert renewal(made, 0.0) == Renew(lease="l", statistics=NodeStatistics(up=50.0))
    assert renewal(made, 1.0) is None
    told = renewal(made, TTL / 3)
    assert told is not None and told.statistics is None
    made.statistics = NodeStatistics(up=52.0)
    assert renewal(made, TTL / 3 + 1) is None, "so little waits for the next renewal"
    told = renewal(made, 2 * TTL / 3)
    assert told is not None and told.statistics == NodeStatistics(up=52.0)


def test_a_great_change_is_told_at_once_but_not_all_the_time() -> None:
    made = member()
    made.statistics = NodeStatistics(up=50.0)
    renewal(made, 0.0)
    made.statistics = NodeStatistics(up=5.0)
    assert made.next_wake() == STATISTICS_MIN_SECONDS
    assert renewal(made, STATISTICS_MIN_SECONDS / 2) is None
    told = renewal(made, STATISTICS_MIN_SECONDS)
    assert told is not None and told.statistics == NodeStatistics(up=5.0)


def test_a_way_that_fell_is_told_almost_at_once_and_once() -> None:
    made = member()
    made.statistics = NodeStatistics(up=50.0, paths=[PathStatistics("p", sent=40.0)])
    assert renewal(made, 0.0) is not None
    made.statistics = NodeStatistics(up=50.0, paths=[PathStatistics("p", sent=4.0, degraded_to=0.1)])
    assert made.next_wake() == DEGRADATION_MIN_SECONDS
    told = renewal(made, DEGRADATION_MIN_SECONDS)
    assert told is not None and told.statistics is not None and told.statistics.paths[0].degraded_to == 0.1
    made.statistics = NodeStatistics(up=50.0, paths=[PathStatistics("p", sent=30.0, degraded_to=0.1)])
    assert made.next_wake() == DEGRADATION_MIN_SECONDS + STATISTICS_MIN_SECONDS, "it was told"


def test_what_was_not_confirmed_is_told_again() -> None:
    made = member()
    made.statistics = NodeStatistics(up=50.0)
    (call,) = made.poll(0.0)
    made.failed(call, 0.1)
    assert renewal(made, 1.5) == Renew(lease="l"), "the lease comes first"
    assert made.next_wake() == 1.5 + BARE_MIN_SECONDS
    told = renewal(made, 1.5 + BARE_MIN_SECONDS)
    assert told is not None and told.statistics == NodeStatistics(up=50.0)


def test_measures_that_never_get_through_do_not_cost_the_lease() -> None:
    made, now, failures = member(), 0.0, 0
    made.statistics = NodeStatistics(up=50.0)
    while now < 100 * TTL:
        for call in made.poll(now):
            assert isinstance(call, CallRenew), "the lease was held all the time"
            assert call.limit == TTL / 3
            if call.request.statistics is None:
                made.renewed(Lease(lease="l", ttl=TTL, revision=1), now)
            else:
                failures += 1
                made.failed(call, now + call.limit)
        now = max(now, made.next_wake())
    assert failures < 15, "they are tried at growing intervals"


def test_after_joining_anew_everything_is_told_again() -> None:
    made = member()
    made.statistics = NodeStatistics(up=50.0)
    renewal(made, 0.0)
    made.lease_lost(2.0)
    assert [type(call) for call in made.poll(2.0)] == [CallJoin]
    made.joined(Lease(lease="l2", ttl=TTL, revision=1), 2.1)
    told = renewal(made, 2.1)
    assert told is not None and told.statistics == NodeStatistics(up=50.0)


# its part of the plan


def test_the_plan_is_asked_for_once_for_each_revision() -> None:
    made = member()
    assert plan_calls(made, 0.5) == 0
    show_plan(made, 3, 1.0)
    assert made.next_wake() <= 1.0
    assert plan_calls(made, 1.0) == 1
    show_plan(made, 4, 1.1)
    assert plan_calls(made, 1.1) == 0, "one call at a time"
    made.planned(3, 1.2)
    made.planned(4, 1.2)
    show_plan(made, 4, 2.0)
    assert plan_calls(made, 9.0) == 0


def test_a_plan_that_is_newer_than_the_view_is_not_asked_for_again() -> None:
    made = member()
    show_plan(made, 3, 1.0)
    plan_calls(made, 1.0)
    made.planned(4, 1.2)
    show_plan(made, 4, 1.3)
    assert plan_calls(made, 1.3) == 0


def test_a_hub_that_was_started_anew_is_asked_though_its_revisions_began_anew() -> None:
    made = member()
    show_plan(made, 3, 1.0)
    plan_calls(made, 1.0)
    made.planned(3, 1.1)
    show_plan(made, 0, 2.0, instance="other")
    assert plan_calls(made, 2.0) == 0
    show_plan(made, 3, 2.1, instance="other")
    assert plan_calls(made, 2.1) == 1


def test_a_plan_older_than_the_view_is_asked_for_again_after_a_pause() -> None:
    made = member()
    show_plan(made, 9, 1.0)
    assert plan_calls(made, 1.0) == 1
    made.planned(1, 1.1)
    assert plan_calls(made, 1.1) == 0
    assert 1.1 < made.next_wake() <= 1.1 + 2 * RETRY_MIN_SECONDS
    assert plan_calls(made, made.next_wake()) == 1


def test_pauses_after_failures_grow_and_leave_lease_and_view_alone() -> None:
    made = member()
    made._renew_at = 1e9
    made._lease_end = 1e9
    show_plan(made, 9, 1.0)
    now, pauses = 1.0, []
    for _ in range(10):
        calls = [call for call in made.poll(now) if not isinstance(call, CallView)]
        assert calls == [CallPlan("l")]
        made.failed(calls[0], now)
        pauses.append(made.next_wake() - now)
        now = made.next_wake()
    assert pauses[0] < 0.3 and RETRY_MAX_SECONDS * 0.7 < pauses[-1] < RETRY_MAX_SECONDS * 1.3
    assert made.lease == "l"


def test_whoever_is_out_does_not_ask() -> None:
    made = member()
    show_plan(made, 3, 1.0)
    made.lease_lost(1.0)
    assert plan_calls(made, 1.0) == 0


# whom it connects to

CONFIG = NodeConfig(max_dialled_peers=2, max_peers=3)


def info(name: str, port: int = 1) -> NodeInfo:
    return NodeInfo(node=name, role="actor", host="h", port=port)


def plan_of(*peers: str, revision: int = 1) -> NodePlan:
    """The first peer feeds this node, which feeds the others."""
    return NodePlan(revision, list(peers), [1], [TreePosition(0, list(range(1, len(peers))), 1, 10.0)])


class Node:
    """A member."""

    def __init__(self, name: str, *, port: int = 1, config: NodeConfig = CONFIG) -> None:
        self.core = NodeCore(info(name, port), config, random.Random(3))
        self.core.poll(0.0)
        self.core.membership.joined(Lease(lease="l", ttl=1000.0, revision=1), 0.0)
        self.core.actions()

    def meet(self, *others: NodeInfo, now: float = 0.0) -> None:
        self.core.viewed(view_of(members=others), now)

    def dials(self, now: float) -> list[str]:
        self.core.poll(now)
        return [a.info.node for a in self.core.actions() if isinstance(a, Dial)]


def test_the_peers_of_the_plan_are_dialled_first_and_however_many_there_are() -> None:
    node = Node("a")
    node.core.planned(plan_of("e", "f", "g"), 0.0)
    node.meet(*(info(name) for name in "bcdefgh"))
    assert sorted(node.dials(0.0)) == ["e", "f", "g"]
    for name in "efg":
        assert node.core.peer_up(name, "", 1.0)
    assert node.dials(9.0) == [], "no room is left for others"
    node.core.peer_down("f", 20.0)
    assert node.dials(30.0) == ["f"]


def test_others_fill_up_what_the_plan_leaves() -> None:
    node = Node("a", config=replace(CONFIG, max_dialled_peers=4))
    node.core.planned(plan_of("e"), 0.0)
    node.meet(*(info(name) for name in "bcdefgh"))
    dialled = node.dials(0.0)
    assert len(dialled) == 4 and dialled[0] == "e"


def test_peers_of_the_plan_are_taken_though_there_are_too_many() -> None:
    node = Node("a")
    for name in "bcd":
        assert node.core.peer_up(name, "", 0.0)
    assert not node.core.peer_up("e", "", 0.0)
    node.core.planned(plan_of("e"), 0.0)
    assert node.core.peer_up("e", "", 1.0)
    assert not node.core.peer_up("f", "", 1.0)


def test_a_new_peer_of_the_plan_is_tried_at_once_though_earlier_dials_failed() -> None:
    node = Node("a")
    node.meet(info("b"))
    now = 0.0
    for _ in range(8):
        assert node.dials(now) == ["b"]
        node.core.dial_failed("b", now)
        now += CONFIG.redial_max_seconds * 1.25
    assert node.dials(now) == ["b"]
    node.core.dial_failed("b", now)
    assert node.dials(now + 1.0) == []
    node.core.planned(plan_of("b"), now + 1.0)
    assert node.dials(now + 1.0) == ["b"]
    node.core.dial_failed("b", now + 1.1)
    node.core.planned(plan_of("b", revision=2), now + 1.1)
    assert node.dials(now + 1.1) == [], "it was one before"


def test_of_two_peers_of_the_plan_one_dials_at_once_and_the_other_waits() -> None:
    node = Node("m", config=replace(CONFIG, max_dialled_peers=0))
    node.meet(info("a"), info("z"))
    assert node.dials(99.0) == []
    node.core.planned(plan_of("a", "z"), 100.0)
    assert node.dials(100.0) == ["z"]
    assert node.dials(100.0 + CONFIG.dial_wait_seconds) == ["a"]


def test_a_node_behind_nat_dials_its_parent_and_a_parent_waits_for_such_a_child() -> None:
    child = Node("z", port=0, config=replace(CONFIG, max_dialled_peers=0))
    child.meet(info("a"))
    child.core.planned(plan_of("a"), 0.0)
    assert child.dials(0.0) == ["a"]
    parent = Node("a")
    parent.meet(info("z", port=0))
    parent.core.planned(plan_of("b", "z"), 0.0)
    assert parent.dials(50.0) == []
    assert parent.core.peer_up("z", "", 60.0)


def test_a_plan_that_no_planner_makes_is_refused_and_the_last_one_stays() -> None:
    node = Node("a")
    node.core.planned(plan_of("b"), 0.0)
    for nonsense in (
        NodePlan(2, ["b"], [1], [TreePosition(7, [], 1, 1.0)]),
        NodePlan(2, ["b"], [], []),
        NodePlan(2, ["b"], [1, 1], [TreePosition(0, [], 1, 1.0)]),
    ):
        with pytest.raises(FormatError):
            node.core.planned(nonsense, 1.0)
    assert node.core.plan == plan_of("b")
    node.core.planned(unplanned(2), 2.0)
    assert node.core.plan == unplanned(2)


def test_a_plan_without_this_nodes_peers_leaves_it_to_dial_as_before() -> None:
    node = Node("a")
    node.core.planned(unplanned(1), 0.0)
    node.meet(*(info(name) for name in "bcd"))
    assert len(node.dials(0.0)) == CONFIG.max_dialled_peers
