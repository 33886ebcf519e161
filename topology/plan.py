"""A plan: weighted spanning trees over the nodes, the load of each link, and the predicted makespan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from p2psync.protocol.plan import NodePlan, TreePosition
from p2psync.topology.bound import BITS_PER_MBIT
from p2psync.topology.network import Floats, Ints, Network

#: Bytes of a chunk in predictions, by default.
CHUNK_BYTES = 64 << 10
#: The sum of a plan's integer shares, about.
_SHARE_UNITS = 1_000_000


@dataclass(frozen=True, eq=False)
class LinkLoad:
    """The planned load of one limited resource, in Mbit/s at the plan's rate. kind: up, down, link or pair."""

    kind: str
    name: str
    load: float
    capacity: float

    @property
    def share(self) -> float:
        """The utilisation: 1 is full."""
        return self.load / self.capacity if self.capacity > 0 else float("inf")


@dataclass(frozen=True, eq=False)
class Plan:
    """names: nodes, sorted. trainer: its index. parents: trees × nodes (int64), index of the parent; -1 at the trainer.

    shares: of each tree, summing to 1, the heaviest first. rate: Mbit/s at which the trees fill their first bottleneck.
    slow: nodes that take less than `rate` because their own downlink is slower, and their Mbit/s; they relay nothing.
    bound: Mbit/s that no plan can exceed. unreachable: nodes that nothing can reach; they are in no tree. of_highest:
    the lowest rate as a share of the highest one among the candidate plans; below 1, the planner gave rate up for fewer
    flows or shorter paths.
    """

    names: tuple[str, ...]
    trainer: int
    parents: Ints
    shares: Floats
    rate: float
    slow: dict[str, float]
    bound: float
    unreachable: tuple[str, ...] = ()
    revision: int = 0
    share_of_highest: float = 1.0

    @property
    def reaches_nobody(self) -> bool:
        """Whether no node gets anything: the trainer is alone, or cannot reach the others. All rates are 0 then."""
        return len(self.names) < 2

    @property
    def lowest_rate(self) -> float:
        """Mbit/s that every node gets."""
        return min([self.rate, *self.slow.values()])

    @property
    def ratio(self) -> float:
        """The rate that every node gets, as a share of the bound."""
        return self.lowest_rate / self.bound if self.bound else 1.0

    @cached_property
    def whole_shares(self) -> list[int]:
        """The shares as integers, as the nodes receive them."""
        return [max(1, round(_SHARE_UNITS * share)) for share in self.shares]

    @cached_property
    def children(self) -> Ints:
        """Trees × nodes: number of children of each node in each tree."""
        counts = np.zeros(self.parents.shape, np.int64)
        tree, node = np.nonzero(self.parents >= 0)
        np.add.at(counts, (tree, self.parents[tree, node]), 1)
        return counts

    @cached_property
    def depth(self) -> Ints:
        """Trees × nodes: hops from the trainer."""
        depth = np.zeros(self.parents.shape, np.int64)
        ancestor = self.parents.copy()
        rows = np.arange(len(ancestor))[:, None]
        while (ancestor >= 0).any():
            depth += ancestor >= 0
            ancestor = np.where(ancestor >= 0, self.parents[rows, ancestor], -1)
        return depth

    @cached_property
    def height(self) -> Ints:
        """Trees × nodes: hops from each node to its farthest descendant."""
        height = np.zeros(self.parents.shape, np.int64)
        for level in range(int(self.depth.max(initial=0)), 0, -1):
            tree, node = np.nonzero(self.depth == level)
            np.maximum.at(height, (tree, self.parents[tree, node]), height[tree, node] + 1)
        return height

    @cached_property
    def index(self) -> dict[str, int]:
        """The index of each node by name."""
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def _children_by_parent(self) -> list[tuple[Ints, Ints]]:
        return [_grouped(row, high) for row, high in zip(self.parents, self.height, strict=True)]

    def node_plan(self, name: str) -> NodePlan:
        """Returns one node's part of the plan."""
        return next(self.node_plans([name]))

    def node_plans(self, names: list[str] | None = None) -> Iterator[NodePlan]:
        """Yields the parts of the named nodes, in their order (None: all)."""
        for name in self.names if names is None else names:
            i = self.index[name]
            peers: dict[int, int] = {}
            positions = []
            for tree, (order, cuts) in enumerate(self._children_by_parent):
                parent = int(self.parents[tree, i])
                children = order[cuts[i] : cuts[i + 1]].tolist()
                known = [peers.setdefault(peer, len(peers)) for peer in children]
                parent_peer = peers.setdefault(parent, len(peers)) if parent >= 0 else -1
                rate = round(float(self.shares[tree] * self.rate), 6)
                positions.append(TreePosition(parent_peer, known, int(self.depth[tree, i]), rate))
            yield NodePlan(self.revision, [self.names[peer] for peer in peers], self.whole_shares, positions)

    def egress(self, i: int) -> float:
        """Returns how many copies of the payload node i sends."""
        return float(self.shares @ self.children[:, i])


def _grouped(parents: Ints, height: Ints) -> tuple[Ints, Ints]:
    """Returns the nodes sorted by parent, and where each parent's children begin.

    Children come in the order in which their parent serves them: first those with the tallest subtree.
    """
    order = np.lexsort((-height, parents))
    return order, np.searchsorted(parents[order], np.arange(len(parents) + 1))


