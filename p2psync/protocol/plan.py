"""What a node is told of the plan: its places in weighted spanning trees, and which chunk goes down which tree.

A plan is a few spanning trees over the nodes, rooted at the trainer, each with a share of the chunks. In each tree a
node has one parent, from whom it should get that tree's chunks first, and children whom it should serve. Everyone knows
the shares, so everyone assigns chunks to trees alike, for any number of chunks, without asking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2psync.errors import FormatError

#: Trees of any plan, and children of a node in one tree: what a receiver of a plan accepts.
MAX_TREES = 256
MAX_CHILDREN = 1024
#: Mbit/s of a tree, and how many times as much a way may have.
MAX_RATE = 1e9
MAX_HEADROOM = 1e6


class TreePosition(msgspec.Struct, frozen=True, array_like=True):
    """A node's place in one tree, as indices into `NodePlan.peers`. parent: -1 at the trainer. depth: hops from it.

    rate: Mbit/s that the plan foresees for this tree.
    """

    parent: int
    children: list[int]
    depth: int
    rate: float


class NodePlan(msgspec.Struct, frozen=True, array_like=True):
    """A node's own rows of the plan. revision: rises with each plan. peers: the nodes that it deals with.

    shares: of each tree, in parts of their sum. places: of this node, in the same order. roots: of a node that has the
    trainer for a parent, the nodes that put other chunks into the same trees, and are parents beside it. spare: of each
    peer as a child, how many times the rates foreseen may be sent to it before something on the way is full; none: it
    is not known.
    """

    revision: int
    peers: list[str]
    shares: list[int]
    positions: list[TreePosition]
    co_publishers: list[int] = []
    headroom: list[float] = []

    def fractions_from(self) -> dict[str, float]:
        """The fraction of all chunks that each parent should send this node first."""
        return self._fractions(lambda place: [place.parent] if place.parent >= 0 else [])

    def fractions_to(self) -> dict[str, float]:
        """The fraction of all chunks that this node should send each child."""
        return self._fractions(lambda place: place.children)

    @property
    def rate(self) -> float:
        """Mbit/s that the plan foresees for all trees together."""
        return sum(place.rate for place in self.positions)

    def rates_from(self) -> dict[str, float]:
        """Mbit/s that the plan foresees from each parent."""
        return self._rates(lambda place: [place.parent] if place.parent >= 0 else [])

    def rates_to(self) -> dict[str, float]:
        """Mbit/s that the plan foresees to each child."""
        return self._rates(lambda place: place.children)

    def limits_to(self) -> dict[str, float]:
        """Mbit/s that may be sent to each child before something on the way is full, as far as the plan tells."""
        headroom = dict(zip(self.peers, self.headroom, strict=False))
        return {name: rate * headroom[name] for name, rate in self.rates_to().items() if name in headroom}

    def check(self) -> None:
        """Raise `FormatError` for what no planner makes."""
        fine = 0 < len(self.shares) <= MAX_TREES and len(self.positions) == len(self.shares) and min(self.shares) > 0
        known = range(len(self.peers))
        fine = fine and all(peer in known for peer in self.co_publishers)
        fine = (
            fine
            and len(self.headroom) <= len(self.peers)
            and all(0 < headroom <= MAX_HEADROOM for headroom in self.headroom)
        )
        for place in self.positions:
            fine = fine and len(place.children) <= MAX_CHILDREN and all(child in known for child in place.children)
            fine = fine and (place.parent == -1 or place.parent in known) and 0 <= place.rate <= MAX_RATE
        if not fine:
            raise FormatError("a plan whose trees do not fit together")

    def _rates(self, ends: Callable[[TreePosition], list[int]]) -> dict[str, float]:
        found: dict[str, float] = {}
        for place in self.positions:
            for end in ends(place):
                found[self.peers[end]] = found.get(self.peers[end], 0.0) + place.rate
        return found

    def _fractions(self, ends: Callable[[TreePosition], list[int]]) -> dict[str, float]:
        found: dict[str, float] = {}
        for share, place in zip(self.shares, self.positions, strict=True):
            for end in ends(place):
                found[self.peers[end]] = found.get(self.peers[end], 0.0) + share / sum(self.shares)
        return found


def outside(revision: int) -> NodePlan:
    """What a node is told that has no place in the plan of this revision: nobody feeds it, and it feeds nobody."""
    return NodePlan(revision, [], [1], [TreePosition(-1, [], 0, 0.0)])


def tree_of_chunks(shares: Sequence[int], chunks: int) -> NDArray[np.uint16]:
    """The tree of each chunk (uint16): every run of chunks from the first on is spread by the shares.

    The k-th chunk of a tree is due at (k + 1/2) / share; chunks go to trees in the order in which they are due (as in
    weighted fair queueing). With equal shares each tree has its part to within one chunk; where there are fewer chunks
    than trees, the lightest trees go without. More chunks never change the tree of an earlier one.
    """
    total = sum(shares)
    trees, due = [], []
    for tree, share in enumerate(shares):
        count = (chunks + len(shares)) * share // total + 2
        trees.append(np.full(count, tree, np.uint16))
        due.append((np.arange(count) + 0.5) * (total / share))
    order = np.lexsort((np.concatenate(trees), np.concatenate(due)))
    return np.concatenate(trees)[order][:chunks]
