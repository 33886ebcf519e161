"""Builds the capacities that trees are packed into: each node for itself, or the nodes of each region together."""

from __future__ import annotations

import numpy as np

from p2psync.topology.network import Floats, Ints, Network
from p2psync.topology.packing import Capacities

#: Seconds that are added to a path's delay if its figures were never measured, and per unit of loss probability, so
#: that plans avoid such paths where others are as good.
UNMEASURED_SECONDS = 1.0
LOSS_SECONDS = 10.0


def max_rate(network: Network) -> tuple[float, int]:
    """Returns (Mbit/s, node): the lower of the trainer's uplink and the slowest downlink, and its node."""
    receivers = np.flatnonzero(np.arange(network.size) != network.trainer)
    slowest = int(receivers[network.down[receivers].argmin()])
    if network.down[slowest] < network.up[network.trainer]:
        return float(network.down[slowest]), slowest
    return float(network.up[network.trainer]), network.trainer


def by_node(network: Network, most: float) -> Capacities:
    """Returns capacities with one group per node: their packing is the exact optimum. For up to a few dozen nodes."""
    between = np.ix_(network.region, network.region)
    arcs = np.where(network.connections(), _avoidance(network)[between], np.inf)
    rows, limits = _link_rows(network)
    rows = rows[between]
    pairs = np.full((network.size, network.size), -1, np.int64)
    for (i, j), rate in sorted(network.pair_rate.items()):
        if rate > 0 and np.isfinite(rate):
            pairs[i, j] = len(limits)
            limits.append(rate)
    both = np.stack([rows, pairs], axis=2)
    return Capacities(
        network.trainer, network.up.copy(), np.zeros(network.size), arcs, both, np.array(limits, float), most
    )


def by_region(network: Network, most: float, demand: Floats | None = None) -> tuple[Capacities, Ints]:
    """Returns capacities with one group per region, and the network's index of each group's region.

    demand: the share of the rate that each node takes (1: all). The packing's rate is an upper bound on any packing
    over nodes, since it ignores which node of a region sends and which cannot be dialled.
    """
    demand = np.ones(network.size) if demand is None else demand
    kept = np.unique(network.region)
    group = np.searchsorted(kept, network.region)
    root = int(group[network.trainer])
    received = np.bincount(group, np.where(np.arange(network.size) == network.trainer, 0.0, demand))
    # The trainer's region needs no copy from outside; any other is entered once.
    inner = np.maximum(0.0, received - (np.arange(len(kept)) != root)).astype(np.float64)
    square = np.ix_(kept, kept)
    rows, limits = _link_rows(network)
    arcs = np.where(network.rate[square] > 0, _avoidance(network)[square], np.inf)
    np.fill_diagonal(arcs, np.inf)
    up = np.bincount(group, network.up).astype(np.float64)
    return Capacities(root, up, inner, arcs, rows[square][:, :, None], np.array(limits, float), most), kept


def _link_rows(network: Network) -> tuple[Ints, list[float]]:
    """Returns the index of each pair of regions' row (-1: nothing binds), and the rows' Mbit/s."""
    rows = np.full(network.rate.shape, -1, np.int64)
    limits: list[float] = []
    for a, b in zip(*np.nonzero((network.rate > 0) & np.isfinite(network.rate)), strict=True):
        rows[a, b] = len(limits)
        limits.append(float(network.rate[a, b]))
    return rows, limits


def _avoidance(network: Network) -> Floats:
    """Returns the delay between regions in seconds, with additions for unmeasured and lossy paths."""
    return network.delay + np.where(network.measured, 0, UNMEASURED_SECONDS) + LOSS_SECONDS * network.loss
