"""Which tree the publisher gives the next chunk to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

#: How much a tree may be ahead of its share, as a part of it: by shares, and by completion.
AHEAD_BY_SHARE, AHEAD_BY_COMPLETION = 0.2, 2.0
#: A tree's throughput counts over so many seconds, or so many latencies; the plan's rate weighs as much as so many
#: chunks.
WINDOW_SECONDS, WINDOW_LATENCIES, PRIOR_CHUNKS = 2.0, 4.0, 8.0


class TreeChoice:
    """Shares: of each tree. rates: chunks/s that the plan has each tree carry. latencies: seconds until everybody has a
    chunk of an idle tree."""

    def __init__(
        self,
        shares: Sequence[float],
        rates: Sequence[float],
        latencies: Sequence[float],
        now: float,
        *,
        by_completion: bool,
    ) -> None:
        self._shares, self._rates, self._latencies = shares, rates, latencies
        self._by_completion = by_completion
        self._began = now
        self._sent = [0] * len(shares)
        self._under_way: list[set[int]] = [set() for _ in shares]
        self._completions: list[deque[float]] = [deque() for _ in shares]
        self.tree_of: dict[int, int] = {}

    def choose(self, with_room: Sequence[int], left: int, now: float) -> int | None:
        """Returns the tree for the next chunk of `left`, of those whose children have room; None: wait."""
        ahead = AHEAD_BY_COMPLETION if self._by_completion else AHEAD_BY_SHARE
        most = (1 + ahead) * (sum(self._sent) + 1)
        fair = [tree for tree in with_room if self._sent[tree] < most * self._shares[tree] + 1]
        if not self._by_completion:
            return min(fair, key=lambda tree: (self._sent[tree] + 0.5) / self._shares[tree], default=None)
        waits = [self._seconds_to_complete(tree, now) for tree in range(len(self._shares))]
        # A tree that would complete a chunk after all others are done gets none.
        latest = min(waits) + left / sum(self._rates)
        return min((tree for tree in fair if waits[tree] <= latest), key=waits.__getitem__, default=None)

    def sent(self, chunk: int, tree: int) -> None:
        """A chunk goes down a tree."""
        self.tree_of[chunk] = tree
        self._sent[tree] += 1
        self._under_way[tree].add(chunk)

    def completed(self, chunk: int, now: float) -> None:
        """Everybody holds a chunk."""
        tree = self.tree_of[chunk]
        self._under_way[tree].discard(chunk)
        self._completions[tree].append(now)

    def _seconds_to_complete(self, tree: int, now: float) -> float:
        """Little's law: what is under way, over the throughput; no less than the latency of an idle tree."""
        latency, came = self._latencies[tree], self._completions[tree]
        window = max(WINDOW_SECONDS, WINDOW_LATENCIES * latency)
        while came and came[0] < now - window:
            came.popleft()
        span = max(0.0, min(window, now - self._began - latency))
        throughput = (len(came) + PRIOR_CHUNKS) / (span + PRIOR_CHUNKS / self._rates[tree])
        return max(latency, (len(self._under_way[tree]) + 1) / throughput)
