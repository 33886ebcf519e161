"""Plans from the members' statistics."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from p2psync.membership.planning import PlanTask
from p2psync.membership.records import Member, NodeInfo, NodeStatistics, PathStatistics
from p2psync.protocol.plan import NodePlan
from p2psync.protocol.wire import decode_json, encode_json
from p2psync.topology.ack_overhead import ACK_BYTES_PER_BYTE
from p2psync.topology.hub_planner import MAX_REGIONS, UNKNOWN_REGION, HubPlanner, HubPlanResult, network_of
from p2psync.topology.network import Network
from p2psync.topology.plan import Plan
from tests.plan_fractions import fractions_from, fractions_to

#: A path between nodes within a region, and between regions (seconds, Mbit/s).
NEAR, FAR = (0.002, 100.0), (0.080, 40.0)


def name(number: int) -> str:
    return f"{number:032x}"


def member(number: int, region: str = "eu", port: int = 7071) -> Member:
    """Node 0 is the trainer."""
    role = "actor" if number else "trainer"
    return Member(info=NodeInfo(node=name(number), role=role, region=region, host="h", port=port))


def measured(
    count: int, ups: dict[int, float], regions: dict[int, str] | None = None, far: tuple[float, float] = FAR
) -> dict[str, NodeStatistics]:
    """Statistics of members that have all measured each other, with 100 Mbit/s each by default."""
    reported = {}
    for i in range(count):
        paths = []
        for j in range(count):
            rtt, rate = NEAR if regions is None or regions[i] == regions[j] else far
            if i != j:
                paths.append(PathStatistics(name(j), rtt, min(rate, ups.get(i, 100.0)), min(rate, ups.get(j, 100.0))))
        reported[name(i)] = NodeStatistics(ups.get(i, 100.0), 1000.0, paths)
    return reported


def plan(task: PlanTask) -> HubPlanResult:
    return HubPlanner().plan(task)


def task(members: list[Member], statistics: dict[str, NodeStatistics] | None = None) -> PlanTask:
    return PlanTask(name(0), members, statistics or {})


def copies_sent(plan_result: HubPlanResult, number: int) -> float:
    """Copies of the payload that a node sends to its children, by its own part of the plan."""
    part = plan_result.node_plan(name(number))
    assert part is not None
    return sum(fractions_to(part).values())


def test_without_statistics_all_nodes_are_equal_and_have_a_parent() -> None:
    for regions in (["eu"] * 8, [""] * 8, ["eu", "eu", "us", "us", "us", "", "", ""]):
        plan_result = plan(task([member(i, region) for i, region in enumerate(regions)]))
        for i in range(1, 8):
            part = plan_result.node_plan(name(i))
            assert part is not None
            part.check()
            assert abs(sum(fractions_from(part).values()) - 1.0) < 1e-6
        assert copies_sent(plan_result, 0) < 1.01, "the trainer sends one copy, the others relay the rest"
        assert max(copies_sent(plan_result, i) for i in range(1, 8)) < 1.05


def test_members_without_statistics_form_one_region() -> None:
    network = network_of(task([member(i, "") for i in range(40)]))
    assert network.regions == (UNKNOWN_REGION,)
    half = network_of(task([member(i, "eu" if i < 20 else "") for i in range(40)]))
    assert half.regions == ("eu", UNKNOWN_REGION)


def test_a_node_with_a_slow_uplink_has_fewer_children() -> None:
    ups = {3: 25.0}
    plan_result = plan(task([member(i) for i in range(12)], measured(12, ups)))
    assert copies_sent(plan_result, 3) < 0.25
    others = [copies_sent(plan_result, i) for i in range(1, 12) if i != 3]
    assert min(others) > 0.94


def test_a_slow_uplink_keeps_capacity_for_acknowledgements() -> None:
    ups = dict.fromkeys(range(1, 9), 20.0) | {3: 5.0}  # all of them together bind
    plan_result = plan(task([member(i) for i in range(9)], measured(9, ups)))
    rate = plan_result.plan.lowest_rate
    assert rate > 29.5
    assert copies_sent(plan_result, 3) * rate <= (5 - ACK_BYTES_PER_BYTE * rate) * 1.001


def test_a_claim_beyond_the_bytes_that_others_received_is_not_believed() -> None:
    reported = measured(12, {3: 10.0})
    reported[name(3)] = msgspec.structs.replace(reported[name(3)], up=1e6)
    network = network_of(task([member(i) for i in range(12)], reported))
    assert network.up[3] <= 20.0
    plan_result = plan(task([member(i) for i in range(12)], reported))
    assert copies_sent(plan_result, 3) < 0.2


def test_pairs_that_failed_both_ways_are_not_parent_and_child() -> None:
    reported = measured(6, {})
    for one, other in ((1, 2), (2, 1)):
        paths = [
            msgspec.structs.replace(p, failed=True) if p.peer == name(other) else p for p in reported[name(one)].paths
        ]
        reported[name(one)] = msgspec.structs.replace(reported[name(one)], paths=paths)
    plan_result = plan(task([member(i) for i in range(6)], reported))
    for one, other in ((1, 2), (2, 1)):
        part = plan_result.node_plan(name(one))
        assert part is not None
        assert name(other) not in part.peers


def test_undialable_nodes_are_not_parent_and_child_and_unreachable_ones_are_left_out() -> None:
    reported = measured(6, {})
    hidden = {2, 3, 4}
    unreached = [PathStatistics(name(j), failed=True) for j in range(6) if j != 4]
    reported[name(4)] = NodeStatistics(100.0, 100.0, unreached)
    plan_result = plan(task([member(i, port=0 if i in hidden else 7071) for i in range(6)], reported))
    part = plan_result.node_plan(name(2))
    assert part is not None
    assert name(3) not in part.peers
    assert plan_result.node_plan(name(4)) is None
    assert plan_result.node_plan("f" * 32) is None


def test_regions_are_found_and_slow_links_between_them_carry_one_copy() -> None:
    regions = {i: "ab"[i % 2] for i in range(8)}
    members = [member(i, "") for i in range(8)]
    plan_result = plan(task(members, measured(8, {}, regions)))
    across = 0.0
    for i in range(8):
        part = plan_result.node_plan(name(i))
        assert part is not None
        across += sum(f for peer, f in fractions_to(part).items() if regions[int(peer, 16)] != regions[i])
    assert across < 1.02


def test_each_node_gets_the_headroom_of_the_paths_to_its_children() -> None:
    regions = {i: "ab"[i % 2] for i in range(8)}
    members = [member(i, regions[i]) for i in range(8)]
    plan_result = plan(task(members, measured(8, {}, regions, far=(0.1, 10.0))))
    across = []
    for i in range(8):
        part = plan_result.node_plan(name(i))
        assert part is not None
        part.check()
        limits, rates = part.limits_to(), part.rates_to()
        assert limits.keys() == rates.keys()
        across += [limits[peer] / rate for peer, rate in rates.items() if regions[int(peer, 16)] != regions[i]]
    assert min(across) == pytest.approx(1.0), "the link between the regions binds"


def test_a_plan_is_kept_while_it_is_good_and_revisions_rise_when_it_is_not() -> None:
    planner = HubPlanner(first_revision=100)
    members = [member(i) for i in range(8)]
    first = planner.plan(task(members, measured(8, {})))
    again = planner.plan(task(members, measured(8, {5: 98.0})))
    assert (first.revision, again.revision) == (100, 100)
    slower = planner.plan(task(members, measured(8, {5: 10.0})))
    assert slower.revision == 101
    assert copies_sent(slower, 5) < copies_sent(first, 5) / 2
    joined = planner.plan(task([*members, member(8)], measured(8, {5: 10.0})))
    assert joined.revision == 102 and joined.node_plan(name(8)) is not None
    left = planner.plan(task(members[:7], measured(7, {5: 10.0})))
    assert left.revision == 103 and left.node_plan(name(7)) is None
    taken_over = planner.plan(PlanTask(name(1), members, measured(8, {})))
    part = taken_over.node_plan(name(1))
    assert taken_over.revision == 104 and part is not None and fractions_from(part) == {}


def test_after_a_failed_plan_the_next_one_starts_afresh_with_a_higher_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner = HubPlanner()
    members = [member(i) for i in range(4)]
    first = planner.plan(task(members))

    def fail(old: Plan, network: Network, *, payload: int, idle: bool) -> Plan:
        raise ArithmeticError("a plan of which nothing can be made")

    monkeypatch.setattr("p2psync.topology.hub_planner.replan", fail)
    with pytest.raises(ArithmeticError):
        planner.plan(task(members))
    assert planner.plan(task(members)).revision == first.revision + 1


def test_small_payloads_get_two_hop_trees() -> None:
    # All are far from each other.
    members, reported = [member(i) for i in range(12)], measured(12, {}, {i: str(i) for i in range(12)}, (0.3, 100.0))
    planner = HubPlanner()
    depths = []
    for payload in (256 << 20, 1 << 20):
        made = planner.plan(PlanTask(name(0), members, reported, payload=payload)).plan
        depths.append(int(made.depth.max()))
        assert made.lowest_rate > 0.99 * made.bound
    assert depths[1] == 2 < depths[0]


def test_a_region_of_ones_own_each_does_not_make_planning_slow() -> None:
    members = [member(i, f"region {i}" if i % 2 else "eu") for i in range(600)]
    network = network_of(task(members))
    assert len(network.regions) == MAX_REGIONS and {"eu", UNKNOWN_REGION} <= set(network.regions)
    assert plan(task(members)).node_plan(name(599)) is not None


def test_a_thousand_members_get_small_parts() -> None:
    rng = np.random.default_rng(1)
    members = [member(i, f"r{i % 10}") for i in range(1000)]
    reported = {
        name(i): NodeStatistics(
            100.0,
            100.0,
            [PathStatistics(name(int(j)), 0.02, 80.0, 80.0) for j in rng.choice(1000, 48, replace=False) if j != i],
        )
        for i in range(1000)
    }
    plan_result = plan(task(members, reported))
    sizes = [len(msgspec.json.encode(plan_result.node_plan(name(i)))) for i in range(0, 1000, 50)]
    assert max(sizes) < 8192


def test_a_plan_that_reaches_no_node_is_finite_and_is_replaced_by_one_that_does() -> None:
    planner = HubPlanner()
    hidden = [member(0, port=0), member(1, port=0), member(2, port=0)]  # none of them can be dialled
    plan_result = planner.plan(task(hidden))
    assert plan_result.plan.reaches_nobody
    part = plan_result.node_plan(name(0))
    assert part is not None and (part.rate, part.positions[0].parent, part.positions[0].children) == (0, -1, [])
    part.check()
    assert decode_json(encode_json(part), NodePlan) == part
    assert plan_result.node_plan(name(1)) is None
    assert planner.plan(task(hidden)).revision == plan_result.revision, "nothing changed: the revision stays"
    open_again = planner.plan(task([member(0), *hidden[1:]]))
    assert not open_again.plan.reaches_nobody and open_again.plan.rate > 0
    assert open_again.revision > plan_result.revision
    shut = planner.plan(task(hidden))
    assert shut.plan.reaches_nobody and shut.revision > open_again.revision
