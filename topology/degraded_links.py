"""Links that became slower: which of the figures known of them are older than that.

A node notices that a way which it uses has changed, and says what part is left. Other pairs of the same two regions
share the link, but those that are not in use do not notice: their figures are of before. So once half of what the plan
sends between two regions goes ways that fell, the figures of all other pairs there are taken for as much less, until
they change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from p2psync.topology.measured import PathFigures
from p2psync.topology.plan import Plan

_Pair = tuple[str, str]
#: A link has changed once ways of so much of what is planned for it have.
DEGRADED_MIN_SHARE = 0.5


class _StaleFigure(msgspec.Struct, frozen=True):
    """A figure of before a fall, and what part of it is left."""

    rate: float | None
    seen: float | None
    left: float


class DegradedLinks:
    """What one hub knows of falls. All rates are in Mbit/s."""

    def __init__(self) -> None:
        self._planned: dict[_Pair, float] = {}
        self._reported: dict[_Pair, float] = {}
        self._old: dict[_Pair, _StaleFigure] = {}

    def planned(self, plan: Plan) -> None:
        """What the plan sends from node to node."""
        self._planned = {}
        for parents, share in zip(plan.parents.tolist(), plan.shares.tolist(), strict=True):
            for child, parent in enumerate(parents):
                if parent >= 0:
                    pair = (plan.names[parent], plan.names[child])
                    self._planned[pair] = self._planned.get(pair, 0.0) + share * plan.rate

    def apply(
        self, paths: Sequence[PathFigures], degraded_to: Mapping[_Pair, float], region: Mapping[str, str]
    ) -> list[PathFigures]:
        """The figures, those of before a fall made less. fallen: what part is left, of pairs that fell."""
        for between, left in self._newly_degraded(degraded_to, region).items():
            for path in paths:
                pair = (path.source, path.target)
                if pair not in degraded_to and (region.get(pair[0]), region.get(pair[1])) == between:
                    old = self._current(path)
                    self._old[pair] = _StaleFigure(path.rate, path.seen, left * (old.left if old is not None else 1.0))
        self._reported = dict(degraded_to)
        self._old = {(p.source, p.target): old for p in paths if (old := self._current(p)) is not None}
        return [self._less(path) for path in paths]

    def _newly_degraded(self, degraded_to: Mapping[_Pair, float], region: Mapping[str, str]) -> dict[_Pair, float]:
        """Pairs of regions of whose planned ways half has fallen by now, and had not before; what part is left."""
        carried: dict[_Pair, float] = {}
        lost: dict[_Pair, float] = {}
        news: dict[_Pair, list[tuple[float, float]]] = {}
        for pair, rate in self._planned.items():
            if pair[0] in region and pair[1] in region and region[pair[0]] != region[pair[1]]:
                between = (region[pair[0]], region[pair[1]])
                carried[between] = carried.get(between, 0.0) + rate
                lost[between] = lost.get(between, 0.0) + rate * (pair in degraded_to)
                more = degraded_to.get(pair, 1.0) / self._reported.get(pair, 1.0)
                if more < 1 and rate > 0:
                    news.setdefault(between, []).append((rate, more))
        # Of a link that is full its users get unequal parts: what is left of it is what is left of them together.
        left = {between: sum(r * more for r, more in of) / sum(r for r, _ in of) for between, of in news.items()}
        return {
            between: part for between, part in left.items() if lost[between] >= DEGRADED_MIN_SHARE * carried[between]
        }

    def _current(self, path: PathFigures) -> _StaleFigure | None:
        """What is known of a figure that has not changed since a fall."""
        old = self._old.get((path.source, path.target))
        return old if old is not None and (old.rate, old.seen) == (path.rate, path.seen) else None

    def _less(self, path: PathFigures) -> PathFigures:
        old = self._current(path)
        if old is None:
            return path
        rate, seen = (None if value is None else value * old.left for value in (path.rate, path.seen))
        return msgspec.structs.replace(path, rate=rate, seen=seen)
