"""Repairs trees: every node gets a parent that can reach it, in each tree."""

from __future__ import annotations

import numpy as np

from p2psync.topology.network import Flags, Floats, Ints, Network

_NO_PARENT = -2


def with_members(names: tuple[str, ...], parents: Ints, network: Network) -> Ints:
    """Maps trees of other members to this network's nodes: nodes whose parent left, and new ones, get none yet (-2)."""
    old = {name: i for i, name in enumerate(names)}
    here = {name: i for i, name in enumerate(network.names)}
    # New index of each old node; the last entry stands for "no parent".
    moved = np.array([here.get(name, _NO_PARENT) for name in names] + [_NO_PARENT], np.int64)
    kept = np.array([old.get(name, -1) for name in network.names], np.int64)
    found = np.full((len(parents), network.size), _NO_PARENT, np.int64)
    both = kept >= 0
    found[:, both] = moved[parents[:, kept[both]]]
    found[:, network.trainer] = -1
    return found


def without_crowds(parents: Ints, max_children: int) -> Ints:
    """Returns trees in which no node has more than `max_children` children: those with the fewest descendants lose
    their parent."""
    parents = parents.copy()
    for row in parents:
        children = np.bincount(row[row >= 0], minlength=len(row))
        for i in np.flatnonzero(children > max_children):
            own = np.flatnonzero(row == i)
            row[own[np.argsort(-children[own], kind="stable")][max_children:]] = _NO_PARENT
    return parents


class _RemainingCapacity:
    """Copies of the payload that uplinks and links between regions could still carry."""

    def __init__(self, network: Network, rate: float, demand: Floats) -> None:
        self.network = network
        self.demand = demand
        self.up = network.up / rate
        self.link = network.rate / rate

    def take(self, parent: Ints, child: Ints, share: float) -> None:
        """Subtracts the load of these parents serving these children; a negative share adds it back."""
        copies = share * self.demand[child]
        region = self.network.region
        np.subtract.at(self.up, parent, copies)
        np.subtract.at(self.link, (region[parent], region[child]), copies)


def repair(network: Network, parents: Ints, shares: Floats, rate: float, demand: Floats, max_children: int) -> Ints:
    """Returns the same trees, with a new parent for each node whose parent is missing or cannot reach it.

    The new parent is the node with the most remaining capacity, in the same region if possible. Every node must be
    reachable; raises `ArithmeticError` otherwise.
    """
    parents = parents.copy()
    wrong = [np.flatnonzero(_wrong(network, row)) for row in parents]
    if not any(len(nodes) for nodes in wrong):
        return parents
    remaining = _RemainingCapacity(network, rate, demand)
    for row, nodes, share in zip(parents, wrong, shares.tolist(), strict=True):
        row[nodes] = _NO_PARENT
        child = np.flatnonzero(row >= 0)
        remaining.take(row[child], child, share)
    for tree, nodes in enumerate(wrong):
        share = float(shares[tree])
        if len(nodes) and not _attach(remaining, parents[tree], nodes, share, max_children):
            parents[tree] = _NO_PARENT
            parents[tree, network.trainer] = -1
            if not _attach(remaining, parents[tree], np.flatnonzero(parents[tree] == _NO_PARENT), share, max_children):
                raise ArithmeticError("a node that cannot be reached is in the plan")
    return parents


def _wrong(network: Network, row: Ints) -> Flags:
    """Returns the nodes of one tree that their parent cannot reach (bool, nodes)."""
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
    # A node whose ancestors are neither the trainer nor a node that gets a new parent is in a cycle.
    ancestor = np.where(wrong | (row < 0), np.arange(len(row)), row)
    for _ in range(int(np.ceil(np.log2(max(2, len(row))))) + 1):
        ancestor = ancestor[ancestor]
    ends = wrong.copy()
    ends[network.trainer] = True
    return wrong | ~ends[ancestor]


def _attach(remaining: _RemainingCapacity, row: Ints, nodes: Ints, share: float, max_children: int) -> bool:
    """Gives these nodes of one tree new parents, those with children first; returns False if one finds none."""
    network = remaining.network
    children = np.bincount(row[row >= 0], minlength=network.size)
    rooted = _rooted(row, network.trainer)
    waiting = sorted(nodes.tolist(), key=lambda i: (-children[i], not network.dialable[i], i))
    while waiting:
        later = []
        for i in waiting:
            parent = _parent(remaining, i, rooted, children, share, max_children)
            if parent < 0:
                later.append(i)
                continue
            row[i] = parent
            remaining.take(np.array([parent]), np.array([i]), share)
            children[parent] += 1
            if children[i]:
                rooted = _rooted(row, network.trainer)
            rooted[i] = True
        if len(later) == len(waiting):
            return False
        waiting = later
    return True


def _parent(
    remaining: _RemainingCapacity, i: int, rooted: Flags, children: Ints, share: float, max_children: int
) -> int:
    """Returns the parent for i: of the nodes connected to the trainer, the one with the most remaining capacity; -1 for
    none."""
    network = remaining.network
    region = int(network.region[i])
    able = rooted & (network.up > 0) & (network.rate[network.region, region] > 0)
    if not network.dialable[i]:
        able &= network.dialable
    # Capacity for this child comes first, then the limit of children, then the own region, then existing relays.
    free = np.minimum(remaining.up, remaining.link[network.region, region])
    near = network.region == region
    worth = np.minimum(free, 0.0) * 100 - 10.0 * (free < share) - 5.0 * (children >= max_children)
    worth += 0.5 * near + 0.25 * (children > 0) + 0.2 * np.clip(free, 0, 4)
    worth = np.where(able, worth, -np.inf)
    for _ in range(network.size):
        best = int(worth.argmax())
        if not np.isfinite(worth[best]):
            return -1
        if network.connects(best, i):
            return best
        worth[best] = -np.inf
    return -1


def _rooted(row: Ints, trainer: int) -> Flags:
    """Returns the nodes whose ancestors lead to the trainer (bool, nodes)."""
    ancestor = np.where(row >= 0, row, np.arange(len(row)))
    ancestor[trainer] = trainer
    for _ in range(int(np.ceil(np.log2(max(2, len(row))))) + 1):
        ancestor = ancestor[ancestor]
    return np.asarray(ancestor == trainer)
