"""Which way leads to a version: the fewest bytes over anchors and deltas, resolved whole before anything is touched."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from p2psync.membership.records import Announcement

#: A version as a place in the graph: its number and digest (hex). Two forks of one number are two places.
Place: TypeAlias = tuple[int, str]


def place_after(announcement: Announcement) -> Place:
    """Where an announced manifest leads."""
    return (announcement.version, announcement.digest)


def head(lineage: Iterable[Announcement]) -> Announcement | None:
    """The announcement of the newest version: highest epoch, then version; the cheapest manifest that leads there."""
    return max(lineage, key=lambda a: (a.epoch, a.version, -a.payload_bytes), default=None)


def reachable(lineage: Iterable[Announcement], start: Place | None) -> Announcement | None:
    """The announcement of the newest version that some path leads to, from an anchor or from `start`; None: of none."""
    reached = set() if start is None else {start}
    ends = []
    for announcement in sorted(lineage, key=lambda a: a.version):  # a base comes before what it leads to
        if announcement.base is None or (announcement.base, announcement.base_digest) in reached:
            reached.add(place_after(announcement))
            ends.append(announcement)
    return head(ends)


def is_squash(announcement: Announcement) -> bool:
    """Whether it goes over several versions at once: a trainer publishes a delta from each version to the next."""
    return announcement.base is not None and announcement.version - announcement.base > 1


def missing_bytes(path: Iterable[Announcement], held: Mapping[str, int]) -> int:
    """Payload bytes of a path that are not at hand. held: bytes at hand, by the manifest's id (hex)."""
    return sum(max(0, a.payload_bytes - held.get(a.id, 0)) for a in path)


def resolve(
    lineage: Sequence[Announcement], start: Place | None, target: Place, held: Mapping[str, int] = MappingProxyType({})
) -> list[Announcement] | None:
    """The path of fewest `missing_bytes` from `start` (None: nothing at hand) to `target`, or None if there is none.

    Every path is either deltas only, from `start`, or one anchor and then deltas. Dijkstra's algorithm over the
    announced manifests, squashes among them; ties go to fewer manifests. An empty path: `start` is the target.
    """
    if start == target:
        return []
    leaving: dict[Place, list[Announcement]] = {}
    for announcement in lineage:
        if announcement.base is not None:
            leaving.setdefault((announcement.base, announcement.base_digest), []).append(announcement)
    order = 0
    queue: list[tuple[int, int, int, Place, tuple[Announcement, ...]]] = []
    if start is not None:
        queue.append((0, 0, order, start, ()))
    for announcement in lineage:
        if announcement.base is None:
            order += 1
            queue.append((missing_bytes([announcement], held), 1, order, place_after(announcement), (announcement,)))
    heapq.heapify(queue)
    done: set[Place] = set()
    while queue:
        cost, steps, _, place, path = heapq.heappop(queue)
        if place == target:
            return list(path)
        if place in done:
            continue
        done.add(place)
        for step in leaving.get(place, ()):
            order += 1
            cost_after = cost + missing_bytes([step], held)
            heapq.heappush(queue, (cost_after, steps + 1, order, place_after(step), (*path, step)))
    return None
