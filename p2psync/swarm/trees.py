"""A node's places in the plan's trees: who pushes to it, to whom it pushes. Pure.

A chunk that goes down a tree carries the tree's tag: the plan's revision and the tree's number. The last few plans are
kept, so that what is on its way finds its children while new measures change the plan.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2psync.protocol.plan import NodePlan

#: Plans that are kept, the newest among them.
_KEPT = 8
_TREE_BITS = 16


def tag_of(revision: int, tree: int) -> int:
    """The tag of a tree; never 0, since revisions begin at 1."""
    return revision << _TREE_BITS | tree


class Trees:
    """The plans of one node. All names are of peers."""

    def __init__(self) -> None:
        self.plan: NodePlan | None = None
        #: Who pushes to this node in the newest plan; and the roots besides.
        self.above: frozenset[str] = frozenset()
        self.parents: frozenset[str] = frozenset()
        #: In each tree of the newest plan, whom this node pushes to.
        self.children: list[list[str]] = []
        #: All of them.
        self.first_hops: frozenset[str] = frozenset()
        self._by_revision: dict[int, list[list[str]]] = {}

    def follow(self, plan: NodePlan) -> None:
        """This is the plan now."""
        self.plan = plan
        self.above = frozenset(plan.peers[place.parent] for place in plan.positions if place.parent >= 0)
        self.parents = self.above | {plan.peers[peer] for peer in plan.co_publishers}
        self.children = [[plan.peers[child] for child in place.children] for place in plan.positions]
        self.first_hops = frozenset(name for names in self.children for name in names)
        self._by_revision.pop(plan.revision, None)
        self._by_revision[plan.revision] = self.children
        while len(self._by_revision) > _KEPT:
            del self._by_revision[next(iter(self._by_revision))]

    @property
    def is_root(self) -> bool:
        """Whether the trees begin here: chunks are put into them by this node."""
        return not self.parents and any(self.children)

    def below(self, tag: int) -> Sequence[str]:
        """Whom a chunk of this tag is pushed to; nobody if the tag is 0 or of a plan that is not known."""
        trees = self._by_revision.get(tag >> _TREE_BITS, ())
        tree = tag & (1 << _TREE_BITS) - 1
        return trees[tree] if tree < len(trees) else ()
