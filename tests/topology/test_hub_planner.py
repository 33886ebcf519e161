"""Plans from what members told the hub."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from p2psync.membership.planning import PlanTask
from p2psync.membership.records import Measures, Member, NodeInfo, Path
from p2psync.protocol.plan import NodePlan
from p2psync.protocol.wire import decode_json, encode_json
from p2psync.topology.ack_overhead import ACKS
from p2psync.topology.hub_planner import MAX_REGIONS, UNKNOWN, HubBook, HubPlanner, network_of
from p2psync.topology.network import Network
from p2psync.topology.plan import Plan

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
) -> dict[str, Measures]:
    """What members tell who have all measured each other, with 100 Mbit/s each unless told otherwise."""
    told = {}
    for i in range(count):
        paths = []
        for j in range(count):
            rtt, rate = NEAR if regions is None or regions[i] == regions[j] else far
            if i != j:
                paths.append(Path(name(j), rtt, min(rate, ups.get(i, 100.0)), min(rate, ups.get(j, 100.0))))
        told[name(i)] = Measures(ups.get(i, 100.0), 1000.0, paths)
    return told


def plan(task: PlanTask) -> HubBook:
    return HubPlanner().plan(task)


def task(members: list[Member], measures: dict[str, Measures] | None = None) -> PlanTask:
    return PlanTask(name(0), members, measures or {})


def feeds(book: HubBook, number: int) -> float:
    """Copies of everything that a node sends its children, by its own part of the plan."""
    part = book.node_plan(name(number))
    assert part is not None
    return sum(part.fractions_to().values())


def test_where_nothing_was_measured_all_are_equal_and_each_is_fed() -> None:
    for regions in (["eu"] * 8, [""] * 8, ["eu", "eu", "us", "us", "us", "", "", ""]):
        book = plan(task([member(i, region) for i, region in enumerate(regions)]))
        for i in range(1, 8):
            part = book.node_plan(name(i))
            assert part is not None
            part.check()
            assert abs(sum(part.fractions_from().values()) - 1.0) < 1e-6
        assert feeds(book, 0) < 1.01, "the trainer sends one copy, the others do the rest"
        assert max(feeds(book, i) for i in range(1, 8)) < 1.05


def test_members_of_whom_nothing_is_known_are_one_region() -> None:
    network = network_of(task([member(i, "") for i in range(40)]))
    assert network.regions == (UNKNOWN,)
    half = network_of(task([member(i, "eu" if i < 20 else "") for i in range(40)]))
    assert half.regions == ("eu", UNKNOWN)


def test_a_node_with_a_slow_uplink_feeds_fewer() -> None:
    ups = {3: 25.0}
    book = plan(task([member(i) for i in range(12)], measured(12, ups)))
    assert feeds(book, 3) < 0.25
    others = [feeds(book, i) for i in range(1, 12) if i != 3]
    assert min(others) > 0.94


def test_a_thin_uplink_keeps_room_for_acknowledging_what_comes_in() -> None:
    ups = dict.fromkeys(range(1, 9), 20.0) | {3: 5.0}  # all of them together bind
    book = plan(task([member(i) for i in range(9)], measured(9, ups)))
    rate = book.plan.lowest_rate
    assert rate > 29.5
    assert feeds(book, 3) * rate <= (5 - ACKS * rate) * 1.001


def test_a_node_that_claims_more_than_others_saw_of_it_is_not_believed() -> None:
    told = measured(12, {3: 10.0})
    told[name(3)] = msgspec.structs.replace(told[name(3)], up=1e6)
    network = network_of(task([member(i) for i in range(12)], told))
    assert network.up[3] <= 20.0
    book = plan(task([member(i) for i in range(12)], told))
    assert feeds(book, 3) < 0.2


def test_pairs_that_failed_both_ways_do_not_feed_each_other() -> None:
    told = measured(6, {})
    for one, other in ((1, 2), (2, 1)):
        paths = [msgspec.structs.replace(p, failed=True) if p.peer == name(other) else p for p in told[name(one)].paths]
        told[name(one)] = msgspec.structs.replace(told[name(one)], paths=paths)
    book = plan(task([member(i) for i in range(6)], told))
    for one, other in ((1, 2), (2, 1)):
        part = book.node_plan(name(one))
        assert part is not None
        assert name(other) not in part.peers


def test_nodes_that_nobody_can_dial_do_not_feed_each_other_and_one_that_nothing_reaches_is_left_out() -> None:
    told = measured(6, {})
    hidden = {2, 3, 4}
    unreached = [Path(name(j), failed=True) for j in range(6) if j != 4]
    told[name(4)] = Measures(100.0, 100.0, unreached)
    book = plan(task([member(i, port=0 if i in hidden else 7071) for i in range(6)], told))
    part = book.node_plan(name(2))
    assert part is not None
    assert name(3) not in part.peers
    assert book.node_plan(name(4)) is None
    assert book.node_plan("f" * 32) is None


def test_regions_are_found_and_slow_links_between_them_carry_one_copy() -> None:
    regions = {i: "ab"[i % 2] for i in range(8)}
    members = [member(i, "") for i in range(8)]
    book = plan(task(members, measured(8, {}, regions)))
    across = 0.0
    for i in range(8):
        part = book.node_plan(name(i))
        assert part is not None
        across += sum(f for peer, f in part.fractions_to().items() if regions[int(peer, 16)] != regions[i])
    assert across < 1.02


def test_each_node_is_told_what_the_ways_to_its_children_have_to_spare() -> None:
    regions = {i: "ab"[i % 2] for i in range(8)}
    members = [member(i, regions[i]) for i in range(8)]
    book = plan(task(members, measured(8, {}, regions, far=(0.1, 10.0))))
    across = []
    for i in range(8):
        part = book.node_plan(name(i))
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
    assert feeds(slower, 5) < feeds(first, 5) / 2
    joined = planner.plan(task([*members, member(8)], measured(8, {5: 10.0})))
    assert joined.revision == 102 and joined.node_plan(name(8)) is not None
    left = planner.plan(task(members[:7], measured(7, {5: 10.0})))
    assert left.revision == 103 and left.node_plan(name(7)) is None
    taken_over = planner.plan(PlanTask(name(1), members, measured(8, {})))
    part = taken_over.node_plan(name(1))
    assert taken_over.revision == 104 and part is not None and part.fractions_from() == {}


def test_after_a_plan_that_failed_the_next_one_begins_anew_with_a_higher_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner = HubPlanner()
    members = [member(i) for i in range(4)]
    first = planner.plan(task(members))

    def fail(old: Plan, network: Network, *, payload: int, quiet: bool) -> Plan:
        raise ArithmeticError("a plan of which nothing can be made")

    monkeypatch.setattr("p2psync.topology.hub_planner.replan", fail)
    with pytest.raises(ArithmeticError):
        planner.plan(task(members))
    assert planner.plan(task(members)).revision == first.revision + 1


def test_once_payloads_are_small_trees_are_flat() -> None:
    # All are far from each other.
    members, told = [member(i) for i in range(12)], measured(12, {}, {i: str(i) for i in range(12)}, (0.3, 100.0))
    planner = HubPlanner()
    depths = []
    for payload in (256 << 20, 1 << 20):
        made = planner.plan(PlanTask(name(0), members, told, payload=payload)).plan
        depths.append(int(made.depth.max()))
        assert made.lowest_rate > 0.99 * made.bound
    assert depths[1] == 2 < depths[0]


def test_a_region_of_ones_own_each_does_not_make_planning_slow() -> None:
    members = [member(i, f"region {i}" if i % 2 else "eu") for i in range(600)]
    network = network_of(task(members))
    assert len(network.regions) == MAX_REGIONS and {"eu", UNKNOWN} <= set(network.regions)
    assert plan(task(members)).node_plan(name(599)) is not None


def test_a_thousand_members_get_small_parts() -> None:
    rng = np.random.default_rng(1)
    members = [member(i, f"r{i % 10}") for i in range(1000)]
    told = {
        name(i): Measures(
            100.0, 100.0, [Path(name(int(j)), 0.02, 80.0, 80.0) for j in rng.choice(1000, 48, replace=False) if j != i]
        )
        for i in range(1000)
    }
    book = plan(task(members, told))
    sizes = [len(msgspec.json.encode(book.node_plan(name(i)))) for i in range(0, 1000, 50)]
    assert max(sizes) < 8192


def test_a_plan_that_reaches_nobody_is_told_in_finite_numbers_and_gives_way_to_one_that_does() -> None:
    planner = HubPlanner()
    hidden = [member(0, port=0), member(1, port=0), member(2, port=0)]  # none of them can be dialled
    book = planner.plan(task(hidden))
    assert book.plan.reaches_nobody
    part = book.node_plan(name(0))
    assert part is not None and (part.rate, part.places[0].parent, part.places[0].children) == (0, -1, [])
    part.check()
    assert decode_json(encode_json(part), NodePlan) == part
    assert book.node_plan(name(1)) is None
    assert planner.plan(task(hidden)).revision == book.revision, "nothing changed: nobody is told anew"
    open_again = planner.plan(task([member(0), *hidden[1:]]))
    assert not open_again.plan.reaches_nobody and open_again.plan.rate > 0
    assert open_again.revision > book.revision
    shut = planner.plan(task(hidden))
    assert shut.plan.reaches_nobody and shut.revision > open_again.revision
