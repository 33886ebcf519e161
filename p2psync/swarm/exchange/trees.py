"""A node's positions in the plan's trees: its parents and its children in each. Pure.

A chunk that goes down a tree carries the tree's tag: the plan's revision and the tree's number. A node keeps the last
few plans, so that chunks in flight find their children while new measurements change the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from p2psync.protocol.plan import NodePlan

#: Plans that a node keeps, the newest among them. More lets chunks be forwarded for longer after a change.
_MAX_PLANS = 8
_TREE_BITS = 16


def tag_of(revision: int, tree: int) -> int:
    """Returns the tag of a tree; never 0, since revisions begin at 1."""
    return revision << _TREE_BITS | tree


@dataclass(frozen=True)
class _Positions:
    """Of each tree, the parent ("" for none) and the children."""

    parents: list[str] = field(default_factory=list)
    children: list[list[str]] = field(default_factory=list)


class Trees:
    """The plans of one node. All names are of peers.

    plan: the newest; None before the first. parents: the nodes that push to this one in it, co-publishers included.
    children: this node's children in each of its trees; all_children: in any of them. planned_from: Mbit/s from each
    parent.
    """

    def __init__(self) -> None:
        self.plan: NodePlan | None = None
        self.parents: frozenset[str] = frozenset()
        self.children: list[list[str]] = []
        self.all_children: frozenset[str] = frozenset()
        self.planned_from: dict[str, float] = {}
        self._by_revision: dict[int, _Positions] = {}

    def follow(self, plan: NodePlan) -> None:
        """Adds a plan, the newest."""
        self.plan = plan
        parents = [plan.peers[place.parent] if place.parent >= 0 else "" for place in plan.positions]
        self.parents = frozenset(parents) - {""} | {plan.peers[peer] for peer in plan.co_publishers}
        self.children = [[plan.peers[child] for child in place.children] for place in plan.positions]
        self.all_children = frozenset(name for names in self.children for name in names)
        self.planned_from = plan.rates_from()
        self._by_revision.pop(plan.revision, None)
        self._by_revision[plan.revision] = _Positions(parents, self.children)
        while len(self._by_revision) > _MAX_PLANS:
            del self._by_revision[next(iter(self._by_revision))]

    @property
    def is_publisher(self) -> bool:
        """Whether this node publishes: it has children, and no parents."""
        return not self.parents and any(self.children)

    def children_of(self, tag: int) -> Sequence[str]:
        """Returns the peers to which this node forwards a chunk of this tag; none for tag 0, or an unknown plan."""
        children = self._positions(tag).children
        tree = tag & (1 << _TREE_BITS) - 1
        return children[tree] if tree < len(children) else ()

    def parent_of(self, tag: int) -> str:
        """Returns the peer that forwards a chunk of this tag to this node; "" for none, or an unknown plan."""
        parents = self._positions(tag).parents
        tree = tag & (1 << _TREE_BITS) - 1
        return parents[tree] if tree < len(parents) else ""

    def _positions(self, tag: int) -> _Positions:
        return self._by_revision.get(tag >> _TREE_BITS, _NOWHERE)


_NOWHERE = _Positions()
