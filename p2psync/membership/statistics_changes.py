"""Decides which changes of a node's network statistics are worth an immediate report, and another plan. Pure."""

from __future__ import annotations

from collections.abc import Collection

from p2psync.membership.records import NodeStatistics, PathStatistics

#: Rates count as changed when they differ by more than this factor and this many Mbit/s.
CHANGE_FACTOR = 1.2
CHANGE_MIN_MBITS = 0.1


def changed_substantially(
    before: NodeStatistics | None, after: NodeStatistics, planned: Collection[str] | None = None
) -> bool:
    """Returns whether a capacity or path changed by over a fifth, or a path failed, recovered or got its first RTT.

    A path that is missing from `after` is no change: a node reports a bounded number of paths. before: None: nothing
    was reported yet. planned: peers in this node's part of the plan; the failure of a path to any other peer changes
    nothing. None: every peer counts.
    """
    before = before if before is not None else NodeStatistics()
    if _apart(before.up, after.up) or _apart(before.down, after.down):
        return True
    known = {path.peer: path for path in before.paths}
    return any(
        _path_changed(known.get(path.peer) or PathStatistics(path.peer, failed=_fails_unplanned(path, planned)), path)
        for path in after.paths
    )


def has_degraded(before: NodeStatistics | None, after: NodeStatistics, planned: Collection[str] | None = None) -> bool:
    """Returns whether some path newly failed, or newly carries far less than it did.

    planned: see `changed_substantially`."""
    known = {} if before is None else {path.peer: path for path in before.paths}
    for path in after.paths:
        last = known.get(path.peer) or PathStatistics(path.peer, failed=_fails_unplanned(path, planned))
        if path.failed > last.failed or 0 < CHANGE_FACTOR * path.degraded_to < (last.degraded_to or 1.0):
            return True
    return False


def _fails_unplanned(path: PathStatistics, planned: Collection[str] | None) -> bool:
    """Returns whether this path failed and the plan does not use it."""
    return path.failed and planned is not None and path.peer not in planned


def _path_changed(before: PathStatistics, after: PathStatistics) -> bool:
    if before.failed != after.failed or (after.rtt > 0 and before.rtt <= 0):
        return True
    return _apart(before.sent, after.sent) or _apart(before.received, after.received)


def _apart(one: float, other: float) -> bool:
    return max(one, other) > CHANGE_FACTOR * min(one, other) + CHANGE_MIN_MBITS
