"""Few thick flows between regions instead of many thin ones: nodes of a region change places within a tree.

Two flows over one link find their rates against each other, lose packets to each other, and fill its queue twice; and a
connection that was idle needs some round trips until it carries anything. So where trees may cross from one region into
another anywhere, they cross between the same two nodes, as far as their uplinks allow. Different links end at different
nodes of a region, so that no relay carries it all where another can.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from topology.network import Flags, Floats, Ints, Network
from topology.plan import usage

#: Rounds over all trees at most.
_ROUNDS = 4
#: How much it counts that a region's nodes have different parts in crossing, beside the number of flows.
_EVEN = 0.3
#: Below these differences things are equal.
_GAIN, _SAME = 1e-9, 1 - 1e-6


def thicken(network: Network, parents: Ints, shares: Floats, demand: Floats, rate: float) -> Ints:
    """The same trees (trees × nodes) with nodes exchanged within regions, so that fewer pairs cross between regions.

    Nodes that take less than all, or cannot be dialled, keep their places. rate: what no exchange goes below (Mbit/s).
    """
    parents = parents.copy()
    movable = (demand >= 1) & network.dialable & (network.up > 0)
    movable[network.trainer] = False
    worth = _worth(network, parents, shares)
    for _ in range(_ROUNDS):
        before = worth
        for tree in range(len(parents)):
            for trial in _trials(network, parents, tree, movable):
                row = parents[tree].copy()
                parents[tree] = trial
                then = _worth(network, parents, shares)
                if then < worth - _GAIN and usage(network, parents, demand).rate(shares) >= rate * _SAME:
                    worth = then
                else:
                    parents[tree] = row
        if worth > before - _GAIN:
            break
    return parents


def _trials(network: Network, parents: Ints, tree: int, movable: Flags) -> Iterator[Ints]:
    """A tree as it would be if it crossed between two regions where others do."""
    ways = sorted({way for row in parents for way in _crossings(network, row)})
    region = network.region
    for parent, child in _crossings(network, parents[tree]):
        for other_parent, other_child in ways:
            same = region[other_parent] == region[parent] and region[other_child] == region[child]
            if not same or (parents[tree, child] != parent):
                continue
            row = parents[tree]
            for one, other in ((parent, other_parent), (child, other_child)):
                if one != other and movable[one] and movable[other]:
                    row = _exchanged(row, one, other)
            if row is not parents[tree] and _may_connect(network, row):
                yield row


def _crossings(network: Network, row: Ints) -> list[tuple[int, int]]:
    """(parent, child) of different regions in a tree."""
    child = np.flatnonzero(row >= 0)
    child = child[network.region[row[child]] != network.region[child]]
    return list(zip(row[child].tolist(), child.tolist(), strict=True))


def _exchanged(row: Ints, one: int, other: int) -> Ints:
    """A tree (parent of each node) in which two nodes have each other's place."""
    places = np.arange(len(row))
    places[[one, other]] = other, one
    moved = row[places]
    return np.asarray(np.where(moved == one, other, np.where(moved == other, one, moved)))


def _may_connect(network: Network, row: Ints) -> bool:
    return all(network.connects(int(row[child]), int(child)) for child in np.flatnonzero(row >= 0))


def _worth(network: Network, parents: Ints, shares: Floats) -> float:
    """Least for few flows: the sum of the roots of the flows between regions, and a part for uneven load of nodes."""
    n = network.size
    tree, child = np.nonzero(parents >= 0)
    parent = parents[tree, child]
    across = network.region[parent] != network.region[child]
    flows = np.bincount(parent[across] * n + child[across], shares[tree[across]], n * n)
    ends = np.bincount(parent[across], shares[tree[across]], n) + np.bincount(child[across], shares[tree[across]], n)
    return float(np.sqrt(flows).sum() + _EVEN * (ends**2).sum())
