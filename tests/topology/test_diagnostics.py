"""The diagnostics of a plan's network, a line each."""

from __future__ import annotations

from p2psync.membership.planning import PlanTask
from p2psync.membership.records import Member, NodeInfo, NodeStatistics, PathStatistics
from p2psync.topology.hub_planner import HubPlanner


def name(number: int) -> str:
    return f"{number}" * 32


def member(number: int, port: int = 7071) -> Member:
    """Node 0 is the trainer."""
    role = "actor" if number else "trainer"
    return Member(info=NodeInfo(node=name(number), role=role, region="eu", host="h", port=port))


def reported(
    count: int, failed: frozenset[tuple[int, int]] = frozenset(), ups: dict[int, float] | None = None
) -> PlanTask:
    """All measured each other at 20 Mbit/s, except pairs that failed in this direction."""
    statistics = {}
    for i in range(count):
        paths = [
            PathStatistics(name(j), 0.01, 20.0, 20.0, failed=False)
            if (i, j) not in failed
            else PathStatistics(name(j), failed=True)
            for j in range(count)
            if i != j
        ]
        statistics[name(i)] = NodeStatistics((ups or {}).get(i, 30.0), 100.0, paths)
    return PlanTask(name(0), [member(i) for i in range(count)], statistics)


def lines(task: PlanTask) -> dict[str, str]:
    return dict(HubPlanner().plan(task).diagnostics)


def test_a_sound_network_has_no_diagnostics() -> None:
    assert lines(reported(6)) == {}


def test_a_node_that_most_cannot_dial_is_reported_with_its_address() -> None:
    found = lines(reported(6, frozenset((i, 3) for i in (0, 1, 2))))
    assert list(found) == [f"undialled {name(3)}"]
    assert found[f"undialled {name(3)}"].startswith("3 of 5 nodes that know 33333333 (h:7071) cannot open a connection")
    assert lines(reported(6, frozenset({(1, 3), (2, 3)}))) == {}


def test_an_unreachable_node_is_reported() -> None:
    alone = frozenset({*((i, 3) for i in range(6)), *((3, i) for i in range(6))})
    found = lines(reported(6, alone))
    assert "is in no tree" in found[f"unreachable {name(3)}"]


def test_a_node_that_overstates_its_uplink_is_reported() -> None:
    found = lines(reported(6, ups={2: 5000.0, 4: 150.0}))
    assert list(found) == [f"overclaim {name(2)}"]
    assert "reports an uplink of 5e+03 Mbit/s, but all others together received 100" in found[f"overclaim {name(2)}"]
    assert found[f"overclaim {name(2)}"].endswith("the plan assumes 40")


def test_the_trainers_claim_on_its_uplink_is_not_questioned() -> None:
    assert lines(reported(6, ups={0: 5000.0})) == {}
