"""Packing weighted arborescences into shared capacities: the linear program behind the bound and the plan.

The vertices are *groups*: single nodes, or regions whose nodes relay for each other. Maximise Σ w(T) over the spanning
arborescences T of the groups, where each unit of weight of T costs

- a uplink one unit for each arc that leaves a, and `inner[a]` units for passing it on within a;
- every row that an arc belongs to (a link shared by many arcs, a pair's own limit) one unit for each such arc.

What a group's own uplinks cannot pass on within it, another group may send it in its place ("gifts": one more unit on
the link, one less within). There are more trees than can be listed, so they are priced in as they are needed (column
generation): the dual prices of the rows make an arborescence of least cost the best new tree. Any prices, good or bad,
also prove an upper bound: no packing weighs more than Σ capacity · price / cost of the cheapest tree (weak duality). So
the search can stop at any time and knows how far from the best it may be. With one node to a group, this optimum is
what any broadcast can reach at all: fractional packings of arborescences attain the least of the max-flows (Edmonds).
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

#: Prices count as none below this, relative to the largest.
_PRICE_EPSILON = 1e-9
#: How much shorter paths are preferred among equally cheap trees, as a share of the cost of a tree.
_SHORT_PATH_PREFERENCE = 1e-4
#: Seconds that a hop between groups counts beside its delay: a chunk is passed on when it is there as a whole.
HOP_SECONDS = 0.05
#: What the evenness of loads is worth, in seconds of latency.
_EVENNESS_SECONDS = 0.1
#: More trees than this are not kept: the rest carries little.
MAX_PACKED_TREES = 96
#: Givers to each group that are tried in one round.
_MAX_SENDERS = 4


@dataclass(frozen=True, eq=False)
class Capacities:
    """What trees are packed into.

    root: group of the trainer. up: Mbit/s of each group's uplinks together; inf where they do not bind. inner: units
    that each unit of a tree costs within each group. arcs: groups × groups, inf where there is no arc, else its delay
    in seconds (and more for what should be avoided where something else is as good). rows: groups × groups × k,
    indices into `limits` (-1: none). limits: Mbit/s. most: no packing may weigh more than this.
    most_children: of a group in one tree, as far as it can be had; the bound is one without this limit.
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
        """Seconds from the root to each group by the shortest way, hops counted."""
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
    """trees: parents of each group. weights: Mbit/s of each tree. gifts: (from, to) → Mbit/s sent in place of inner.

    bound: Mbit/s that no packing can pass. prices: of the rows, uplinks first, at the optimum.
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
    """The trees and gifts that are known so far, as columns over the rows."""

    capacities: Capacities
    trees: list[Ints] = field(default_factory=list)
    transfers: list[tuple[int, int]] = field(default_factory=list)
    _columns: list[Floats] = field(default_factory=list)
    _known: set[bytes] = field(default_factory=set)

    def add(self, parents: Ints) -> bool:
        """Whether the tree is a new one."""
        if parents.tobytes() in self._known:
            return False
        self._known.add(parents.tobytes())
        self.trees.append(parents)
        self._columns.append(tree_load(self.capacities, parents))
        return True

    def only(self, some: list[int]) -> _Master:
        """The same gifts, and some of the trees."""
        return _Master(
            self.capacities,
            [self.trees[k] for k in some],
            self.transfers,
            [self._columns[k] for k in some],
            self._known,
        )

    def columns(self) -> csc_array:
        """All rows (uplinks, limits, gifts into each group, all together) × trees and gifts."""
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
        """What the rows may hold."""
        return np.concatenate([self.capacities.all_limits, np.zeros(len(self.capacities.up)), [self.capacities.most]])


def tree_load(capacities: Capacities, parents: Ints) -> Floats:
    """What one unit of a tree costs each row, uplinks first."""
    groups = len(capacities.up)
    load = np.zeros(groups + len(capacities.limits))
    load[:groups] = capacities.inner
    children = np.flatnonzero(parents >= 0)
    np.add.at(load, parents[children], 1)
    rows = capacities.rows[parents[children], children].ravel()
    np.add.at(load, groups + rows[rows >= 0], 1)
    return load


def pack(capacities: Capacities, *, within: float = 1e-3, rounds: int = 60) -> Packing:
    """The heaviest packing, to within a share of the best, or what `rounds` of pricing find; evenly spread.

    All groups must be reachable from the root. Deterministic.
    """
    master = _Master(capacities)
    scale = _finite_scale(capacities)
    for step, short in ((1.0, _SHORT_PATH_PREFERENCE), (0.5, _SHORT_PATH_PREFERENCE), (1.0, 0.1), (0.5, 1.0)):
        _peel(master, step, short)
    solution, dual, most = _solve(master)
    # All uplinks together, alike: where nothing else binds, these prices are the right ones at once.
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
    """Trees to begin with: each the widest in what is left, whose bottleneck (or a share of it) is then taken away.

    short: how much short paths are preferred to wide ones.
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
    """The first of these solutions, or if it has too many trees, the best that their heaviest trees allow."""
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
    """The same weight in all from short trees, and with little load on what need not be full: no row without a price
    need be, unless several do not bind but together.
    """
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
    """The shortest trees of this weight in all, and the lowest level that these rows share; None if none is found."""
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
    """Seconds from the root to the farthest group of a tree, hops counted."""
    above = parents.copy()
    total = np.zeros(len(parents))
    below = np.arange(len(parents))
    while (above >= 0).any():
        on = above >= 0
        total[on] += capacities.arcs[above[on], below[on]] + HOP_SECONDS
        below = above
        above = np.where(above >= 0, parents[above], -1)
    return float(total.max())


