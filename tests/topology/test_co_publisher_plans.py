"""Co-publishers: one node to the planner, each a parent to the publisher's children."""

from __future__ import annotations

import pytest

from p2psync.membership.planning import PlanTask
from p2psync.membership.records import Member, NodeInfo, NodeStatistics, PathStatistics
from p2psync.topology.hub_planner import HubPlanner, network_of


def name(number: int) -> str:
    return f"{number:032x}"


def member(number: int, role: str = "actor") -> Member:
    """Members 0 to 2 publish together; the first is the trainer."""
    kind = "trainer" if number < 3 else "actor"
    info = NodeInfo(node=name(number), role=kind, region="eu" if number < 6 else "us", host="h", port=7071)  # type: ignore[arg-type]
    return Member(info=info)


def reported(members: int, rate: float = 100.0) -> dict[str, NodeStatistics]:
    """All nodes have this uplink, and have measured each other."""
    found = {}
    for one in range(members):
        paths = [PathStatistics(name(two), 0.01, rate, rate) for two in range(members) if two != one]
        found[name(one)] = NodeStatistics(rate, 1000.0, paths)
    return found


CO_PUBLISHERS = frozenset({name(1), name(2)})


def task(
    co_publishers: frozenset[str] = CO_PUBLISHERS, statistics: dict[str, NodeStatistics] | None = None
) -> PlanTask:
    return PlanTask(
        name(0), [member(i) for i in range(9)], reported(9) if statistics is None else statistics, co_publishers
    )


def test_co_publishers_are_one_node_with_all_their_uplinks() -> None:
    network = network_of(task())
    assert set(network.names) == {name(i) for i in (0, *range(3, 9))}
    assert network.up[network.trainer] == pytest.approx(300.0)
    assert {float(up) for i, up in enumerate(network.up) if i != network.trainer} == {100.0}


def test_a_co_publisher_without_a_report_is_assumed_to_be_like_the_others() -> None:
    statistics = reported(9)
    del statistics[name(2)]
    assert network_of(task(statistics=statistics)).up[network_of(task()).trainer] == pytest.approx(300.0)


def test_every_co_publisher_is_a_root_of_all_trees_at_its_share_of_the_rate() -> None:
    plan_result = HubPlanner().plan(task())
    parts = [plan_result.node_plan(name(i)) for i in range(3)]
    whole = plan_result.plan.node_plan(name(0))
    for part in parts:
        assert part is not None
        assert [place.children for place in part.positions] == [place.children for place in whole.positions]
        assert [place.rate for place in part.positions] == pytest.approx([place.rate / 3 for place in whole.positions])
        assert (part.peers, part.co_publishers) == (whole.peers, [])


def test_children_of_the_trainer_have_every_co_publisher_as_a_parent() -> None:
    plan_result = HubPlanner().plan(task())
    fed = 0
    for i in range(3, 9):
        part = plan_result.node_plan(name(i))
        assert part is not None
        part.check()
        parents = {part.peers[place.parent] for place in part.positions}
        co_publishers = {part.peers[peer] for peer in part.co_publishers}
        assert co_publishers == (CO_PUBLISHERS if name(0) in parents else set())
        fed += bool(co_publishers)
    assert fed


def test_a_change_of_co_publishers_makes_another_plan() -> None:
    planner = HubPlanner()
    first = planner.plan(task())
    assert planner.plan(task()).revision == first.revision
    later = planner.plan(
        PlanTask(name(0), [member(i) for i in (0, 1, *range(3, 9))], reported(9), frozenset({name(1)}))
    )
    assert later.revision > first.revision
    assert later.node_plan(name(1)) is not None and later.node_plan(name(2)) is None
