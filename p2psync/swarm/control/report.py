"""Reports a node's estimates to the hub: the most useful paths, rounded, and only after real changes. Sans-I/O.

A plan gains most from paths that it uses already, then from measured ones into other regions, then from other measured
ones, those used of late first. Peers that this node failed to dial fill the rest of a report, those of the plan and the
latest failures first.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from itertools import islice

from p2psync.membership.checks import MAX_PATHS
from p2psync.membership.records import NodeStatistics, PathStatistics
from p2psync.swarm.control.config import ALL_PATHS, CHANGE, LOSS_CHANGE, MBIT, MIN_PATHS, RTT_CHANGE, SAME_USE_SECONDS
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.path_estimates import PathEstimates


def most_paths(members: int) -> int:
    """Returns how many paths each of so many members reports at most."""
    return max(MIN_PATHS, min(MAX_PATHS, ALL_PATHS // max(1, members)))


class Reporter:
    """Builds the reports of one node."""

    def __init__(self, estimates: NodeEstimates, max_paths: int = MAX_PATHS) -> None:
        self._estimates = estimates
        self.max_paths = max_paths
        self._planned: frozenset[str] = frozenset()
        #: Connected peers in other regions.
        self._remote: set[str] = set()
        #: Peers that this node failed to dial; the last ones are reported first.
        self._failed: dict[str, None] = {}
        self._reported = NodeStatistics()

    def set_members(self, names: Collection[str]) -> None:
        """Takes the names of all members; forgets the failures of others."""
        self.max_paths = most_paths(len(names))
        self._failed = {peer: None for peer in self._failed if peer in names}

    def set_planned(self, peers: Collection[str]) -> None:
        """Takes the peers of this node's part of the plan; failures among them are reported first from now on."""
        self._planned = frozenset(peers)
        self._report_failures_of_plan()

    def set_remote(self, peer: str, is_remote: bool) -> None:
        """Notes that a connected peer is in another region, or that it is gone."""
        (self._remote.add if is_remote else self._remote.discard)(peer)

    def failed(self, peer: str) -> None:
        """Notes a failed dial of a peer."""
        self._failed.setdefault(peer)
        self._report_failures_of_plan()

    def opened(self, peer: str) -> None:
        """Notes an open connection to a peer."""
        if peer in self._failed:
            del self._failed[peer]
            self._estimates.round_trip(peer, 0.0)

    def report(self, *, is_down_sure: bool = True) -> NodeStatistics:
        """Returns the statistics for the hub, to three digits; the same object while nothing really changes.

        is_down_sure: whether the best rate received shows the downlink; it may be all that anybody sent so far.
        """
        estimates = self._estimates
        peers = _most_useful(estimates.paths, self.max_paths, self._planned, self._remote)
        paths = [_path(peer, estimates.paths[peer], peer in self._failed) for peer in peers]
        failed = (peer for peer in reversed(self._failed) if peer not in estimates.paths)
        paths += [PathStatistics(peer, failed=True) for peer in islice(failed, self.max_paths - len(peers))]
        paths.sort(key=lambda path: path.peer)
        down = estimates.down.value if is_down_sure else 0.0
        now = NodeStatistics(_three_digits(estimates.up.value * MBIT), _three_digits(down * MBIT), paths)
        if _differ(self._reported, now):
            self._reported = now
        return self._reported

    def _report_failures_of_plan(self) -> None:
        for peer in sorted(self._planned & self._failed.keys()):
            del self._failed[peer]
            self._failed[peer] = None


def _most_useful(
    paths: Mapping[str, PathEstimates], count: int, planned: Collection[str], remote: Collection[str]
) -> list[str]:
    """Returns the peers of the most useful paths: in the plan, then measured, then of other regions, then used late."""

    def rank(peer: str) -> tuple[bool, bool, bool, float, str]:
        path = paths[peer]
        is_measured = path.sent.value > 0 or path.received.value > 0
        return peer not in planned, not is_measured, peer not in remote, -(path.used_at // SAME_USE_SECONDS), peer

    return heapq.nsmallest(count, paths, key=rank) if len(paths) > count else list(paths)


def _path(peer: str, path: PathEstimates, failed: bool) -> PathStatistics:
    return PathStatistics(
        peer,
        rtt=_three_digits(path.rtt),
        sent=_three_digits(path.sent.value * MBIT),
        received=_three_digits(path.received.value * MBIT),
        loss=_three_digits(path.loss),
        failed=failed,
        degraded_to=_three_digits(path.degraded_to),
    )


def _three_digits(value: float) -> float:
    return float(f"{value:.2e}")


def _differ(old: NodeStatistics, new: NodeStatistics) -> bool:
    if len(old.paths) != len(new.paths) or _moved(old.up, new.up) or _moved(old.down, new.down):
        return True
    return any(_paths_differ(a, b) for a, b in zip(old.paths, new.paths, strict=True))


def _paths_differ(old: PathStatistics, new: PathStatistics) -> bool:
    if (old.peer, old.failed, old.degraded_to) != (new.peer, new.failed, new.degraded_to):
        return True
    rates = _moved(old.sent, new.sent) or _moved(old.received, new.received)
    return rates or _moved(old.rtt, new.rtt, RTT_CHANGE) or _moved(old.loss, new.loss, LOSS_CHANGE)


def _moved(old: float, new: float, least: float = 0.0) -> bool:
    """Whether a figure differs by more than noise. least: a difference that never matters."""
    return abs(new - old) > max(least, CHANGE * old)
