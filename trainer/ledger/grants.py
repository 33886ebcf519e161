"""Chooses the items for a node that asks for work: its share of the pool, then items that others would finish late.

The finish times of all nodes are estimated together, and again after a time that grows with their number. Within that
time a grant does not change the estimate, since a node that got its share is busy until the finish.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from p2psync.membership.work import WorkItem
from p2psync.trainer.ledger.allotment import earliest_finish
from p2psync.trainer.ledger.claims import MAX_HOLDERS, WorkClaims
from p2psync.trainer.ledger.config import LedgerConfig
from p2psync.trainer.ledger.pool import ItemPool
from p2psync.trainer.ledger.throughput import Throughput

#: How long a forecast is valid, for each node in it (seconds). Estimating takes about a hundredth of that; a longer
#: time notices late nodes later.
_VALID_SECONDS_PER_NODE = 0.0005
#: A forecast is also replaced once there are so many times as many nodes.
_MAX_NODE_GROWTH = 1.25

Numbered = tuple[int, WorkItem]


@dataclass
class _CompletionForecast:
    """The expected finish times of all work, as estimated at time `at`. Times are on the ledger's clock (seconds).

    ends: by version, when all work up to it will be done. nodes: how many were counted. oldest: the oldest version with
    unfinished work. late: a heap of (minus the time when a node finishes the items of that version that it alone holds,
    the node).
    """

    at: float
    nodes: int
    ends: dict[int, float]
    oldest: int
    late: list[tuple[float, str]]


class GrantChooser:
    """Chooses items for nodes; it changes neither pool nor claims."""

    def __init__(self, config: LedgerConfig, pool: ItemPool, claims: WorkClaims, throughput: Throughput) -> None:
        self._config = config
        self._pool = pool
        self._claims = claims
        self._throughput = throughput
        self._completion: _CompletionForecast | None = None

    def changed(self) -> None:
        """Estimate again at the next call: work was put in or came back, or there is a new version."""
        self._completion = None

    def choose(
        self, node: str, most: int, max_bytes: int, now: float, upto: int | None
    ) -> tuple[list[Numbered], list[Numbered]]:
        """Returns items for `node`: some of the pool, and, where it gets none of these, at most one that another holds.

        most, room: bounds on their number and on the bytes of their payloads. upto: only items that were put in for
        this version or an earlier one.
        """
        if (
            most <= 0
            or not self._throughput.can_finish_in_time(node, now)
            or not (len(self._pool) or len(self._claims))
        ):
            return [], []
        if not self._config.allot:
            return self._oldest_pooled(most, max_bytes, upto), []
        completion = self._estimate(now)
        if not self._throughput.is_measured(node):
            most = min(most, self._unmeasured_limit(completion.nodes) - self._claims.count[node])
        mine = self._throughput.forecast(node, now)
        chosen: list[Numbered] = []
        for version, count in self._versions(upto):
            if version > completion.oldest and not chosen and (hedged := self._hedge(node, completion, now)):
                return [], hedged
            wanted = mine.capacity(completion.ends.get(version, math.inf) - now) - len(chosen)
            chosen += self._pooled(version, min(count, most - len(chosen), wanted), max_bytes - _size(chosen))
        return chosen, [] if chosen else self._hedge(node, completion, now)

    def _versions(self, upto: int | None) -> list[tuple[int, int]]:
        return [(version, count) for version, count in self._pool.versions() if upto is None or version <= upto]

    def _oldest_pooled(self, most: int, max_bytes: int, upto: int | None) -> list[Numbered]:
        chosen: list[Numbered] = []
        for version, count in self._versions(upto):
            chosen += self._pooled(version, min(count, most - len(chosen)), max_bytes - _size(chosen))
        return chosen

    def _unmeasured_limit(self, nodes: int) -> int:
        """Returns how many items an unmeasured node may hold: half of an equal part, since it may be slow."""
        total = len(self._pool) + len(self._claims)
        return max(self._config.first_items, math.ceil(total / (2 * max(2, nodes))))

    def _pooled(self, version: int, count: int, max_bytes: int) -> list[Numbered]:
        chosen: list[Numbered] = []
        for number, item in self._pool.in_order(version, count):
            max_bytes -= len(item.payload)
            if max_bytes < 0:
                break
            chosen.append((number, item))
        return chosen

    # ---- the forecast -----------------------------------------------------------------------------------------------

    def _estimate(self, now: float) -> _CompletionForecast:
        known = self._completion
        valid_for = self._throughput.node_count * _VALID_SECONDS_PER_NODE
        if (
            known is not None
            and now <= known.at + valid_for
            and self._throughput.node_count <= _MAX_NODE_GROWTH * known.nodes
        ):
            return known
        self._throughput.refresh()
        active = self._throughput.active(now)
        forecasts = [self._throughput.forecast(name, now) for name in active]
        ends = {}
        left = 0
        versions = self._pool.versions()
        for version, count in versions:
            left += count
            # A node that asks while the forecast is valid must get what it would have got at its start.
            ends[version] = now + valid_for + earliest_finish(forecasts, left)
        oldest = min([version for version, _ in versions] + self._claims.versions(), default=0)
        late = [
            (-end, name) for name in self._claims.of_node if (end := self._finish_time(name, oldest, now)) is not None
        ]
        heapq.heapify(late)
        self._completion = _CompletionForecast(now, self._throughput.node_count, ends, oldest, late)
        return self._completion

    def _hedge(self, node: str, completion: _CompletionForecast, now: float) -> list[Numbered]:
        """Returns the last item of the node that would finish the oldest step last, if `node` is clearly sooner."""
        if not self._config.hedge_margin:
            return []
        mine = now + self._config.hedge_margin * self._throughput.forecast(node, now).finish(1)
        late = completion.late
        # The step waits longest for the first node of this heap.
        while late and -late[0][0] > mine and late[0][1] != node:
            holder = late[0][1]
            end = self._finish_time(holder, completion.oldest, now)
            if end is None:
                heapq.heappop(late)
            elif -end > late[0][0]:
                heapq.heapreplace(late, (-end, holder))
            else:
                return [self._held_alone(holder, completion.oldest)[-1]]
        return []

    def _finish_time(self, holder: str, version: int, now: float) -> float | None:
        """Returns when a node will finish the items of a version that it alone holds; None if there are none."""
        alone = self._held_alone(holder, version)
        if not alone:
            return None
        forecast = self._throughput.forecast(holder, now, len(alone))
        since = max(self._claims.by_lease[lease].since for lease in self._claims.of_node[holder])
        return max(now + forecast.start, since + forecast.least)

    def _held_alone(self, holder: str, version: int) -> list[Numbered]:
        """Returns the items of a version that only `holder` has, in the order in which it works on them."""
        claims = [self._claims.by_lease[lease] for lease in self._claims.of_node.get(holder, ())]
        claims.sort(key=lambda claim: claim.since)
        return [
            (number, item)
            for claim in claims
            for number, item in claim.items.items()
            if item.version == version and len(self._claims.holders(number)) < MAX_HOLDERS
        ]


def _size(items: list[Numbered]) -> int:
    return sum(len(item.payload) for _, item in items)
