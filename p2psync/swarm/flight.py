"""What is on its way in the trees: how far the root is ahead of those who receive, tree by tree.

The root sees the first hop of a tree only; a slow link further down shows in chunks that somebody does not hold yet.
Each tree has a window of them, sized by its planned rate. A chunk leaves it when all who receive hold it, or after a
while, so that a slow receiver cannot stop the others; one who lags by more than all windows is not waited for at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2psync.swarm.transfer import Bits

#: A window in seconds at the tree's rate.
WINDOW_SECONDS = 1.0
#: Seconds after which a chunk leaves its window in any case; how often windows are looked at.
FLIGHT_MOST, LOOK_EVERY = 10.0, 0.03
#: One who lacks so many times what the windows hold is not waited for.
LAGGING = 3.0
#: Of so many who receive, one is not waited for any longer than this (seconds): where there are hundreds, somebody's
#: parent has always just gone.
MANY, NEARLY_MOST = 16, 1.5
_FORMER = -1


class Flight:
    """Chunks on their way, of one manifest, in trees with windows (chunks)."""

    def __init__(self) -> None:
        self._windows: Sequence[int] = ()
        self._tree: dict[int, int] = {}
        self._since: dict[int, float] = {}
        self._count: list[int] = []
        self._looked = -1.0
        self._all: list[int] = []

    def planned(self, windows: Sequence[int]) -> None:
        """These are the trees now. What is on its way down others still counts in all."""
        self._windows = windows
        self._tree = dict.fromkeys(self._tree, _FORMER)
        self._count = [0] * len(windows)

    def add(self, index: int, tree: int, now: float) -> None:
        """A chunk goes down a tree."""
        self._drop([index] if index in self._tree else [])
        self._tree[index], self._since[index] = tree, now
        self._count[tree] += 1
        self._all.append(index)

    def full(self, tree: int) -> bool:
        """Whether a tree should take no more for now."""
        return self._count[tree] >= self._windows[tree] or len(self._tree) >= sum(self._windows)

    def is_due(self, now: float) -> bool:
        """Whether it is time to look again."""
        return bool(self._tree) and now - self._looked >= LOOK_EVERY

    def look(self, holds: Sequence[Bits], now: float) -> None:
        """What the receivers hold (flags per chunk, of each)."""
        if not self.is_due(now):
            return
        self._looked = now
        sent = np.unique(self._all)
        most = LAGGING * sum(self._windows)
        keeping_up = [theirs for theirs in holds if len(sent) - int(theirs[sent].sum()) <= most]
        flying = np.array(sorted(self._tree))
        holding = np.zeros(len(flying), np.int64)
        for theirs in keeping_up:
            holding += theirs[flying]
        done = holding >= max(1, len(keeping_up))
        nearly = holding >= max(1, len(keeping_up) - len(keeping_up) // MANY)
        age = now - np.array([self._since[index] for index in flying.tolist()])
        self._drop(flying[done | (nearly & (age > NEARLY_MOST)) | (age > FLIGHT_MOST)].tolist())

    def _drop(self, chunks: Sequence[int]) -> None:
        for index in chunks:
            tree = self._tree.pop(index)
            if tree != _FORMER:
                self._count[tree] -= 1
            del self._since[index]


def windows(rates: Sequence[float], chunk_bytes: int, least: int) -> list[int]:
    """Of trees with these rates (Mbit/s), in chunks: two at least, and `least` bytes at least in all."""
    part = least / len(rates)
    return [max(2, round(max(part, rate * 125_000 * WINDOW_SECONDS) / chunk_bytes)) for rate in rates]
