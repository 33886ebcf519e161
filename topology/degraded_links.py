"""Finds links that became slower, and lowers older figures of other paths over them.

A node notices when a path that it uses degrades, and reports the share that is left. Other pairs of the same two
regions share the link, but idle paths notice nothing: their figures are out of date. Once half of the planned rate
between two regions goes over degraded paths, the figures of all other pairs there are lowered by the same share, until
they change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from p2psync.topology.measured import PathFigures
from p2psync.topology.plan import Plan

_Pair = tuple[str, str]
#: A link counts as degraded once paths with this share of its planned rate have degraded.
DEGRADED_MIN_SHARE = 0.5


class _StaleFigure(msgspec.Struct, frozen=True):
    """A figure from before a degradation, and the share of it that is left."""

    rate: float | None
    seen: float | None
    left: float


class DegradedLinks:
    """The degraded links that one hub knows. All rates are in Mbit/s."""

    def __init__(self) -> None:
        self._planned: dict[_Pair, float] = {}
        self._reported: dict[_Pair, float] = {}
        self._old: dict[_Pair, _StaleFigure] = {}

    def planned(self, plan: Plan) -> None:
        """Records the rate that the plan sends from node to node."""
        self._planned = {}
        for parents, share in zip(plan.parents.tolist(), plan.shares.tolist(), strict=True):
            for child, parent in enumerate(parents):
                if parent >= 0:
                    pair = (plan.names[parent], plan.names[child])
                    self._planned[pair] = self._planned.get(pair, 0.0) + share * plan.rate

    def apply(
        self, paths: Sequence[PathFigures], degraded_to: Mapping[_Pair, float], region: Mapping[str, str]
    ) -> list[PathFigures]:
        """Returns the paths with stale figures lowered. degraded_to: the share that is left, for degraded pairs."""
        for between, left in self._newly_degraded(degraded_to, region).items():
            for path in paths:
                pair = (path.source, path.target)
                if pair not in degraded_to and (region.get(pair[0]), region.get(pair[1])) == between:
                    old = self._current(path)
                    self._old[pair] = _StaleFigure(path.rate, path.seen, left * (old.left if old is not None else 1.0))
        self._reported = dict(degraded_to)
        self._old = {(p.source, p.target): old for p in paths if (old := self._current(p)) is not None}
        return [self._lowered(path) for path in paths]

    def _newly_degraded(self, degraded_to: Mapping[_Pair, float], region: Mapping[str, str]) -> dict[_Pair, float]:
        """Returns the pairs of regions that have just become degraded links, and the share that is left of each."""
        carried: dict[_Pair, float] = {}
        lost: dict[_Pair, float] = {}
        recent: dict[_Pair, list[tuple[float, float]]] = {}
        for pair, rate in self._planned.items():
            if pair[0] in region and pair[1] in region and region[pair[0]] != region[pair[1]]:
                between = (region[pair[0]], region[pair[1]])
                carried[between] = carried.get(between, 0.0) + rate
                lost[between] = lost.get(between, 0.0) + rate * (pair in degraded_to)
                more = degraded_to.get(pair, 1.0) / self._reported.get(pair, 1.0)
                if more < 1 and rate > 0:
                    recent.setdefault(between, []).append((rate, more))
        # Users of a full link get unequal shares, so the link's share is that of all of them together.
        left = {between: sum(r * more for r, more in of) / sum(r for r, _ in of) for between, of in recent.items()}
        return {
            between: part for between, part in left.items() if lost[between] >= DEGRADED_MIN_SHARE * carried[between]
        }

    def _current(self, path: PathFigures) -> _StaleFigure | None:
        """Returns the stale figure of a path that has not been measured again since its link degraded."""
        old = self._old.get((path.source, path.target))
        return old if old is not None and (old.rate, old.seen) == (path.rate, path.seen) else None

    def _lowered(self, path: PathFigures) -> PathFigures:
        old = self._current(path)
        if old is None:
            return path
        rate, seen = (None if value is None else value * old.left for value in (path.rate, path.seen))
        return msgspec.structs.replace(path, rate=rate, seen=seen)
