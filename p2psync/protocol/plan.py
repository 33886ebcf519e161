"""A node's part of the plan: its places in weighted spanning trees, and the assignment of chunks to trees.

A plan is a few spanning trees over the nodes, rooted at the publisher, each with a share of the chunks. In each tree a
node has one parent, from which it gets that tree's chunks first, and children, to which it forwards them. Every node
knows the shares, so all nodes assign chunks to trees alike, for any number of chunks, without messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2psync.errors import FormatError

#: Trees of a plan, and children of a node in one tree, that a receiver accepts.
MAX_TREES = 256
MAX_CHILDREN = 1024
#: Mbit/s of a tree, and the headroom of a path as a multiple of its planned rate, that a receiver accepts.
MAX_RATE = 1e9
MAX_HEADROOM = 1e6


class TreePlace(msgspec.Struct, frozen=True, array_like=True):
    """A node's place in one tree; parent and children are indices into `NodePlan.peers`.

    parent: -1 at the publisher. depth: hops from the publisher. rate: planned Mbit/s of this tree.
    """

    parent: int
    children: list[int]
    depth: int
    rate: float


class NodePlan(msgspec.Struct, frozen=True, array_like=True):
    """One node's rows of the plan. revision: rises with each plan. peers: the node's parents and children.

    shares: of each tree, in parts of their sum. places: this node's, one for each tree. co_publishers: for a child of
    the publisher, the peers that send other chunks along the same trees and are parents as well. headroom: for each
    peer as a child, the multiple of its planned rate at which a link on its path is full; shorter than `peers`, or
    empty, where it is not known.
    """

    revision: int
    peers: list[str]
    shares: list[int]
    places: list[TreePlace]
    co_publishers: list[int] = []
    headroom: list[float] = []

    def fractions_from(self) -> dict[str, float]:
        """The fraction of all chunks that this node gets first from each parent."""
        return self._fractions(lambda place: [place.parent] if place.parent >= 0 else [])

    def fractions_to(self) -> dict[str, float]:
        """The fraction of all chunks that this node forwards to each child."""
        return self._fractions(lambda place: place.children)

    @property
    def rate(self) -> float:
        """Planned Mbit/s of all trees together."""
        return sum(place.rate for place in self.places)

    def rates_from(self) -> dict[str, float]:
        """Planned Mbit/s from each parent."""
        return self._rates(lambda place: [place.parent] if place.parent >= 0 else [])

    def rates_to(self) -> dict[str, float]:
        """Planned Mbit/s to each child."""
        return self._rates(lambda place: place.children)

    def limits_to(self) -> dict[str, float]:
        """Mbit/s to each child at which a link on its path is full, for the children whose headroom is known."""
        headroom = dict(zip(self.peers, self.headroom, strict=False))
        return {name: rate * headroom[name] for name, rate in self.rates_to().items() if name in headroom}

    def check(self) -> None:
        """Raise `FormatError` for a plan that breaks a limit or whose indices are out of range."""
        fine = 0 < len(self.shares) <= MAX_TREES and len(self.places) == len(self.shares) and min(self.shares) > 0
        known = range(len(self.peers))
        fine = fine and all(peer in known for peer in self.co_publishers)
        fine = (
            fine
            and len(self.headroom) <= len(self.peers)
            and all(0 < headroom <= MAX_HEADROOM for headroom in self.headroom)
        )
        for place in self.places:
            fine = fine and len(place.children) <= MAX_CHILDREN and all(child in known for child in place.children)
            fine = fine and (place.parent == -1 or place.parent in known) and 0 <= place.rate <= MAX_RATE
        if not fine:
            raise FormatError("a plan whose trees are inconsistent")

    def _rates(self, ends: Callable[[TreePlace], list[int]]) -> dict[str, float]:
        found: dict[str, float] = {}
        for place in self.places:
            for end in ends(place):
                found[self.peers[end]] = found.get(self.peers[end], 0.0) + place.rate
        return found

    def _fractions(self, ends: Callable[[TreePlace], list[int]]) -> dict[str, float]:
        found: dict[str, float] = {}
        for share, place in zip(self.shares, self.places, strict=True):
            for end in ends(place):
                found[self.peers[end]] = found.get(self.peers[end], 0.0) + share / sum(self.shares)
        return found


def unplanned(revision: int) -> NodePlan:
    """The plan of a node that is in no tree of this revision: it has no parent and no children."""
    return NodePlan(revision, [], [1], [TreePlace(-1, [], 0, 0.0)])


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
