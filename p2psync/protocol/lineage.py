"""The graph of announced versions, and the path of fewest bytes through its anchors and deltas."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from p2psync.membership.records import Announcement

#: A version as a node of the graph: its number and digest (hex). Two forks of one number are two nodes.
VersionKey: TypeAlias = tuple[int, str]


def target_key(announcement: Announcement) -> VersionKey:
    """The version that an announced manifest leads to."""
    return (announcement.version, announcement.digest)


def base_key(announcement: Announcement) -> VersionKey | None:
    """The version that an announced delta starts from; None for an anchor."""
    return None if announcement.base is None else (announcement.base, announcement.base_digest)


def newest_announcement(lineage: Iterable[Announcement]) -> Announcement | None:
    """The announcement of the newest version (highest epoch, then version) with the smallest payload; None if empty."""
    return max(lineage, key=lambda a: (a.epoch, a.version, -a.payload_bytes), default=None)


def newest_reachable(lineage: Iterable[Announcement], start: VersionKey | None) -> Announcement | None:
    """The announcement of the newest version that a path from an anchor or from `start` reaches; None if none does."""
    reached = set() if start is None else {start}
    ends = []
    for announcement in sorted(lineage, key=lambda a: a.version):  # a base comes before what it leads to
        if announcement.base is None or (announcement.base, announcement.base_digest) in reached:
            reached.add(target_key(announcement))
            ends.append(announcement)
    return newest_announcement(ends)


def is_squash(announcement: Announcement) -> bool:
    """Returns whether a delta covers more than one version step."""
    return announcement.base is not None and announcement.version - announcement.base > 1


def missing_bytes(path: Iterable[Announcement], held: Mapping[str, int]) -> int:
    """Payload bytes of a path that are still to be fetched. held: bytes held already, by manifest id (hex)."""
    return sum(max(0, a.payload_bytes - held.get(a.id, 0)) for a in path)


def resolve(
    lineage: Sequence[Announcement],
    start: VersionKey | None,
    target: VersionKey,
    held: Mapping[str, int] = MappingProxyType({}),
) -> list[Announcement] | None:
    """The path of fewest `missing_bytes` from `start` (None: no weights yet) to `target`, or None if there is none.

    Every path is either deltas only, from `start`, or one anchor and then deltas. Dijkstra's algorithm over the
    announced manifests, squashes among them; ties go to fewer manifests. The path is empty if `start` is the target.
    """
    if start == target:
        return []
    leaving: dict[VersionKey | None, list[Announcement]] = {}
    for announcement in lineage:
        leaving.setdefault(base_key(announcement), []).append(announcement)
    # A node with weights may start with an anchor as well, so both starts are queued.
    order = itertools.count()
    queue: list[tuple[int, int, int, VersionKey | None, Announcement | None]] = [(0, 0, next(order), None, None)]
    if start is not None:
        queue.append((0, 0, next(order), start, None))
    came_by: dict[VersionKey | None, Announcement | None] = {}
    while queue:
        cost, steps, _, place, step = heapq.heappop(queue)
        if place in came_by:
            continue
        came_by[place] = step
        if place == target:
            return _path(came_by, target)
        for onward in leaving.get(place, ()):
            after = target_key(onward)
            if after not in came_by:
                heapq.heappush(queue, (cost + missing_bytes([onward], held), steps + 1, next(order), after, onward))
    return None


def _path(came_by: Mapping[VersionKey | None, Announcement | None], target: VersionKey) -> list[Announcement]:
    path = []
    step = came_by[target]
    while step is not None:
        path.append(step)
        step = came_by[base_key(step)]
    return path[::-1]
