"""Between regions there are few thick flows: as few pairs of nodes as can be, at the same rate, over the same trees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from topology.model import load as read
from topology.network import Floats, Ints, Network, from_topology
from topology.plan import usage
from topology.planner import make_plan
from topology.thick import thicken

EXAMPLES = Path(__file__).parents[2] / "examples" / "topologies"


def example(name: str) -> Network:
    return from_topology(read(EXAMPLES / f"{name}.toml"))


def pairs_across(network: Network, parents: Ints) -> set[tuple[int, int]]:
    edges = {(int(parent), child) for row in parents for child, parent in enumerate(row) if parent >= 0}
    return {(a, b) for a, b in edges if network.region[a] != network.region[b]}


def thin(network: Network) -> tuple[Ints, Floats]:
    """A tree for each node of a second region by which it is entered, and left: every pair crosses."""
    parents = np.array([[-1, 0, entry if entry != 2 else 0, entry if entry != 3 else 0] for entry in (2, 3)])
    return parents, np.array([0.5, 0.5])


def two_by_two(up: float) -> Network:
    network = example("wan-4x3").only(np.arange(12) % 3 < 2).only(np.arange(8) < 4)
    return replace(network, up=np.array([1000.0, 1000.0, up, 1000.0]))


def test_two_trees_that_enter_a_region_at_different_nodes_enter_it_at_one() -> None:
    network = two_by_two(up=1000.0)
    parents, shares = thin(network)
    assert len(pairs_across(network, parents)) == 2
    thick = thicken(network, parents, shares, np.ones(4), 50.0)
    assert len(pairs_across(network, thick)) == 1


def test_no_node_gets_more_to_relay_than_its_uplink_carries() -> None:
    network = two_by_two(up=50.0)
    parents, shares = thin(network)
    thick = thicken(network, parents, shares, np.ones(4), 100.0)
    assert usage(network, thick, np.ones(4)).rate(shares) >= 100.0 * (1 - 1e-6)
    assert 2 not in {parent for parent, _ in pairs_across(network, thick)}


@pytest.mark.parametrize(("name", "most"), [("wan-4x3", 10), ("two-continents", 10)])
def test_the_plan_of_a_network_crosses_between_few_pairs_at_the_rate_of_its_bound(name: str, most: int) -> None:
    network = example(name)
    plan = make_plan(network)
    assert len(pairs_across(network, plan.parents)) <= most
    assert plan.lowest_rate == pytest.approx(plan.bound, rel=1e-6)
    assert usage(network, plan.parents, np.ones(network.size)).rate(plan.shares) >= plan.rate * (1 - 1e-5)
