"""Deadlines by name: which has passed, and when the next one does, in O(log n) amortised.

Theory of operation. A heap holds one entry per name, at or before the name's deadline. Moving a deadline later, the
common case (a renewal), only updates a table: the heap entry is corrected when it reaches the top. A discarded name
leaves its entry in the heap until it reaches the top, or until such entries outnumber the live ones and the heap is
rebuilt.
"""

from __future__ import annotations

import heapq

#: Stale heap entries that are tolerated before the heap is rebuilt; more cost memory, fewer cost rebuilding.
_SLACK = 64


class Deadlines:
    """A set of names, each with a deadline (seconds, on any clock that does not go back)."""

    def __init__(self) -> None:
        self._when: dict[str, float] = {}
        self._queued: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._when)

    def __contains__(self, name: str) -> bool:
        return name in self._when

    def set(self, name: str, when: float) -> None:
        """Give `name` the deadline `when`, earlier or later than the one it had."""
        self._when[name] = when
        queued = self._queued.get(name)
        if queued is None or when < queued:
            self._push(name, when)

    def get(self, name: str) -> float | None:
        """The deadline of `name`, None if it has none."""
        return self._when.get(name)

    def discard(self, name: str) -> None:
        """Forget `name`, if it is known."""
        self._when.pop(name, None)

    def next(self) -> float | None:
        """The earliest deadline, None if there is none."""
        while self._heap:
            when, name = self._heap[0]
            if self._queued.get(name) != when:
                heapq.heappop(self._heap)
                continue
            wanted = self._when.get(name)
            if wanted == when:
                return when
            heapq.heappop(self._heap)
            del self._queued[name]
            if wanted is not None:
                self._push(name, wanted)
        return None

    def pop_due(self, now: float) -> list[str]:
        """Take out and return the names whose deadline is at or before `now`, earliest first."""
        due = []
        while (when := self.next()) is not None and when <= now:
            name = self._heap[0][1]
            del self._when[name]
            due.append(name)
        return due

    def first(self) -> str | None:
        """The name with the earliest deadline, None if there is none."""
        return self._heap[0][1] if self.next() is not None else None

    def _push(self, name: str, when: float) -> None:
        self._queued[name] = when
        heapq.heappush(self._heap, (when, name))
        if len(self._heap) > 2 * len(self._when) + _SLACK:
            self._heap = [(when, name) for name, when in self._when.items()]
            heapq.heapify(self._heap)
            self._queued = dict(self._when)
