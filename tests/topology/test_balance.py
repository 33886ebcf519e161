"""Full uplinks give children away, and trees stay trees."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_networks import large

from p2psync.topology.balance import balance, depths
from p2psync.topology.model import Host, Region, Topology
from p2psync.topology.network import Ints, Network, from_topology
from p2psync.topology.plan import usage


def region_of(hosts: int) -> Network:
    return from_topology(Topology("a-0", {"a": Region(hosts, 100.0)}))


def fullness(network: Network, parents: Ints, rate: float) -> float:
    """Returns the used share of the fullest uplink, if all trees carry equal shares."""
    used = usage(network, parents, np.ones(network.size))
    return float((used.per_tree.mean(axis=1) * rate / used.capacity).max())


def test_children_move_until_no_uplink_is_overfull() -> None:
    network = region_of(6)
    # 1 relays everything in both trees, four times its capacity.
    parents = np.array([[-1, 0, 1, 1, 1, 1]] * 2)
    balanced = balance(network, parents, np.array([0.5, 0.5]), 100.0, np.ones(6), 16)
    assert fullness(network, parents, 100.0) == pytest.approx(4)
    assert fullness(network, balanced, 100.0) == pytest.approx(1)
    assert all((depths(row)[1:] > 0).all() for row in balanced)


def test_a_relay_moves_with_its_subtree_and_never_below_itself() -> None:
    network = region_of(8)
    # All children of 1 have children of their own.
    parents = np.array([[-1, 0, 1, 1, 1, 2, 3, 4]])
    balanced = balance(network, parents, np.ones(1), 100.0, np.ones(8), 16)
    assert fullness(network, balanced, 100.0) < fullness(network, parents, 100.0)
    assert (balanced >= 0).sum() == 7
    assert depths(balanced[0])[1:].min() > 0


def test_relays_are_about_equally_full_within_three_hops() -> None:
    network = region_of(6)
    # 1 and 2 relay everything, at their full capacity; 3, 4 and 5 nothing.
    parents = np.array([[-1, 0, 1, 1, 1, 1], [-1, 2, 0, 2, 2, 2]])
    shares, relays = np.array([0.5, 0.5]), np.arange(6) != network.trainer
    fine = np.repeat(parents, 24, axis=0)
    balanced = balance(network, fine, np.full(48, 1 / 48), 50.0, np.ones(6), 16)
    used = usage(network, balanced, np.ones(6)).per_tree.mean(axis=1)
    assert fullness(network, parents, 50.0) == pytest.approx(1)
    assert used[relays].max() * 50.0 <= 0.85 * 100
    assert max(depths(row).max() for row in balanced) == 3
    assert np.array_equal(balance(network, parents, shares, 40.0, np.ones(6), 16), parents), "there is enough capacity"


def test_a_trainer_with_free_capacity_sends_no_more_copies() -> None:
    network = from_topology(Topology("a-0", {"a": Region(4, 100)}, host={"a-0": Host(1000)}))
    parents = np.array([[-1, 0, 1, 1], [-1, 2, 0, 2], [-1, 3, 3, 0]])
    shares = np.array([0.5, 0.3, 0.2])
    balanced = balance(network, parents, shares, 95.0, np.ones(4), 16)
    assert all((row == 0).sum() == 1 for row in balanced)


def test_trees_without_an_overfull_uplink_stay() -> None:
    network = from_topology(large(200, 5))
    rate = float(network.up.min()) / 2
    order = np.argsort(np.arange(network.size) != network.trainer, kind="stable")
    parents = np.full((1, network.size), -1)
    parents[0, order[1:]] = order[:-1]
    assert np.array_equal(balance(network, parents, np.ones(1), rate, np.ones(network.size), 16), parents)
