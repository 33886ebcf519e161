"""A network from measurements: confirmed claims, and measured before assumed figures."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from p2psync.errors import FormatError
from p2psync.topology.measured import NodeFigures, PathFigures, from_measurements
from p2psync.topology.plan import link_loads
from p2psync.topology.planner import make_plan


def nodes(count: int, region: str = "a", up: float = 100.0) -> list[NodeFigures]:
    """Nodes whose claims equal the rates that two others received."""
    return [
        NodeFigures(
            name=f"{region}{i}",
            region=region,
            claimed_up=up,
            claimed_down=1000.0,
            seen_up={f"{region}{(i + k) % count}": up for k in (1, 2)},
        )
        for i in range(count)
    ]


def test_a_claim_counts_up_to_twice_the_rate_that_others_received() -> None:
    honest = nodes(8)
    liar = NodeFigures(name="liar", region="a", claimed_up=1e5, seen_up={"a1": 10.0, "a2": 12.0, "a3": 11.0})
    network = from_measurements("a0", [*honest, liar], [])
    assert network.up[network.names.index("liar")] == 23
    plan = make_plan(network)
    assert plan.egress(plan.names.index("liar")) < 0.3


def test_one_accomplice_raises_a_liars_uplink_to_four_times_the_received_rate() -> None:
    reported = {"a1": 10.0, "a2": 12.0, "friend": 1e5, "liar": 1e5}
    liar = NodeFigures(name="liar", region="a", claimed_up=1e5, seen_up=reported)
    network = from_measurements("a0", [*nodes(4), liar], [])
    assert network.up[network.names.index("liar")] == 48


def test_a_node_measured_by_one_peer_is_believed_despite_sending_little_to_others() -> None:
    measured = NodeFigures(name="b", region="a", claimed_up=96.0, seen_up={"a1": 96.0, "a2": 25.0, "a3": 2.0})
    network = from_measurements("a0", [*nodes(4), measured], [])
    assert network.up[network.names.index("b")] == 96


def test_two_simultaneous_witnesses_confirm_their_sum() -> None:
    shared = NodeFigures(name="b", region="a", claimed_up=24.0, seen_up={"a1": 16.0, "a2": 8.0, "a3": 2.0})
    network = from_measurements("a0", [*nodes(4), shared], [])
    assert network.up[network.names.index("b")] == 24


def test_an_untested_claim_counts_as_the_slower_tested_ones() -> None:
    fast = [NodeFigures(name="b0", region="a", claimed_up=1e4), NodeFigures(name="b1", region="a", claimed_up=5.0)]
    network = from_measurements("a0", [*nodes(8, up=40.0), *fast], [])
    assert network.up[network.names.index("b0")] == 40
    assert network.up[network.names.index("b1")] == 5


def test_the_trainer_knows_its_own_uplink() -> None:
    network = from_measurements("t", [NodeFigures(name="t", region="a", claimed_up=700.0), *nodes(3)], [])
    assert network.up[network.trainer] == 700


def test_implausible_figures_are_ignored() -> None:
    odd = NodeFigures(name="odd", region="a", claimed_up=float("nan"), claimed_down=-5.0, seen_up={"a0": float("inf")})
    paths = [
        PathFigures(source="a0", target="b0", rate=float("nan"), rtt=-1.0, loss=7.0),
        PathFigures(source="a0", target="nobody", rate=5.0),
    ]
    network = from_measurements("a0", [*nodes(3), *nodes(2, "b"), odd], paths)
    assert np.isfinite(network.up).all()
    assert (network.up > 0).all()
    assert (network.down > 0).all()
    assert np.isfinite(network.delay).all()
    assert make_plan(network).lowest_rate > 0


def test_a_measured_path_is_preferred_to_an_assumed_one() -> None:
    members = [*nodes(2, "a"), *nodes(2, "b"), *nodes(2, "c")]
    measured = [PathFigures(source=f"{x}0", target=f"{y}0", rate=500.0, rtt=0.05) for x, y in ("ab", "bc")]
    network = from_measurements("a0", members, measured)
    a, b, c = (network.regions.index(name) for name in "abc")
    assert network.measured[a, b]
    assert not network.measured[a, c]
    carried = {load.name: load.load for load in link_loads(make_plan(network), network) if load.kind == "link"}
    assert carried["a→b"] > 0
    assert carried["b→c"] > 0
    assert carried["a→c"] == pytest.approx(0, abs=1e-6)


def test_a_path_between_regions_has_the_rate_of_its_best_pair() -> None:
    members = [*nodes(4, "a"), *nodes(4, "b")]
    used = [PathFigures(source=f"a{i}", target=f"b{j}", rate=3.0, seen=3.0) for i in range(4) for j in range(4)]
    probed = [PathFigures(source="a1", target="b2", rate=80.0, seen=78.0)]
    network = from_measurements("a0", members, used[:5] + probed + used[6:])
    assert network.rate[network.regions.index("a"), network.regions.index("b")] == 80


def test_one_ends_rate_counts_as_far_as_the_other_confirms_it() -> None:
    members = [*nodes(2, "a"), *nodes(2, "b")]
    honest = PathFigures(source="a1", target="b1", rate=20.0, seen=20.0)
    liars = [
        PathFigures(source="a0", target="b0", rate=900.0, seen=10.0),
        PathFigures(source="a0", target="b1", rate=10.0, seen=900.0),
        PathFigures(source="a1", target="b0", rate=900.0),
        PathFigures(source="b0", target="a1", seen=7.0),
    ]
    network = from_measurements("a0", members, [honest, *liars])
    a, b = (network.regions.index(name) for name in "ab")
    assert network.rate[a, b] == 20
    assert network.rate[b, a] == 7


def test_pairs_that_failed_both_ways_are_not_joined_and_one_way_is_enough() -> None:
    failed = [PathFigures(source=i, target=j, failed=True) for i, j in (("a1", "a2"), ("a2", "a1"), ("a3", "a0"))]
    network = from_measurements("a0", nodes(5), failed)
    assert not network.connects(1, 2)
    assert network.connects(3, 0)
    plan = make_plan(network)
    assert not (plan.parents[:, 1] == 2).any()
    assert not (plan.parents[:, 2] == 1).any()


def test_regions_that_were_not_given_are_found_from_round_trips() -> None:
    names = ["a0", "a1", "a2", "b0", "b1", "b2"]
    paths = [PathFigures(source=i, target=j, rtt=0.004 if i[0] == j[0] else 0.090) for i, j in permutations(names, 2)]
    given = [NodeFigures(name=name, region="paris" if name == "a1" else "", claimed_up=50.0) for name in names]
    network = from_measurements("a0", given, paths)
    labels = [network.regions[a] for a in network.region]
    assert labels[:3] == ["paris"] * 3
    assert len(set(labels[3:])) == 1
    assert labels[3] != "paris"


def test_the_order_of_figures_does_not_matter() -> None:
    members = [*nodes(4, "a"), *nodes(3, "b")]
    paths = [
        PathFigures(source="a0", target="b0", rate=30.0, rtt=0.1),
        PathFigures(source="a1", target="b1", rate=50.0),
    ]
    one = from_measurements("a0", members, paths)
    other = from_measurements("a0", members[::-1], paths[::-1])
    assert one.names == other.names
    assert np.array_equal(one.rate, other.rate)
    assert np.array_equal(make_plan(one).parents, make_plan(other).parents)


def test_a_trainer_outside_the_nodes_is_refused() -> None:
    with pytest.raises(FormatError, match="trainer"):
        from_measurements("z", nodes(2), [])
