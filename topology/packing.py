"""Packs weighted arborescences into shared capacities: the linear program behind the bound and the plan.

The vertices are *groups*: single nodes, or regions whose nodes relay for each other. Maximise Σ w(T) over the spanning
arborescences T of the groups, where each unit of weight of T costs

- an uplink a one unit for each arc that leaves a, and `inner[a]` units for forwarding within a;
- every row that an arc belongs to (a link shared by many arcs, a pair's own limit) one unit for each such arc.

Where a group's own uplinks cannot serve all its nodes, another group may send copies in its place (*transfers*: one
more unit on the link, one less within the group). There are too many trees to list, so they are generated as needed
(column generation): with the dual prices of the rows, the cheapest arborescence is the best new tree. Any prices also
prove an upper bound: no packing weighs more than Σ capacity · price / cost of the cheapest tree (weak duality). So the
search can stop at any time with a known gap. With one node per group, the optimum is what any broadcast can reach at
all: fractional packings of arborescences attain the least of the max-flows (Edmonds 1972).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csc_array, hstack, vstack
from scipy.sparse.csgraph import shortest_path

from p2psync.topology.arborescence import cheapest_arborescence
from p2psync.topology.network import Floats, Ints

#: Prices below this share of the largest count as zero.
_PRICE_EPSILON = 1e-9
#: Weight of path length among equally cheap trees, as a share of a tree's cost.
_SHORT_PATH_PREFERENCE = 1e-4
#: Seconds added per hop between groups: a relay forwards a chunk once it has all of it.
HOP_SECONDS = 0.05
#: The value of even loads, in seconds of latency.
_EVENNESS_SECONDS = 0.1
#: Most trees of a packing; the others carry little.
MAX_PACKED_TREES = 96
#: Senders of transfers that are tried for each group in one round.
_MAX_SENDERS = 4


@dataclass(frozen=True, eq=False)
class Capacities:
    """The capacities that trees are packed into.

    root: group of the trainer. up: Mbit/s of each group's uplinks together; inf where they do not bind. inner: units
    that each unit of a tree costs within each group. arcs: groups × groups, inf where there is no arc, otherwise its
    delay in seconds (with additions for paths to avoid). rows: groups × groups × k, indices into `limits` (-1: none).
    limits: Mbit/s. most: Mbit/s that no packing may exceed. max_children: of a group in one tree, where possible; the
    bound ignores it.
    """

    root: int
    up: Floats
    inner: Floats
    arcs: Floats
    rows: Ints
    limits: Floats
    most: float
    max_children: int | None = None

    @cached_property
    def distances(self) -> Floats:
        """Seconds from the root to each group by the shortest path, hops counted."""
        hops = self.arcs + HOP_SECONDS
        return np.asarray(shortest_path(np.where(np.isfinite(hops), hops, 0), indices=self.root))

    @cached_property
    def lengths(self) -> Floats:
        """How far from the trainer each arc ends, as a share of the farthest; 0 where there is no arc."""
        hops = self.arcs + HOP_SECONDS
        length = self.distances[:, None] + hops
        finite = np.isfinite(length)
        return np.where(finite, length, 0) / (float(length[finite].max(initial=0.0)) or 1.0)

    @cached_property
    def all_limits(self) -> Floats:
        """Capacities of all rows: uplinks first."""
        return np.concatenate([self.up, self.limits])


@dataclass
class Packing:
    """trees: parents of each group. weights: Mbit/s of each tree. transfers: (from, to) → Mbit/s sent in place of
    inner.

    bound: Mbit/s that no packing can exceed. prices: of the rows, uplinks first, at the optimum.
    """

    trees: list[Ints]
    weights: Floats
    transfers: dict[tuple[int, int], float]
    bound: float
    prices: Floats

    @property
    def rate(self) -> float:
        """Mbit/s of all trees together."""
        return float(self.weights.sum())


@dataclass
class _Master:
    """The master problem: the known trees and transfers, as columns over the rows."""

    capacities: Capacities
    trees: list[Ints] = field(default_factory=list)
    transfers: list[tuple[int, int]] = field(default_factory=list)
    _columns: list[Floats] = field(default_factory=list)
    _known: set[bytes] = field(default_factory=set)

    def add(self, parents: Ints) -> bool:
        """Adds a tree; returns whether it is new."""
        if parents.tobytes() in self._known:
            return False
        self._known.add(parents.tobytes())
        self.trees.append(parents)
        self._columns.append(tree_load(self.capacities, parents))
        return True

    def only(self, some: list[int]) -> _Master:
        """Returns the same transfers with some of the trees."""
        return _Master(
            self.capacities,
            [self.trees[k] for k in some],
            self.transfers,
            [self._columns[k] for k in some],
            self._known,
        )

    def columns(self) -> csc_array:
        """Returns the matrix: all rows (uplinks, limits, transfers into each group, total) × trees and transfers."""
        capacities = self.capacities
        groups, rows = len(capacities.up), len(capacities.all_limits)
        trees = np.zeros((rows + groups + 1, len(self.trees)))
        trees[:rows] = np.stack(self._columns, axis=1)
        trees[rows : rows + groups] = -capacities.inner[:, None]
        trees[-1] = 1
        transfers = np.zeros((rows + groups + 1, len(self.transfers)))
        for k, (a, b) in enumerate(self.transfers):
            transfers[a, k], transfers[b, k], transfers[rows + b, k] = 1, -1, 1
            for row in capacities.rows[a, b]:
                if row >= 0:
                    transfers[groups + row, k] += 1
        return csc_array(np.hstack([trees, transfers]))

    def right(self) -> Floats:
        """Returns the right-hand sides of the rows."""
        return np.concatenate([self.capacities.all_limits, np.zeros(len(self.capacities.up)), [self.capacities.most]])


def tree_load(capacities: Capacities, parents: Ints) -> Floats:
    """Returns the load of one unit of a tree on each row, uplinks first."""
    groups = len(capacities.up)
    load = np.zeros(groups + len(capacities.limits))
    load[:groups] = capacities.inner
    children = np.flatnonzero(parents >= 0)
    np.add.at(load, parents[children], 1)
    rows = capacities.rows[parents[children], children].ravel()
    np.add.at(load, groups + rows[rows >= 0], 1)
    return load


def pack(capacities: Capacities, *, within: float = 1e-3, rounds: int = 60) -> Packing:
    """Returns the heaviest packing, within a share of the optimum or after `rounds` of pricing, with loads evened out.

    All groups must be reachable from the root. Deterministic. Raises `ArithmeticError` if the solver finds none.
    """
    master = _Master(capacities)
    scale = _finite_scale(capacities)
    for step, short in ((1.0, _SHORT_PATH_PREFERENCE), (0.5, _SHORT_PATH_PREFERENCE), (1.0, 0.1), (0.5, 1.0)):
        _peel(master, step, short)
    solution, dual, most = _solve(master)
    # Equal prices for all uplinks: they are optimal where nothing else binds.
    prices = centre = np.concatenate([np.isfinite(capacities.up), np.zeros(len(capacities.limits))]).astype(float)
    best = _bound(capacities, centre, 0.0)
    for _ in range(rounds):
        if float(solution[: len(master.trees)].sum()) >= best * (1 - within):
            break
        grown = _add_transfers(master, dual)
        for trial in (dual, 0.7 * _rescaled(centre, dual, capacities) + 0.3 * dual):
            bound = _bound(capacities, trial, most if trial is dual else 0.0)
            if bound < best:
                best, prices, centre = bound, trial, trial
            grown |= master.add(_priced(capacities, trial))
        if not grown:
            break
        solution, dual, most = _solve(master)
    solution = _thinned(master, _spread(master, solution, dual), solution)
    trees = len(master.trees)
    transfers = {
        pair: float(w) for pair, w in zip(master.transfers, solution[trees:], strict=True) if w > _PRICE_EPSILON * scale
    }
    used = np.flatnonzero(solution[:trees] > _PRICE_EPSILON * scale)
    return Packing([master.trees[k] for k in used], solution[used], transfers, min(best, capacities.most), prices)


def _peel(master: _Master, step: float, short: float) -> None:
    """Adds initial trees: each the widest in the remaining capacity, from which its bottleneck (or a share of it) is
    then subtracted.

    short: the weight of short paths against wide ones.
    """
    capacities = master.capacities
    finite = np.minimum(capacities.all_limits, 100 * max(_finite_scale(capacities), capacities.most))
    left = finite.copy()
    enough = 0.0
    for _ in range(4 * len(capacities.up) + 8):
        scarce = 1 / np.maximum(left, finite.max() * 1e-6)
        tree = _priced(capacities, scarce / scarce.max(), short)
        load = tree_load(capacities, tree)
        used = load > 0
        width = max(0.0, float((left[used] / load[used]).min(initial=capacities.most)))
        master.add(tree)
        enough += width
        if width <= _PRICE_EPSILON * finite.max() or enough >= 4 * capacities.most:
            return
        left -= load * (width * step)


def _thinned(master: _Master, *solutions: Floats) -> Floats:
    """Returns the first of these solutions, or if it has too many trees, the best one with its heaviest trees only."""
    trees = len(master.trees)
    if np.count_nonzero(solutions[0][:trees]) <= MAX_PACKED_TREES:
        return solutions[0]
    tried = []
    for solution in solutions:
        heaviest = np.argsort(-solution[:trees], kind="stable")[:MAX_PACKED_TREES]
        some = master.only(sorted(heaviest.tolist()))
        found = _solve(some)[0]
        tried.append((float(found[: len(some.trees)].sum()), some, found))
    _, some, found = max(tried, key=lambda one: one[0])
    master.trees = some.trees
    return found


def _spread(master: _Master, solution: Floats, prices: Floats) -> Floats:
    """Returns a solution of equal total weight with short trees, and low load on rows that need not be full: no row
    without a price need be, unless several bind only together."""
    total = float(solution[: len(master.trees)].sum())
    if total <= 0:
        return solution
    columns, limits = master.columns(), master.capacities.all_limits
    free = np.isfinite(limits) & (prices <= _PRICE_EPSILON * prices.max())
    for _ in range(2):
        found = _levelled(master, total, np.flatnonzero(free))
        if found is None:
            break
        solution = found
        full = (columns @ solution)[: len(limits)] >= limits * (1 - 1e-6)
        if not (free & full).any():
            break
        free &= ~full
    return solution


def _levelled(master: _Master, total: float, free: Ints) -> Floats | None:
    """Returns the weights of the shortest trees with this total and the lowest common utilisation of the free rows;
    None if none is found."""
    columns, right = master.columns(), master.right()
    trees, transfers = len(master.trees), len(master.transfers)
    binding = np.flatnonzero(np.isfinite(right))
    latency = np.array([_latency(master.capacities, tree) for tree in master.trees])
    objective = np.concatenate([latency / total, np.full(transfers, 1e-3 / total), [_EVENNESS_SECONDS]])
    level = np.zeros((len(right), 1))
    level[free, 0] = -right[free]
    limits = right.copy()
    limits[free] = 0
    both = hstack([columns, csc_array(level)], format="csc")[binding]
    goal = np.concatenate([np.full(trees, -1.0), np.zeros(transfers + 1)])[None]
    found = linprog(
        objective,
        A_ub=vstack([both, csc_array(goal)], format="csc"),
        b_ub=np.append(limits[binding], -total * (1 - 1e-9)),
        bounds=[(0, None)] * (trees + transfers) + [(0, 1)],
        method="highs-ds",
    )
    return None if found.x is None else found.x[:-1]


def _latency(capacities: Capacities, parents: Ints) -> float:
    """Returns the seconds from the root to the farthest group of a tree, hops counted."""
    ancestor = parents.copy()
    total = np.zeros(len(parents))
    node = np.arange(len(parents))
    while (ancestor >= 0).any():
        on = ancestor >= 0
        total[on] += capacities.arcs[ancestor[on], node[on]] + HOP_SECONDS
        node = ancestor
        ancestor = np.where(ancestor >= 0, parents[ancestor], -1)
    return float(total.max())


def _solve(master: _Master) -> tuple[Floats, Floats, float]:
    """Returns the weights of the master's columns, the prices of the rows, and the price of `most`."""
    columns, right = master.columns(), master.right()
    binding = np.flatnonzero(np.isfinite(right))
    gain = np.concatenate([np.ones(len(master.trees)), np.zeros(len(master.transfers))])
    found = linprog(-gain, A_ub=columns[binding], b_ub=right[binding], method="highs-ds")
    if found.x is None:
        raise ArithmeticError(f"no packing was found: {found.message}")
    prices = np.zeros(len(right))
    prices[binding] = np.maximum(0, -found.ineqlin.marginals)
    rows = len(master.capacities.all_limits)
    return found.x, prices[:rows], float(prices[-1])


