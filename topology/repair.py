"""Trees made whole: every node gets a parent that can reach it, in each tree."""

from __future__ import annotations

import numpy as np

from topology.network import Floats, Ints, Network

_NONE = -2


def with_members(names: tuple[str, ...], parents: Ints, network: Network) -> Ints:
    """Trees of other members as trees of these: nodes whose parent left, and new ones, have none yet (-2)."""
    old = {name: i for i, name in enumerate(names)}
    here = {name: i for i, name in enumerate(network.names)}
    # Index here of each old node; the last entry stands for "no parent".
    moved = np.array([here.get(name, _NONE) for name in names] + [_NONE], np.int64)
    kept = np.array([old.get(name, -1) for name in network.names], np.int64)
    found = np.full((len(parents), network.size), _NONE, np.int64)
    both = kept >= 0
    found[:, both] = moved[parents[:, kept[both]]]
    found[:, network.trainer] = -1
    return found


def repair(
    network: Network, parents: Ints, shares: Floats, rate: float, demand: Floats, most_children: int
) -> Ints:
    """The same trees, in which each node whose parent cannot reach it, or is missing, hangs below another one.

    Below whoever has the most uplink left, in its own region if possible. Every node must be reachable.
    """
    parents = parents.copy()
    wrong = [np.flatnonzero(_wrong(network, row)) for row in parents]
    if not any(len(nodes) for nodes in wrong):
        return parents
    left = network.up / rate
    for row, share in zip(parents, shares, strict=True):
        child = np.flatnonzero(row >= 0)
        left -= np.bincount(row[child], share * demand[child], network.size)
    for tree, nodes in enumerate(wrong):
        row = parents[tree]
        held = row[nodes] >= 0
        np.add.at(left, row[nodes[held]], shares[tree] * demand[nodes[held]])
        row[nodes] = _NONE
        if not _hang(network, row, nodes, left, float(shares[tree]), demand, most_children):
            parents[tree] = _grown(network, left, most_children)
    return parents


def _wrong(network: Network, row: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Nodes of one tree that their parent cannot reach."""
    wrong = row < 0
    wrong[network.trainer] = False
    child = np.flatnonzero(row >= 0)
    parent = row[child]
    bad = network.rate[network.region[parent], network.region[child]] <= 0
    bad |= ~(network.dialable[parent] | network.dialable[child])
    bad |= network.up[parent] <= 0
    if network.blocked or network.pair_rate:
        for k, (i, j) in enumerate(zip(parent.tolist(), child.tolist(), strict=True)):
            odd = (i, j) in network.blocked or (j, i) in network.blocked or (i, j) in network.pair_rate
            bad[k] |= odd and not network.connects(i, j)
    wrong[child[bad]] = True
    return wrong


def _hang(
    network: Network, row: Ints, nodes: Ints, left: Floats, share: float, demand: Floats, most_children: int
) -> bool:
    """Hang these nodes of one tree below others; False if one is left over. Those with children of their own first."""
    children = np.bincount(row[row >= 0], minlength=network.size)
    rooted = _rooted(row, network.trainer)
    waiting = sorted(nodes.tolist(), key=lambda i: (-children[i], i))
    while waiting:
        later = []
        for i in waiting:
            parent = _parent(network, i, rooted, children, left, most_children)
            if parent < 0:
                later.append(i)
                continue
            row[i] = parent
            children[parent] += 1
            left[parent] -= share * demand[i]
            if children[i]:
                rooted = _rooted(row, network.trainer)
            rooted[i] = True
        if len(later) == len(waiting):
            return False
        waiting = later
    return True


def _parent(
    network: Network,
    i: int,
    rooted: np.ndarray[tuple[int], np.dtype[np.bool_]],
    children: Ints,
    left: Floats,
    most_children: int,
) -> int:
    """Who should serve i: of the nodes that hang on the trainer already, the one with the most left; -1 for nobody."""
    region = int(network.region[i])
    able = rooted & (network.up > 0) & (network.rate[network.region, region] > 0)
    if not network.dialable[i]:
        able &= network.dialable
    near = network.region == region
    # Room under the limit of children first, then room on the uplink, then the own region, then who relays already.
    worth = np.minimum(left, 8.0) + 0.5 * near + 0.25 * (children > 0) - 100.0 * (children >= most_children)
    worth = np.where(able, worth, -np.inf)
    for _ in range(network.size):
        best = int(worth.argmax())
        if not np.isfinite(worth[best]):
            return -1
        if network.connects(best, i):
            return best
        worth[best] = -np.inf
    return -1


def _rooted(row: Ints, trainer: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Nodes from which parents lead to the trainer."""
    above = np.where(row >= 0, row, np.arange(len(row)))
    above[trainer] = trainer
    for _ in range(int(np.ceil(np.log2(max(2, len(row))))) + 1):
        above = above[above]
    return np.asarray(above == trainer)


def _grown(network: Network, left: Floats, most_children: int) -> Ints:
    """A whole new tree, grown from the trainer over whatever connects."""
    row = np.full(network.size, _NONE, np.int64)
    row[network.trainer] = -1
    rooted = np.zeros(network.size, bool)
    rooted[network.trainer] = True
    children = np.zeros(network.size, np.int64)
    waiting = [i for i in range(network.size) if i != network.trainer]
    while waiting:
        later = []
        for i in waiting:
            parent = _parent(network, i, rooted, children, left, most_children)
            if parent < 0:
                later.append(i)
            else:
                row[i] = parent
                children[parent] += 1
                rooted[i] = True
        if len(later) == len(waiting):
            raise ArithmeticError("a node that cannot be reached is in the plan")
        waiting = later
    return row