def _solve(master: _Master) -> tuple[Floats, Floats, float]:
    """Weights of the master's columns, the prices of the rows, and that of `most`."""
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
    """The cheapest tree at these prices; of those that cost about the same, one of short paths."""
    cost = arc_costs(capacities, prices)
    finite = cost[np.isfinite(cost) & (cost > 0)]
    usual = float(np.median(finite)) if len(finite) else 1.0
    cost += capacities.lengths * (short * usual)
    parents = cheapest_arborescence(cost, capacities.root)
    return parents if capacities.max_children is None else _uncrowded(parents, cost, capacities.max_children)


def _uncrowded(parents: Ints, cost: Floats, most: int) -> Ints:
    """The same tree, in which children beyond `most` hang elsewhere, where that costs least; leaves are moved first."""
    children = np.bincount(parents[parents >= 0], minlength=len(parents))
    if children.max(initial=0) <= most:
        return parents
    parents = parents.copy()
    for i in np.flatnonzero(children > most):
        own = np.flatnonzero(parents == i)
        # Those that lose least by it go first.
        other = np.where((children >= most)[:, None], np.inf, cost[:, own]).min(axis=0) - cost[i, own]
        for v in own[np.lexsort((other, children[own] > 0))][: len(own) - most]:
            below = np.zeros(len(parents), bool)
            below[v] = True
            while children[v] and (grown := below | (below[parents] & (parents >= 0))).sum() > below.sum():
                below = grown
            price = np.where(below | (children >= most), np.inf, cost[:, v])
            u = int(price.argmin())
            if np.isfinite(price[u]):
                parents[v] = u
                children[u] += 1
                children[i] -= 1
    return parents


def arc_costs(capacities: Capacities, prices: Floats) -> Floats:
    """What an arc costs at these prices; inf where there is none."""
    groups = len(capacities.up)
    extended = np.append(prices[groups:], 0.0)
    cost = prices[:groups, None] + extended[capacities.rows].sum(axis=2)
    return np.where(np.isfinite(capacities.arcs), cost, np.inf)


def _bound(capacities: Capacities, prices: Floats, most: float) -> float:
    """What no packing can pass, by weak duality."""
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
    """Prices on the scale of others: both as worth of all capacity."""
    limits = capacities.all_limits
    own, theirs = (float(limits[p > 0] @ p[p > 0]) for p in (prices, other))
    return prices * (theirs / own) if own > 0 and np.isfinite(own) and theirs > 0 else prices


def _add_transfers(master: _Master, prices: Floats) -> bool:
    """Add the gifts that would pay at these prices, the best giver for each group."""
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
