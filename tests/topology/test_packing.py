"""The packing's optimum equals that of the flow program, and prices prove its bound."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_networks import regions, single_region
from scipy.optimize import linprog

from p2psync.topology.capacities import by_node, by_region, max_rate
from p2psync.topology.network import Network, from_topology
from p2psync.topology.packing import Capacities, pack, tree_load


def small(seed: int) -> Network:
    """Up to about six nodes, all reachable."""
    network = from_topology(regions(seed, 2) if seed % 2 else single_region(seed))
    network = network.only(network.reachable())
    keep = np.arange(network.size) < 6
    keep[network.trainer] = True
    network = network.only(keep)
    return network.only(network.reachable())


def by_flows(network: Network) -> float:
    """The largest rate at which a flow of it can go to every node at once, over capacities that all flows share.

    Written as textbooks have it: x on arcs, one flow to each receiver below x, all limits on x.
    """
    capacities = by_node(network, max_rate(network)[0])
    arcs = [(i, j) for i, j in np.argwhere(np.isfinite(capacities.arcs)) if j != network.trainer]
    receivers = [t for t in range(network.size) if t != network.trainer]
    m, width = len(arcs), 1 + len(arcs) * (1 + len(receivers))
    upper, right, equal = [], [], []
    for i in range(network.size):
        upper.append([0.0] * width)
        right.append(capacities.up[i])
        for k, arc in enumerate(arcs):
            upper[-1][1 + k] = float(arc[0] == i)
    for row, limit in enumerate(capacities.limits):
        upper.append([0.0] * width)
        right.append(limit)
        for k, arc in enumerate(arcs):
            upper[-1][1 + k] = float(row in capacities.rows[arc[0], arc[1]])
    for number, target in enumerate(receivers):
        first = 1 + m * (1 + number)
        for k in range(m):
            upper.append([0.0] * width)
            right.append(0.0)
            upper[-1][first + k], upper[-1][1 + k] = 1.0, -1.0
        for node in receivers:
            equal.append([0.0] * width)
            for k, arc in enumerate(arcs):
                equal[-1][first + k] = float(arc[1] == node) - float(arc[0] == node)
            equal[-1][0] = -float(node == target)
    goal = [-1.0] + [0.0] * (width - 1)
    bounds = [(0, capacities.most)] + [(0, None)] * (width - 1)
    found = linprog(goal, A_ub=upper, b_ub=right, A_eq=equal, b_eq=[0.0] * len(equal), bounds=bounds)
    return float(found.x[0])


@pytest.mark.parametrize("seed", range(20))
def test_a_packing_reaches_the_least_max_flow(seed: int) -> None:
    network = small(seed)
    if network.size < 2:
        return
    packing = pack(by_node(network, max_rate(network)[0]))
    best = by_flows(network)
    assert packing.rate == pytest.approx(best, rel=2e-3)
    assert packing.bound >= best * (1 - 1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_the_program_over_regions_is_never_below_the_one_over_nodes(seed: int) -> None:
    network = from_topology(regions(seed))
    network = network.only(network.reachable())
    most = max_rate(network)[0]
    over_regions, over_nodes = pack(by_region(network, most)[0]), pack(by_node(network, most))
    assert over_regions.bound >= over_nodes.rate * (1 - 1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_a_packing_exceeds_no_capacity(seed: int) -> None:
    network = from_topology(regions(seed, 20))
    network = network.only(network.reachable())
    capacities, _ = by_region(network, max_rate(network)[0])
    packing = pack(capacities)
    load = sum(
        weight * tree_load(capacities, tree) for tree, weight in zip(packing.trees, packing.weights, strict=True)
    )
    for (a, b), transfer in packing.transfers.items():
        load[a] += transfer
        load[b] -= transfer
        row = capacities.rows[a, b, 0]
        load[len(capacities.up) + row] += transfer if row >= 0 else 0
    assert (load <= capacities.all_limits * (1 + 1e-6) + 1e-9).all()
    assert packing.rate <= packing.bound * (1 + 1e-9)


def test_many_regions_on_scarce_links_are_packed_in_bounded_work() -> None:
    rng = np.random.default_rng(0)
    count = 30
    arcs = rng.uniform(0.01, 0.1, (count, count))
    np.fill_diagonal(arcs, np.inf)
    rows = np.arange(count * count).reshape(count, count, 1)
    limits = np.exp(rng.uniform(np.log(1), np.log(40), count * count))
    up, inner = np.full(count, 1e5), np.full(count, 20.0)
    packing = pack(Capacities(0, up, inner, arcs, rows, limits, 2000.0))
    assert packing.rate > 0.98 * packing.bound
    assert len(packing.trees) <= 96
