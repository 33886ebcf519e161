"""Trees over regions that are shallow: in each tree a few regions send to many others, and all others to none.

The linear program of `p2psync.topology.packing` says what each region can send in all; it does not care how deep its
trees are, and where all uplinks bind it likes chains: each region passes on to one other. Here each region's part is
spent in few trees, a handful of children at a time, as interior-disjoint trees do (SplitStream), so that trees are
about as deep as the logarithm of the regions' number. Links between regions may be passed by half a tree's share; rates
must be taken from the loads afterwards.
"""

from __future__ import annotations

import numpy as np

from p2psync.topology.network import Floats, Ints
from p2psync.topology.packing import HOP_SECONDS, Capacities, Packing

#: Regions that one sends to in a tree.
_FAN_OUT = 6


def shallow_packing(capacities: Capacities, packing: Packing, stripes: int) -> Packing | None:
    """As many trees of equal weight, with the packing's rate; None if links leave no room for them.

    capacities: over regions. packing: of them.
    """
    groups = len(capacities.up)
    if groups < 3 or packing.rate <= 0:
        return None
    scale = stripes / packing.rate
    # In units of one child in one tree.
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
        below = np.flatnonzero(tree >= 0)
        np.subtract.at(sends, tree[below], 1)
        np.subtract.at(links, (tree[below], below), 1)
    weights = np.full(stripes, packing.rate / stripes)
    return Packing(
        trees, weights, {k: transfer / scale for k, transfer in transfers.items()}, packing.bound, packing.prices
    )


def _links(capacities: Capacities) -> Floats:
    """Groups × groups: Mbit/s of each arc; 0 where there is none, inf where nothing binds."""
    found = np.where(np.isfinite(capacities.arcs), np.inf, 0.0)
    for k in range(capacities.rows.shape[2]):
        rows = capacities.rows[:, :, k]
        found = np.where(rows >= 0, np.minimum(found, np.append(capacities.limits, np.inf)[rows]), found)
    return found


def _transfers(capacities: Capacities, sends: Floats, links: Floats) -> dict[tuple[int, int], float]:
    """What a region's uplinks cannot serve within it, the nearest with a surplus do; `sends` and `links` shrink.

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
    """What those regions send that are reached soonest, as many as have enough together; others send nothing."""
    order = np.argsort(capacities.distances, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(np.maximum(0, sends[order]))[:-1]])
    found = np.zeros(len(sends))
    found[order] = np.where(before < need, sends[order], 0.0)
    return found


def _degrees(root: int, sends: Floats, stripes: int) -> Ints:
    """How many others each region sends to in the next of so many trees: as many as are needed in all, if it can be."""
    groups = len(sends)
    degrees = np.zeros(groups, np.int64)
    # The root is in all trees, on top, and its part is spread over them.
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
    """Parents of a tree in which regions have so many children, or more where links leave no other way.

    Regions that send are hung first, the soonest reached first; then the others, those first that are reached last.
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
        waiting = sorted(senders or others)
        distances = when[:, None] + np.where((left > 0)[:, None], hop[:, waiting], np.inf)
        soonest = distances.min(axis=0)
        pick = int(soonest.argmin() if senders else soonest.argmax())
        if not np.isfinite(soonest[pick]):
            # Nobody with a part left can send there: whoever has most to send takes one more.
            able = np.isfinite(when[:, None] + hop[:, waiting])
            if not able.any():
                return None
            pick = int(able.any(axis=0).argmax())
            parent = int(np.where(able[:, pick], sends - degrees, -np.inf).argmax())
        else:
            parent = int(distances[:, pick].argmin())
        child = waiting[pick]
        parents[child] = parent
        when[child] = when[parent] + hop[parent, child]
        left[parent] -= 1
        (senders if senders else others).discard(child)
    return parents
