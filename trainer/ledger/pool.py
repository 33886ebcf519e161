"""The items that no node has claimed, by the version they were put in for; those put in first come out first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from p2psync.membership.work import WorkItem


class ItemPool:
    """A set of numbered items; each operation is O(log n)."""

    def __init__(self) -> None:
        self._items: dict[int, WorkItem] = {}
        self._heaps: dict[int, list[int]] = {}
        self._sizes: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[WorkItem]:
        """Iterates over the items in order of their numbers."""
        return iter([self._items[number] for number in sorted(self._items)])

    def versions(self) -> list[tuple[int, int]]:
        """Returns (version, number of its items), ascending."""
        return sorted(self._sizes.items())

    def add(self, number: int, item: WorkItem) -> None:
        """Add an item, for the first time or again."""
        self._items[number] = item
        heapq.heappush(self._heaps.setdefault(item.version, []), number)
        self._sizes[item.version] = self._sizes.get(item.version, 0) + 1

    def in_order(self, version: int, count: int) -> list[tuple[int, WorkItem]]:
        """Returns the first `count` items of a version with their numbers, or all if there are fewer."""
        heap = self._heaps.get(version, [])
        found: list[int] = []
        while heap and len(found) < count:
            number = heapq.heappop(heap)
            # An item that was taken out and put back may be in the heap twice.
            if number in self._items and number not in found[-1:]:
                found.append(number)
        for number in found:
            heapq.heappush(heap, number)
        return [(number, self._items[number]) for number in found]

    def remove(self, number: int) -> None:
        """Take an item out."""
        version = self._items.pop(number).version
        self._sizes[version] -= 1
        if not self._sizes[version]:
            del self._sizes[version], self._heaps[version]
        elif self._heaps[version][0] == number:
            heapq.heappop(self._heaps[version])