def _priced(capacities: Capacities, prices: Floats, short: float = _SHORT_PATH_PREFERENCE) -> Ints:
    """Returns the cheapest tree at these prices; among nearly equal ones, one with short paths."""
    cost = arc_costs(capacities, prices)
    finite = cost[np.isfinite(cost) & (cost > 0)]
    usual = float(np.median(finite)) if len(finite) else 1.0
    cost += capacities.lengths * (short * usual)
    parents = cheapest_arborescence(cost, capacities.root)
    return parents if capacities.max_children is None else _uncrowded(parents, cost, capacities.max_children)


def _uncrowded(parents: Ints, cost: Floats, most: int) -> Ints:
    """Returns the same tree, in which children beyond `most` get other parents where that costs least; leaves move
    first."""
    children = np.bincount(parents[parents >= 0], minlength=len(parents))
    if children.max(initial=0) <= most:
        return parents
    parents = parents.copy()
    for i in np.flatnonzero(children > most):
        own = np.flatnonzero(parents == i)
        # Children with the least extra cost move first.
        other = np.where((children >= most)[:, None], np.inf, cost[:, own]).min(axis=0) - cost[i, own]
        for v in own[np.lexsort((other, children[own] > 0))][: len(own) - most]:
            subtree = np.zeros(len(parents), bool)
            subtree[v] = True
            while children[v] and (grown := subtree | (subtree[parents] & (parents >= 0))).sum() > subtree.sum():
                subtree = grown
            price = np.where(subtree | (children >= most), np.inf, cost[:, v])
            u = int(price.argmin())
            if np.isfinite(price[u]):
                parents[v] = u
                children[u] += 1
                children[i] -= 1
    return parents


