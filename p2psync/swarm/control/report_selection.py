"""Chooses which paths a node tells the hub of, where it knows more than one report holds.

A plan gains most from paths that it uses already, then from measured ones into other regions, then from other measured
ones, those used of late first. Peers that no connection could be opened to fill what is left: those that failed last
are told at once, and the others take turns, so that the hub hears of every one in time. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice

from p2psync.membership.checks import MAX_PATHS
from p2psync.swarm.control.path_estimates import PathEstimates

#: Paths that all members together tell of, about: a hub holds them all, and each plan is made from them. And as many as
#: a node tells of in the largest swarm: its own part of the plan, and its peers in other regions.
PATHS_IN_ALL, LEAST_PATHS = 1 << 16, 32
#: Seconds after which a quarter of the unreachable peers that are told of gives way to others.
TURN_EVERY = 60.0
#: Seconds within which the last uses of two paths count as equal, so that what is told does not change all the time.
SAME_TIME = 60.0


def most_paths(members: int) -> int:
    """How many paths each of so many members tells of."""
    return max(LEAST_PATHS, min(MAX_PATHS, PATHS_IN_ALL // max(1, members)))


class UnreachablePeers:
    """Peers that no connection could be opened to, and of which nothing else is known: the last ones are told of."""

    def __init__(self) -> None:
        self._peers: dict[str, None] = {}
        self._turned_at = float("-inf")

    def __len__(self) -> int:
        return len(self._peers)

    def __contains__(self, peer: str) -> bool:
        return peer in self._peers

    def add(self, peer: str) -> None:
        """A connection could not be opened, once more perhaps."""
        self._peers.setdefault(peer)

    def discard(self, peer: str) -> bool:
        """A connection was opened after all, or the peer is gone. Whether it was among them."""
        return peer in self._peers and self._peers.pop(peer) is None

    def keep(self, known: Collection[str]) -> None:
        """Forget all others than these."""
        self._peers = {peer: None for peer in self._peers if peer in known}

    def matter(self, peers: Iterable[str]) -> None:
        """These are told of first from now on, as far as they are among them: the plan counts on them."""
        for peer in sorted(peers):
            if self.discard(peer):
                self._peers[peer] = None

    def turn(self, told: int, now: float) -> None:
        """Where `told` of them are told of, let a quarter of these give way to others now and then."""
        if not 0 < told < len(self._peers) or now - self._turned_at < TURN_EVERY:
            return
        self._turned_at = now
        for peer in list(islice(self._peers, -(-told // 4))):
            del self._peers[peer]
            self._peers[peer] = None

    def last(self, count: int) -> list[str]:
        """So many, the last ones first."""
        return list(islice(reversed(self._peers), max(0, count)))


def most_useful(
    estimates: Mapping[str, PathEstimates], most: int, *, planned: Collection[str], elsewhere: Collection[str]
) -> list[str]:
    """The `most` peers whose paths help a plan most. planned: peers of this node's part of it. elsewhere: peers in
    other regions."""
    if len(estimates) <= most:
        return list(estimates)
    return heapq.nsmallest(most, estimates, key=_rank(estimates, planned, elsewhere))


def _rank(
    estimates: Mapping[str, PathEstimates], planned: Collection[str], elsewhere: Collection[str]
) -> Callable[[str], tuple[bool, bool, bool, float, str]]:
    def rank(peer: str) -> tuple[bool, bool, bool, float, str]:
        path = estimates[peer]
        measured = path.sent.value > 0 or path.received.value > 0
        return peer not in planned, not measured, peer not in elsewhere, -(path.used_at // SAME_TIME), peer

    return rank
