"""A plan's figures: the report of `p2psync wan plan`."""

from __future__ import annotations

import msgspec

from p2psync.topology.bound import broadcast_bound, least_makespan
from p2psync.topology.network import Network
from p2psync.topology.plan import LinkLoad, Plan, link_loads, predicted_makespan


class LoadFigures(msgspec.Struct, frozen=True):
    """One link: the planned Mbit/s, and its capacity. kind: up, down, link or pair."""

    kind: str
    name: str
    mbit: float
    capacity: float


class TreeFigures(msgspec.Struct, frozen=True):
    """One tree: its share of the chunks, its depth, and the parent of each node."""

    share: float
    depth: int
    parents: dict[str, str]


class PlanFigures(msgspec.Struct, frozen=True):
    """Rates in Mbit/s, times in seconds.

    nodes: of the network, unreachable ones included; the bound and the plan are for the others. exact: whether the
    bound can be reached, or is an upper bound. rate: what every node gets by the plan, 0: nobody. slow: nodes that take
    less than the others because of their own downlinks, and their Mbit/s; others: what the others get then. egress:
    copies of the payload that the trainer sends.
    """

    nodes: int
    trainer: str
    bound: float
    exact: bool
    because: str
    least_makespan: float
    rate: float
    ratio: float
    makespan: float
    payload_bytes: int
    egress: float
    depth: int
    max_children: int
    unreachable: list[str]
    others: float
    slow: dict[str, float]
    loads: list[LoadFigures]
    trees: list[TreeFigures]


def plan_figures(plan: Plan, network: Network, payload_bytes: int, chunk_bytes: int) -> PlanFigures:
    """Returns the figures of a plan for a network and a payload."""
    part = network.only(network.reachable())
    bound = broadcast_bound(part)
    return PlanFigures(
        nodes=network.size,
        trainer=plan.names[plan.trainer],
        bound=bound.rate,
        exact=bound.exact,
        because=bound.because,
        least_makespan=least_makespan(part, payload_bytes),
        rate=plan.lowest_rate,
        ratio=plan.ratio,
        makespan=predicted_makespan(plan, network, payload_bytes, chunk_bytes),
        payload_bytes=payload_bytes,
        egress=plan.egress(plan.trainer),
        depth=int(plan.depth.max()),
        max_children=int(plan.children.max()),
        unreachable=list(plan.unreachable),
        others=plan.rate,
        slow=plan.slow,
        loads=[_load(one) for one in link_loads(plan, network)] if not plan.reaches_nobody else [],
        trees=[_tree(plan, tree) for tree in range(len(plan.shares))],
    )


def _load(load: LinkLoad) -> LoadFigures:
    return LoadFigures(load.kind, load.name, round(load.load, 3), load.capacity)


def _tree(plan: Plan, tree: int) -> TreeFigures:
    ends = enumerate(plan.parents[tree].tolist())
    parents = {plan.names[i]: plan.names[parent] for i, parent in ends if parent >= 0}
    return TreeFigures(round(float(plan.shares[tree]), 6), int(plan.depth[tree].max()), parents)
