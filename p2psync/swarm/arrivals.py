"""When a chunk that was put into a tree should be with each receiver: as long after that as chunks of this tree take to
it. Pure.

The root sees when each receiver holds a chunk, and so learns how long each tree takes to each of them, queues at the
relays on the way included. What it has put in last is farthest back in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from p2psync.swarm.transfer import Bits

#: How much a new chunk counts for how long a tree takes to a receiver.
_NEW = 1 / 4
#: So many chunks that were put in last are looked for: comparing all of a large manifest each time would cost much,
#: and stragglers tell little.
_LAST = 1024


class Arrivals:
    """Of one manifest, at the root that puts it in."""

    def __init__(self, chunks: int) -> None:
        """chunks: of the manifest."""
        self._tree = np.full(chunks, -1, np.int32)
        self._since = np.zeros(chunks)
        self._last: deque[int] = deque(maxlen=_LAST)
        #: Of each receiver, what was seen with it.
        self._had: dict[str, Bits] = {}
        #: Of each receiver, seconds by tree; NaN where none was seen.
        self._lags: dict[str, NDArray[np.float64]] = {}
        self._trees = 0

    def planned(self, trees: int) -> None:
        """There are other trees now, so many; nothing is expected of what was put into the old ones."""
        self._tree[:] = -1
        self._lags.clear()
        self._trees = trees

    def put(self, index: int, tree: int, now: float) -> None:
        """A chunk goes down a tree."""
        self._tree[index], self._since[index] = tree, now
        self._last.append(index)

    def seen(self, holds: Mapping[str, Bits], now: float) -> None:
        """What the receivers hold, flags per chunk, by their names."""
        last = np.unique(np.array(self._last, np.intp))
        for name, theirs in holds.items():
            had = self._had.setdefault(name, np.zeros(len(self._tree), np.bool_))
            came = last[theirs[last] & ~had[last]]
            if not len(came):
                continue
            had[came] = True
            lags = self._lags.setdefault(name, np.full(self._trees, np.nan))
            for index in came[self._tree[came] >= 0].tolist():
                tree, took = int(self._tree[index]), now - self._since[index]
                lags[tree] = took if np.isnan(lags[tree]) else lags[tree] + _NEW * (took - lags[tree])

    def expected(self, name: str, chunks: NDArray[np.intp]) -> NDArray[np.float64]:
        """When these chunks should be with a receiver (seconds); minus infinity where that is not known."""
        lags = self._lags.get(name)
        times = np.full(len(chunks), -np.inf)
        if lags is not None:
            known = self._tree[chunks] >= 0
            times[known] = self._since[chunks[known]] + lags[self._tree[chunks[known]]]
            times[np.isnan(times)] = -np.inf
        return times