def demands(network: Network, slow: dict[str, float], rate: float) -> Floats:
    """Returns the share of the rate that each node takes (float64, nodes)."""
    demand = np.ones(network.size)
    if slow:
        index = {name: i for i, name in enumerate(network.names)}
        for name, own in slow.items():
            demand[index[name]] = min(1.0, own / rate)
    return demand


@dataclass(frozen=True, eq=False)
class TreeUsage:
    """The load of one unit of each tree on each row: rows × trees, and the capacity of each row. rows: (kind, i, j)."""

    rows: list[tuple[str, int, int]]
    per_tree: Floats
    capacity: Floats

    def rate(self, shares: Floats) -> float:
        """Returns the rate (Mbit/s) at which the first row is full."""
        load = self.per_tree @ shares
        used = load > 1e-12
        return float((self.capacity[used] / load[used]).min(initial=np.inf))


def usage(network: Network, parents: Ints, demand: Floats) -> TreeUsage:
    """Returns what trees (trees × nodes) load: each node's uplink, each limited link between regions, each limited
    pair."""
    trees, nodes, regions = len(parents), network.size, len(network.regions)
    up = np.zeros((nodes, trees))
    between = np.zeros((regions * regions, trees))
    for tree, row in enumerate(parents):
        child = np.flatnonzero(row >= 0)
        parent = row[child]
        up[:, tree] = np.bincount(parent, demand[child], nodes)
        pair = network.region[parent] * regions + network.region[child]
        between[:, tree] = np.bincount(pair, demand[child], regions * regions)
    limits = network.rate.ravel()
    binding = np.flatnonzero((limits > 0) & np.isfinite(limits))
    rows = [("up", i, i) for i in range(nodes)]
    rows += [("link", int(k // regions), int(k % regions)) for k in binding]
    per_tree, capacity = [up, between[binding]], [network.up, limits[binding]]
    pairs = sorted(pair for pair, rate in network.pair_rate.items() if 0 < rate < np.inf)
    if pairs:
        rows += [("pair", i, j) for i, j in pairs]
        per_tree.append(np.array([[demand[j] * (row[j] == i) for row in parents] for i, j in pairs], float))
        capacity.append(np.array([network.pair_rate[pair] for pair in pairs]))
    return TreeUsage(rows, np.concatenate(per_tree), np.concatenate(capacity))


def link_loads(plan: Plan, network: Network) -> list[LinkLoad]:
    """Returns the load of every link between regions, limited pair, uplink and downlink, without unreachable nodes."""
    network = network.only(_in_plan(plan, network))
    demand = demands(network, plan.slow, plan.rate)
    used = usage(network, plan.parents, demand)
    load = used.per_tree @ plan.shares * plan.rate
    names = {"up": network.names, "pair": network.names, "link": network.regions}
    found = [
        LinkLoad(kind, names[kind][i] if i == j else f"{names[kind][i]}→{names[kind][j]}", float(mbit), float(most))
        for (kind, i, j), mbit, most in zip(used.rows, load, used.capacity, strict=True)
    ]
    downs = np.where(np.arange(network.size) == plan.trainer, 0, demand * plan.rate)
    return found + [
        LinkLoad("down", name, float(mbit), float(most))
        for name, mbit, most in zip(network.names, downs, network.down, strict=True)
    ]


def fullest_relay(plan: Plan, network: Network) -> float:
    """Returns the utilisation of the fullest uplink, the trainer's aside."""
    trainer = plan.names[plan.trainer]
    relays = [load for load in link_loads(plan, network) if load.kind == "up" and load.load and load.name != trainer]
    return max((load.share for load in relays), default=0.0)


def fullest_link(plan: Plan, network: Network) -> float:
    """Returns the utilisation of the fullest link between regions; 0 if none is limited."""
    return max((load.share for load in link_loads(plan, network) if load.kind == "link"), default=0.0)


def predicted_makespan(plan: Plan, network: Network, payload_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> float:
    """Returns the seconds until the last node has a payload if every link has its nominal rate; 0 for a plan that
    reaches nobody.

    The time is the payload at the lowest rate, plus the last chunk's path down its tree: at each hop the delay, and the
    chunk once for each child that is served before.
    """
    if plan.reaches_nobody:
        return 0.0
    network = network.only(_in_plan(plan, network))
    chunk = min(chunk_bytes, payload_bytes)
    return payload_bytes * 8 / (plan.lowest_rate * BITS_PER_MBIT) + float(
        arrival(plan, network, chunk).max(initial=0.0)
    )


def arrival(plan: Plan, network: Network, chunk_bytes: int) -> Floats:
    """Returns the seconds (trees × nodes) that a chunk takes from the trainer if it leaves at once and all links are
    idle."""
    rows = np.arange(len(plan.parents))[:, None]
    parents = plan.parents
    ancestor = np.maximum(parents, 0)
    delay = network.delay[network.region[ancestor], network.region[None, :]]
    serving = plan.children[rows, ancestor] * chunk_bytes * 8 / (np.maximum(network.up[ancestor], 1e-9) * BITS_PER_MBIT)
    hop = np.where(parents >= 0, delay + serving, 0)
    total = hop.copy()
    while (parents >= 0).any():
        ancestor = np.maximum(parents, 0)
        total += np.where(parents >= 0, hop[rows, ancestor], 0)
        parents = np.where(parents >= 0, plan.parents[rows, ancestor], -1)
    return total


def _in_plan(plan: Plan, network: Network) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    known = set(plan.names)
    return np.array([name in known for name in network.names], bool)
