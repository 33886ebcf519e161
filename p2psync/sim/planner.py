"""A planner for the simulator: arbitrary valid trees over the members, regardless of their rates.

A swarm must converge with the worst plans: a star, a chain, chains in different orders, random trees, trees whose
neighbours cannot reach each other, plans that leave nodes out, and no plan.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from p2psync.membership.planning import PlanTask
from p2psync.protocol.plan import NodePlan, TreePosition

#: Parents by index; -1 at the trainer, which is first. A parent precedes its children.
_Tree = list[int]


@dataclass(frozen=True)
class SimPlanResult:
    """A plan. trees: for each tree the parent of each node by name, "" for the trainer."""

    revision: int
    shares: list[int]
    trees: list[dict[str, str]]
    diagnostics: dict[str, str] = field(default_factory=dict)

    def node_plan(self, node: str) -> NodePlan | None:
        """See `PlanResult`."""
        if node not in self.trees[0]:
            return None
        peers: dict[str, int] = {}
        positions = []
        for tree in self.trees:
            children = [peers.setdefault(child, len(peers)) for child, parent in tree.items() if parent == node]
            parent = peers.setdefault(tree[node], len(peers)) if tree[node] else -1
            positions.append(TreePosition(parent, children, _depth(tree, node), 1.0))
        return NodePlan(self.revision, list(peers), self.shares, positions)


class SimPlanner:
    """Draws each plan's kind and trees, and sometimes fails. Equal generators give equal plans."""

    def __init__(self, rng: random.Random, failures: float = 0.1) -> None:
        """failures: probability that a plan fails."""
        self._rng = rng
        self._failures = failures
        self._revision = 0

    def warm(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def plan(self, task: PlanTask) -> SimPlanResult:
        """See `Planner`. Raises `ArithmeticError` with probability `failures`."""
        rng = self._rng
        if rng.random() < self._failures:
            raise ArithmeticError("the planner failed")
        names = [m.info.node for m in task.members if m.info.node != task.trainer]
        if len(names) > 1 and rng.random() < 0.2:
            names.remove(rng.choice(names))
        make = rng.choice([_star, _chain, _random])
        self._revision += 1
        trees = []
        for _ in range(rng.choice([1, 2, 5])):
            rng.shuffle(names)
            order = [task.trainer, *names]
            parents = make(rng, len(order))
            trees.append(
                {name: order[parent] if parent >= 0 else "" for name, parent in zip(order, parents, strict=True)}
            )
        return SimPlanResult(self._revision, [rng.randint(1, 9) for _ in trees], trees)


def _star(_rng: random.Random, nodes: int) -> _Tree:
    return [-1] + [0] * (nodes - 1)


def _chain(_rng: random.Random, nodes: int) -> _Tree:
    return list(range(-1, nodes - 1))


def _random(rng: random.Random, nodes: int) -> _Tree:
    return [-1] + [rng.randrange(i) for i in range(1, nodes)]


def _depth(tree: dict[str, str], node: str) -> int:
    depth = 0
    while node := tree[node]:
        depth += 1
    return depth