def arc_costs(capacities: Capacities, prices: Floats) -> Floats:
    """Returns the cost of each arc at these prices; inf where there is none."""
    groups = len(capacities.up)
    extended = np.append(prices[groups:], 0.0)
    cost = prices[:groups, None] + extended[capacities.rows].sum(axis=2)
    return np.where(np.isfinite(capacities.arcs), cost, np.inf)


def _bound(capacities: Capacities, prices: Floats, most: float) -> float:
    """Returns the rate that no packing can exceed, by weak duality."""
    groups = len(capacities.up)
    cost = arc_costs(capacities, prices)
    # An arborescence costs at least its own minimum; exact prices, without the preference for short ones.
    parents = cheapest_arborescence(cost, capacities.root)
    children = np.flatnonzero(parents >= 0)
    least = float(cost[parents[children], children].sum())
    saved = np.maximum(0, (prices[:groups] - cost).max(axis=0, initial=0.0))
    least += float((capacities.inner * np.maximum(0, prices[:groups] - saved)).sum()) + most
    limits = capacities.all_limits
    worth = float(limits[prices > 0] @ prices[prices > 0]) + (capacities.most * most if most else 0.0)
    return min(capacities.most, worth / least) if least > 0 else capacities.most


def _rescaled(prices: Floats, other: Floats, capacities: Capacities) -> Floats:
    """Returns prices rescaled so that all capacity is worth as much as at the other prices."""
    limits = capacities.all_limits
    own, theirs = (float(limits[p > 0] @ p[p > 0]) for p in (prices, other))
    return prices * (theirs / own) if own > 0 and np.isfinite(own) and theirs > 0 else prices


def _add_transfers(master: _Master, prices: Floats) -> bool:
    """Adds the transfers that pay at these prices, from the best senders of each group."""
    capacities = master.capacities
    groups = len(capacities.up)
    saving = prices[:groups] - arc_costs(capacities, prices)
    saving[:, capacities.inner <= 0] = -np.inf
    np.fill_diagonal(saving, -np.inf)
    for a, b in master.transfers:
        saving[a, b] = -np.inf
    senders = np.argsort(-saving, axis=0, kind="stable")[:_MAX_SENDERS]
    pays = np.take_along_axis(saving, senders, axis=0) > _PRICE_EPSILON * prices.max()
    new = [(int(senders[k, b]), int(b)) for k, b in zip(*np.nonzero(pays), strict=True)]
    master.transfers += new
    return bool(new)


def _finite_scale(capacities: Capacities) -> float:
    limits = capacities.all_limits
    return float(limits[np.isfinite(limits)].max(initial=1e-3))
