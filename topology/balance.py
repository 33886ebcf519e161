"""Balances trees: moves children from the fullest relays to others with free capacity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p2psync.topology.network import Floats, Ints, Network

#: A move must lower the fuller uplink's utilisation by this share of it.
_MIN_GAIN = 1e-6
#: Below full, relays are still balanced until they are at this utilisation, in networks of up to this many nodes:
#: acknowledgements and retransmissions need capacity that no plan accounts for.
ROOMY_SHARE, _MAX_NODES = 0.85, 128
#: Depth that such moves may reach in any case; otherwise the tree's depth must not grow.
_MAX_DEPTH = 3
#: Costs of a candidate parent, in hops: in another region, not a relay yet, overfull (times the excess). And how many
#: candidates are tried for a node.
_OTHER_REGION_HOPS, _NEW_RELAY_HOPS, _OVERFULL_HOPS, _MAX_CANDIDATES = 4.0, 0.5, 100.0, 6


@dataclass
class _TreeLoads:
    """used, free: copies of the payload that each uplink carries and could carry. link: copies that each pair of
    regions could still carry. children, depth: trees × nodes."""

    network: Network
    parents: Ints
    shares: Floats
    demand: Floats
    used: Floats
    free: Floats
    link: Floats
    children: Ints
    depth: Ints

    def move(self, tree: int, child: int, parent: int) -> None:
        """Gives a node, with its subtree, another parent."""
        row, region = self.parents[tree], self.network.region
        old, copies = int(row[child]), float(self.shares[tree] * self.demand[child])
        row[child] = parent
        self.used[old] -= copies
        self.used[parent] += copies
        self.link[region[old], region[child]] += copies
        self.link[region[parent], region[child]] -= copies
        self.children[tree, old] -= 1
        self.children[tree, parent] += 1
        if self.children[tree, child]:
            self.depth[tree] = depths(row)
        else:
            self.depth[tree, child] = self.depth[tree, parent] + 1

    def is_below(self, tree: int, node: int, top: int) -> bool:
        """Returns whether `node` is `top` or one of its descendants."""
        while node >= 0 and node != top:
            node = int(self.parents[tree, node])
        return node == top


def balance(network: Network, parents: Ints, shares: Floats, rate: float, demand: Floats, max_children: int) -> Ints:
    """Returns the same trees with nodes moved, as far as that lowers the utilisation of the fullest uplink at this
    rate.

    Once none is overfull, relays pass children of their own region on, until all have about equal utilisation.
    """
    loads = _loads(network, parents.copy(), shares, rate, demand)
    _until(loads, 1.0, max_children)
    if network.size <= _MAX_NODES:
        _until(loads, ROOMY_SHARE, max_children)
    return loads.parents


def _until(loads: _TreeLoads, enough: float, max_children: int) -> None:
    """Moves children until no uplink is fuller than `enough`. Below 1, the trainer's uplink, which has the most to
    send, is left alone, and so are relays without a better parent for any child."""
    fullness = loads.used / np.maximum(loads.free, 1e-12)
    if enough < 1:
        if fullness.max() > 1 + _MIN_GAIN:
            return
        fullness[loads.network.trainer] = 0.0
    for _ in range(loads.parents.size):
        full = int(fullness.argmax())
        if fullness[full] <= enough:
            return
        moved = _move_child(loads, full, fullness, max_children, any_region=enough >= 1)
        if moved is None:
            if enough >= 1:
                return
            fullness[full] = 0.0
            continue
        for i in (full, moved):
            fullness[i] = loads.used[i] / max(loads.free[i], 1e-12)


def depths(row: Ints) -> Ints:
    """Returns the hops of each node of a tree from the trainer."""
    depth, ancestor = np.zeros(len(row), np.int64), row
    while (ancestor >= 0).any():
        depth += ancestor >= 0
        ancestor = np.where(ancestor >= 0, row[ancestor], -1)
    return depth


def _move_child(loads: _TreeLoads, full: int, fullness: Floats, max_children: int, *, any_region: bool) -> int | None:
    """Moves one child away from this node; returns its new parent, None if there is no better one for any child.

    any_region: moves between regions, too; otherwise only leaves move, since a subtree would get farther away.
    """
    region, deepest = loads.network.region, max(_MAX_DEPTH, int(loads.depth.max()))
    trees, children = np.nonzero(loads.parents == full)
    # Leaves first, the deepest first; then nodes with the fewest children.
    order = np.lexsort((-loads.depth[trees, children], loads.children[trees, children]))
    for tree, child in zip(trees[order].tolist(), children[order].tolist(), strict=True):
        if not any_region and (region[child] != region[full] or loads.children[tree, child]):
            continue
        for parent in _candidate_parents(loads, tree, child, full, fullness[full] * (1 - _MIN_GAIN), max_children):
            if not any_region and (
                region[parent] != region[full]
                or parent == loads.network.trainer
                or loads.depth[tree, parent] >= deepest
            ):
                continue
            if loads.network.connects(parent, child) and not loads.is_below(tree, parent, child):
                loads.move(tree, child, parent)
                return parent
    return None


def _candidate_parents(
    loads: _TreeLoads, tree: int, child: int, full: int, most: float, max_children: int
) -> list[int]:
    """Returns some nodes that could serve this child without being as full as its parent, the best first."""
    network, region = loads.network, int(loads.network.region[child])
    copies = float(loads.shares[tree] * loads.demand[child])
    then = (loads.used + copies) / np.maximum(loads.free, 1e-12)
    home = network.region == region
    able = (then < most) & (loads.children[tree] < max_children) & (loads.demand >= 1)
    able &= home | (loads.link[network.region, region] >= copies)
    if not network.dialable[child]:
        able &= network.dialable
    able[[child, full]] = False
    # Free capacity comes first, then few hops, then the most free capacity.
    cost = _OVERFULL_HOPS * np.maximum(0, then - 1) + loads.depth[tree] + _OTHER_REGION_HOPS * ~home + 0.1 * then
    cost += _NEW_RELAY_HOPS * (loads.children[tree] == 0)
    best = np.argpartition(np.where(able, cost, np.inf), min(_MAX_CANDIDATES, len(cost) - 1))[:_MAX_CANDIDATES]
    return [int(i) for i in best[np.lexsort((best, cost[best]))] if able[i]]


def _loads(network: Network, parents: Ints, shares: Floats, rate: float, demand: Floats) -> _TreeLoads:
    trees, nodes = parents.shape
    used, link = np.zeros(nodes), network.rate / rate
    children = np.zeros((trees, nodes), np.int64)
    for tree, row in enumerate(parents):
        child = np.flatnonzero(row >= 0)
        parent, copies = row[child], shares[tree] * demand[child]
        used += np.bincount(parent, copies, nodes)
        np.subtract.at(link, (network.region[parent], network.region[child]), copies)
        children[tree] = np.bincount(parent, minlength=nodes)
    depth = np.stack([depths(row) for row in parents])
    return _TreeLoads(network, parents, shares, demand, used, network.up / rate, link, children, depth)
