"""Shallow trees over regions: in each tree a few regions send to many others, and the others to none.

The linear program of `p2psync.topology.packing` determines each region's total sending rate, but not the depth of its
trees; where all uplinks bind it prefers chains, in which each region forwards to one other. Here each region spends its
rate in few trees, on several children each, as in interior-disjoint trees (SplitStream), so that the depth is about the
logarithm of the number of regions. Links between regions may be exceeded by half a tree's share; compute the rates from
the loads afterwards.
"""

from __future__ import annotations

import numpy as np

from p2psync.topology.network import Floats, Ints
from p2psync.topology.packing import HOP_SECONDS, Capacities, Packing

#: Children of a sending region in one tree.
_FAN_OUT = 6


def shallow_packing(capacities: Capacities, packing: Packing, stripes: int) -> Packing | None:
    """Returns `stripes` trees of equal weight, with the packing's rate; None if links lack the capacity.

    capacities: over regions. packing: of them.
    """
    groups = len(capacities.up)
    if groups < 3 or packing.rate <= 0:
        return None
    scale = stripes / packing.rate
    # Units: one child in one tree.
    sends = np.minimum(capacities.up - packing.rate * capacities.inner, packing.rate * groups) * scale
    links = _links(capacities) * scale
    transfers = _transfers(capacities, sends, links)
    sends = _nearest_senders(capacities, sends, 1.1 * stripes * (groups - 1))
    trees = []
    for k in range(stripes):
        tree = _tree(capacities, _degrees(capacities.root, sends, stripes - k), sends, links)
        if tree is None:
            return None
        trees.append(tree)
        child = np.flatnonzero(tree >= 0)
        np.subtract.at(sends, tree[child], 1)
        np.subtract.at(links, (tree[child], child), 1)
    weights = np.full(stripes, packing.rate / stripes)
    return Packing(
        trees, weights, {k: transfer / scale for k, transfer in transfers.items()}, packing.bound, packing.prices
    )


def _links(capacities: Capacities) -> Floats:
    """Returns the Mbit/s of each arc (groups × groups); 0 where there is none, inf where nothing binds."""
    found = np.where(np.isfinite(capacities.arcs), np.inf, 0.0)
    for k in range(capacities.rows.shape[2]):
        rows = capacities.rows[:, :, k]
        found = np.where(rows >= 0, np.minimum(found, np.append(capacities.limits, np.inf)[rows]), found)
    return found


def _transfers(capacities: Capacities, sends: Floats, links: Floats) -> dict[tuple[int, int], float]:
    """Returns the transfers: the nearest regions with a surplus serve what a region's own uplinks cannot; `sends` and
    `links` shrink.

    A third of each link is left for the trees.
    """
    transfers: dict[tuple[int, int], float] = {}
    for b in np.argsort(sends, kind="stable").tolist():
        for a in np.argsort(capacities.arcs[:, b], kind="stable").tolist():
            if sends[b] >= 0:
                break
            surplus = sends[a] - (len(sends) / 8 if a == capacities.root else 0.0)
            transfer = float(min(-sends[b], surplus, links[a, b] * 2 / 3))
            if a != b and transfer > 0:
                transfers[a, b] = transfer
                sends[a] -= transfer
                sends[b] += transfer
                links[a, b] -= transfer
    return transfers


def _nearest_senders(capacities: Capacities, sends: Floats, need: float) -> Floats:
    """Returns the rates of the nearest regions that suffice together; the others send nothing."""
    order = np.argsort(capacities.distances, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(np.maximum(0, sends[order]))[:-1]])
    found = np.zeros(len(sends))
    found[order] = np.where(before < need, sends[order], 0.0)
    return found


def _degrees(root: int, sends: Floats, stripes: int) -> Ints:
    """Returns the number of children of each region in the next tree: as many as are needed in all, if possible."""
    groups = len(sends)
    degrees = np.zeros(groups, np.int64)
    # The root is in all trees, and its rate is spread over them.
    degrees[root] = min(groups - 1, max(1, round(sends[root] / stripes)))
    missing = groups - 1 - int(degrees[root])
    order = [a for a in np.argsort(-sends, kind="stable").tolist() if a != root]
    for fan in (_FAN_OUT, groups):
        for a in order:
            more = min(missing, max(0, min(fan, round(sends[a])) - int(degrees[a])))
            degrees[a] += more
            missing -= more
    return degrees


def _tree(capacities: Capacities, degrees: Ints, sends: Floats, links: Floats) -> Ints | None:
    """Returns the parents of a tree in which regions have these numbers of children, or more where links leave no
    choice.

    Sending regions are attached first, the nearest first; then the others, the farthest first.
    """
    groups = len(degrees)
    hop = np.where(links >= 0.5, capacities.arcs + HOP_SECONDS, np.inf)
    parents = np.full(groups, -2, np.int64)
    parents[capacities.root] = -1
    when = np.full(groups, np.inf)
    when[capacities.root] = 0.0
    left = degrees.astype(np.float64)
    senders = {a for a in np.flatnonzero(degrees).tolist() if a != capacities.root}
    others = {*range(groups)} - senders - {capacities.root}
    while senders or others:
        unattached = sorted(senders or others)
        arrivals = when[:, None] + np.where((left > 0)[:, None], hop[:, unattached], np.inf)
        soonest = arrivals.min(axis=0)
        pick = int(soonest.argmin() if senders else soonest.argmax())
        if not np.isfinite(soonest[pick]):
            # No sender with children left can reach one of these: the region with the most remaining rate takes one
            # more.
            able = np.isfinite(when[:, None] + hop[:, unattached])
            if not able.any():
                return None
            pick = int(able.any(axis=0).argmax())
            parent = int(np.where(able[:, pick], sends - degrees, -np.inf).argmax())
        else:
            parent = int(arrivals[:, pick].argmin())
        child = unattached[pick]
        parents[child] = parent
        when[child] = when[parent] + hop[parent, child]
        left[parent] -= 1
        (senders if senders else others).discard(child)
    return parents
