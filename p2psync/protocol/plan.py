"""A node's part of the plan: its positions in weighted spanning trees.

A plan is a few spanning trees over the nodes, rooted at the publisher, each with a share of the chunks. In each tree a
node has one parent, from which it should get that tree's chunks first, and children that it should serve. The publisher
assigns chunks to trees by the shares, and a chunk carries its tree's tag.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from p2psync.errors import FormatError

#: Bounds that a receiver of a plan checks: trees, and children of a node in one tree.
MAX_TREES = 256
MAX_CHILDREN = 1024
#: Bounds on a tree's rate in Mbit/s, and on a path's headroom.
MAX_RATE = 1e9
MAX_HEADROOM = 1e6


class TreePosition(msgspec.Struct, frozen=True, array_like=True):
    """A node's position in one tree, as indices into `NodePlan.peers`. parent: -1 at the publisher. depth: hops from
    it.

    rate: planned Mbit/s of this tree.
    """

    parent: int
    children: list[int]
    depth: int
    rate: float


class NodePlan(msgspec.Struct, frozen=True, array_like=True):
    """A node's part of the plan. revision: rises with each plan. peers: the node's parents and children.

    shares: of each tree, in parts of their sum. positions: of this node, in the same order. co_publishers: for a child
    of the trainer, the peers that send other chunks down the same trees, and are parents in addition to it. headroom:
    for each peer as a child, the factor by which its planned rate may be exceeded before a link on the path is full;
    missing values are unknown.
    """

    revision: int
    peers: list[str]
    shares: list[int]
    positions: list[TreePosition]
    co_publishers: list[int] = []
    headroom: list[float] = []

    @property
    def rate(self) -> float:
        """Planned Mbit/s of all trees together."""
        return sum(position.rate for position in self.positions)

    def rates_from(self) -> dict[str, float]:
        """Returns the planned Mbit/s from each parent."""
        return self._rates(lambda position: [position.parent] if position.parent >= 0 else [])

    def rates_to(self) -> dict[str, float]:
        """Returns the planned Mbit/s to each child."""
        return self._rates(lambda position: position.children)

    def limits_to(self) -> dict[str, float]:
        """Returns the Mbit/s that may be sent to each child before a link on the path is full, where known."""
        headroom = dict(zip(self.peers, self.headroom, strict=False))
        return {name: rate * headroom[name] for name, rate in self.rates_to().items() if name in headroom}

    def check(self) -> None:
        """Raise `FormatError` for a part that no planner makes."""
        fine = 0 < len(self.shares) <= MAX_TREES and len(self.positions) == len(self.shares) and min(self.shares) > 0
        known = range(len(self.peers))
        fine = fine and all(peer in known for peer in self.co_publishers)
        fine = (
            fine
            and len(self.headroom) <= len(self.peers)
            and all(0 < headroom <= MAX_HEADROOM for headroom in self.headroom)
        )
        for position in self.positions:
            fine = (
                fine and len(position.children) <= MAX_CHILDREN and all(child in known for child in position.children)
            )
            fine = fine and (position.parent == -1 or position.parent in known) and 0 <= position.rate <= MAX_RATE
        if not fine:
            raise FormatError("a plan whose trees do not fit together")

    def _rates(self, ends: Callable[[TreePosition], list[int]]) -> dict[str, float]:
        found: dict[str, float] = {}
        for position in self.positions:
            for end in ends(position):
                found[self.peers[end]] = found.get(self.peers[end], 0.0) + position.rate
        return found


def unplanned(revision: int) -> NodePlan:
    """Returns the part of a node that is in no tree of this revision: no parents, no children."""
    return NodePlan(revision, [], [1], [TreePosition(-1, [], 0, 0.0)])
