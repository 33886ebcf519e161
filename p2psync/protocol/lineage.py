"""Which way leads to a version: the fewest bytes over anchors and deltas, resolved whole before anything is touched."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from p2psync.membership.records import Announcement

#: A version as a place in the graph: its number and digest (hex). Two forks of one number are two places.
VersionKey: TypeAlias = tuple[int, str]


def target_key(announcement: Announcement) -> VersionKey:
    """Where an announced manifest leads."""
    return (announcement.version, announcement.digest)


def base_key(announcement: Announcement) -> VersionKey | None:
    """Where an announced manifest leads from; None: an anchor leads from nothing."""
    return None if announcement.base is None else (announcement.base, announcement.base_digest)


def newest_announcement(lineage: Iterable[Announcement]) -> Announcement | None:
    """The announcement of the newest version: highest epoch, then version; the cheapest manifest that leads there."""
    return max(lineage, key=lambda a: (a.epoch, a.version, -a.payload_bytes), default=None)


def newest_reachable(lineage: Iterable[Announcement], start: VersionKey | None) -> Announcement | None:
    """The announcement of the newest version that some path leads to, from an anchor or from `start`; None: of none."""
    reached = set() if start is None else {start}
    ends = []
    for announcement in sorted(lineage, key=lambda a: a.version):  # a base comes before what it leads to
        if announcement.base is None or (announcement.base, announcement.base_digest) in reached:
            reached.add(target_key(announcement))
            ends.append(announcement)
    return newest_announcement(ends)


def is_squash(announcement: Announcement) -> bool:
    """Whether it goes over several versions at once: a trainer publishes a delta from each version to the next."""
    return announcement.base is not None and announcement.version - announcement.base > 1


def missing_bytes(path: Iterable[Announcement], held: Mapping[str, int]) -> int:
    """Payload bytes of a path that are not at hand. held: bytes at hand, by the manifest's id (hex)."""
    return sum(max(0, a.payload_bytes - held.get(a.id, 0)) for a in path)


def resolve(
    lineage: Sequence[Announcement],
    start: VersionKey | None,
    target: VersionKey,
    held: Mapping[str, int] = MappingProxyType({}),
) -> list[Announcement] | None:
    """The path of fewest `missing_bytes` from `start` (None: nothing at hand) to `target`, or None if there is none.

    Every path is either deltas only, from `start`, or one anchor and then deltas. Dijkstra's algorithm over the
    announced manifests, squashes among them; ties go to fewer manifests. An empty path: `start` is the target.
    """
    if start == target:
        return []
    leaving: dict[VersionKey | None, list[Announcement]] = {}
    for announcement in lineage:
        leaving.setdefault(base_key(announcement), []).append(announcement)
    # Who has something at hand may begin with an anchor as well: both are steps from nothing.
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
