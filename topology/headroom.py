"""Computes by how much a plan's flows may exceed their planned rates before a link on their path is full."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2psync.topology.network import Floats, Network
from p2psync.topology.plan import Plan, demands


class Headroom:
    """The remaining capacity of the uplinks, downlinks and links between regions that the flows of one plan use."""

    def __init__(self, plan: Plan, network: Network) -> None:
        """network: contains the plan's nodes, and possibly others."""
        self._index = {name: i for i, name in enumerate(network.names)}
        self._region, self._measured = network.region, network.measured
        regions = len(network.regions)
        up, down, between = np.zeros(network.size), np.zeros(network.size), np.zeros(regions * regions)
        known = np.array([self._index[name] for name in plan.names], np.int64)
        self._demand = demands(network, plan.slow, plan.rate)
        for row, share in zip(plan.parents, plan.shares, strict=True):
            child = np.flatnonzero(row >= 0)
            parent, child = known[row[child]], known[child]
            load = share * plan.rate * self._demand[child]
            np.add.at(up, parent, load)
            np.add.at(down, child, load)
            np.add.at(between, network.region[parent] * regions + network.region[child], load)
        self._up, self._down = _capacity_over_load(network.up, up), _capacity_over_load(network.down, down)
        self._between = _capacity_over_load(network.rate.ravel(), between).reshape(regions, regions)

    def of(self, parent: str, children: Sequence[str]) -> list[float]:
        """Returns, per child, the factor by which the parent may exceed the rate of its trees: at least 1, times the
        share that a slow child takes; inf where nothing binds, or the link was not measured."""
        i, js = self._index[parent], [self._index[child] for child in children]
        return [self._of(i, j) for j in js]

    def _of(self, i: int, j: int) -> float:
        a, b = self._region[i], self._region[j]
        if a != b and not self._measured[a, b]:
            return float("inf")
        return float(self._demand[j] * max(1.0, min(self._up[i], self._down[j], self._between[a, b])))


def _capacity_over_load(capacity: Floats, load: Floats) -> Floats:
    found = np.full(capacity.shape, np.inf)
    np.divide(capacity, load, out=found, where=load > 0)
    return found
