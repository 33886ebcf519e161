"""Trees in which no uplink is fuller than it must be: children move from the fullest relays to others with room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p2psync.topology.network import Floats, Ints, Network

#: A move must leave the fuller uplink with so much less (a share of it).
_MIN_GAIN = 1e-6
#: Relays that are not overfull are relieved, too, as long as they have less room than this, among so few nodes: what
#: acknowledges, and what is sent again, has no place in a plan.
ROOMY_SHARE, _MAX_NODES = 0.85, 128
#: Hops that it may take for that in any case; else no more than it did before.
_MAX_DEPTH = 3
#: What counts against a place, in hops: to be in another region, to relay nothing there yet, to be overfull (times the
#: share of it). How many places are tried for a node.
_OTHER_REGION_HOPS, _NEW_RELAY_HOPS, _OVERFULL_HOPS, _MAX_CANDIDATES = 4.0, 0.5, 100.0, 6


@dataclass
class _TreeLoads:
    """used, free: copies of everything that uplinks carry and could. link: copies that each pair of regions could
    still carry. children, depth: trees × nodes.
    """

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
        """A node, and what is below it, hangs below another one from now on."""
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
        """Whether the way from a node to the trainer passes `top`."""
        while node >= 0 and node != top:
            node = int(self.parents[tree, node])
        return node == top


def balance(network: Network, parents: Ints, shares: Floats, rate: float, demand: Floats, max_children: int) -> Ints:
    """The same trees with nodes moved, as far as that brings the fullest uplink nearer to what it has at this rate.

    Once none is overfull, relays have children in their own region moved, until all have about as much room.
    """
    loads = _loads(network, parents.copy(), shares, rate, demand)
    _until(loads, 1.0, max_children)
    if network.size <= _MAX_NODES:
        _until(loads, ROOMY_SHARE, max_children)
    return loads.parents


def _until(loads: _TreeLoads, enough: float, max_children: int) -> None:
    """Move children until no uplink is fuller than this; below 1 that of the trainer, who has the most to do, is left
    alone, and so is whoever cannot be relieved."""
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
    """Hops of each node of a tree from the trainer."""
    depth, above = np.zeros(len(row), np.int64), row
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, row[above], -1)
    return depth


def _move_child(loads: _TreeLoads, full: int, fullness: Floats, max_children: int, *, any_region: bool) -> int | None:
    """Move one child away from this node; returns where to, None if there is no better place for any.

    abroad: to other regions, too, and from such; else only leaves move, for what is below a node would be farther away.
    """
    region, deepest = loads.network.region, max(_MAX_DEPTH, int(loads.depth.max()))
    trees, children = np.nonzero(loads.parents == full)
    # Leaves first, and of them the deepest; then whoever has the fewest children.
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
    """Some nodes that could serve this one, instead of a full one, without being as full; the best first."""
    network, region = loads.network, int(loads.network.region[child])
    copies = float(loads.shares[tree] * loads.demand[child])
    then = (loads.used + copies) / np.maximum(loads.free, 1e-12)
    home = network.region == region
    able = (then < most) & (loads.children[tree] < max_children) & (loads.demand >= 1)
    able &= home | (loads.link[network.region, region] >= copies)
    if not network.dialable[child]:
        able &= network.dialable
    able[[child, full]] = False
    # Room comes first, then few hops, then what has most room.
    worth = _OVERFULL_HOPS * np.maximum(0, then - 1) + loads.depth[tree] + _OTHER_REGION_HOPS * ~home + 0.1 * then
    worth += _NEW_RELAY_HOPS * (loads.children[tree] == 0)
    best = np.argpartition(np.where(able, worth, np.inf), min(_MAX_CANDIDATES, len(worth) - 1))[:_MAX_CANDIDATES]
    return [int(i) for i in best[np.lexsort((best, worth[best]))] if able[i]]


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
