"""What trees of a network are packed into: each node for itself, or the nodes of each region together."""

from __future__ import annotations

import numpy as np

from p2psync.topology.network import Floats, Ints, Network
from p2psync.topology.packing import Capacities

#: Seconds of delay that a path counts as longer if its figures were never measured, and for each lost packet of all.
UNMEASURED_SECONDS = 1.0
LOSS_SECONDS = 10.0


def most_rate(network: Network) -> tuple[float, int]:
    """(Mbit/s, node): what the trainer's uplink and the slowest downlink allow, and whose link that is."""
    receivers = np.flatnonzero(np.arange(network.size) != network.trainer)
    slowest = int(receivers[network.down[receivers].argmin()])
    if network.down[slowest] < network.up[network.trainer]:
        return float(network.down[slowest]), slowest
    return float(network.up[network.trainer]), network.trainer


def by_node(network: Network, most: float) -> Capacities:
    """Each node a group: the packing is then what any broadcast can reach. For up to some dozen nodes."""
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
    """Each region with nodes a group; and the network's index of each group's region.

    demand: of each node, the share of the rate that it takes (1: all). An upper bound on any packing over nodes, since
    it only forgets which node of a region sends and who cannot be dialled.
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
    """Index of the row of each pair of regions (-1: nothing binds), and the rows' Mbit/s."""
    rows = np.full(network.rate.shape, -1, np.int64)
    limits: list[float] = []
    for a, b in zip(*np.nonzero((network.rate > 0) & np.isfinite(network.rate)), strict=True):
        rows[a, b] = len(limits)
        limits.append(float(network.rate[a, b]))
    return rows, limits


def _avoidance(network: Network) -> Floats:
    """Seconds between regions, with more for paths that are only assumed or lose packets."""
    return network.delay + np.where(network.measured, 0, UNMEASURED_SECONDS) + LOSS_SECONDS * network.loss
