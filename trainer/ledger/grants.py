"""What a node that asks for work is given: its share of what is left, then what others hold and would finish late.

What is expected of all nodes is looked at together, and anew after a while that grows with their number: within it,
granting does not change when all will be through, since whoever is given its share will be busy until then.
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

#: How long an outlook holds for each node in it (seconds): looking costs about a hundredth of that.
_VALID_SECONDS_PER_NODE = 0.0005
#: And until there are so many times as many nodes.
_MAX_NODE_GROWTH = 1.25

Numbered = tuple[int, WorkItem]


@dataclass
class _CompletionForecast:
    """What was expected at a time. ends: when all work up to a version will be done, by version. nodes: in it.

    late: (minus when a node will be through with what it alone holds of the oldest version, the node), a heap. Times
    are absolute.
    """

    at: float
    nodes: int
    ends: dict[int, float]
    oldest: int
    late: list[tuple[float, str]]


class GrantChooser:
    """Chooses, and changes nothing."""

    def __init__(self, config: LedgerConfig, pool: ItemPool, claims: WorkClaims, throughput: Throughput) -> None:
        self._config = config
        self._pool = pool
        self._claims = claims
        self._throughput = throughput
        self._completion: _CompletionForecast | None = None

    def changed(self) -> None:
        """Work was put in or came back, or there is a new version: look anew."""
        self._completion = None

    def choose(
        self, node: str, most: int, room: int, now: float, upto: int | None
    ) -> tuple[list[Numbered], list[Numbered]]:
        """Items for `node`, at most so many and payloads of `room` bytes: of the pool, and of what others hold.

        upto: only of what was put in for this version or an earlier one.
        """
        if (
            most <= 0
            or not self._throughput.can_finish_in_time(node, now)
            or not (len(self._pool) or len(self._claims))
        ):
            return [], []
        if not self._config.allot:
            return self._oldest_pooled(most, room, upto), []
        completion = self._estimate(now)
        if not self._throughput.is_measured(node):
            most = min(most, self._unmeasured_limit(completion.nodes) - self._claims.count[node])
        mine = self._throughput.forecast(node, now)
        chosen: list[Numbered] = []
        for version, count in self._versions(upto):
            if version > completion.oldest and not chosen and (hedged := self._hedge(node, completion, now)):
                return [], hedged
            wanted = mine.capacity(completion.ends.get(version, math.inf) - now) - len(chosen)
            chosen += self._pooled(version, min(count, most - len(chosen), wanted), room - _size(chosen))
        return chosen, [] if chosen else self._hedge(node, completion, now)

    def _versions(self, upto: int | None) -> list[tuple[int, int]]:
        return [(version, count) for version, count in self._pool.versions() if upto is None or version <= upto]

    def _oldest_pooled(self, most: int, room: int, upto: int | None) -> list[Numbered]:
        chosen: list[Numbered] = []
        for version, count in self._versions(upto):
            chosen += self._pooled(version, min(count, most - len(chosen)), room - _size(chosen))
        return chosen

    def _unmeasured_limit(self, nodes: int) -> int:
        """What a node may hold of which nothing is known: half of an equal part, since it may be a slow one."""
        total = len(self._pool) + len(self._claims)
        return max(self._config.first_items, math.ceil(total / (2 * max(2, nodes))))

    def _pooled(self, version: int, count: int, room: int) -> list[Numbered]:
        chosen: list[Numbered] = []
        for number, item in self._pool.in_order(version, count):
            room -= len(item.payload)
            if room < 0:
                break
            chosen.append((number, item))
        return chosen

    # ---- the outlook -----------------------------------------------------------------------------------------------

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
            # Whoever asks while the outlook holds must still find what it would have found at once.
            ends[version] = now + valid_for + earliest_finish(forecasts, left)
        oldest = min([version for version, _ in versions] + self._claims.versions(), default=0)
        late = [
            (-end, name) for name in self._claims.of_node if (end := self._finish_time(name, oldest, now)) is not None
        ]
        heapq.heapify(late)
        self._completion = _CompletionForecast(now, self._throughput.node_count, ends, oldest, late)
        return self._completion

    def _hedge(self, node: str, completion: _CompletionForecast, now: float) -> list[Numbered]:
        """The last item of whoever would end the oldest step latest, if `node` would be clearly sooner."""
        if not self._config.hedge_margin:
            return []
        mine = now + self._config.hedge_margin * self._throughput.forecast(node, now).finish(1)
        late = completion.late
        # Whatever else the step waits for, it waits longest for the first of these.
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
        """When a node will be through with what only it holds of a version; None if there is no such item."""
        alone = self._held_alone(holder, version)
        if not alone:
            return None
        forecast = self._throughput.forecast(holder, now, len(alone))
        since = max(self._claims.by_lease[lease].since for lease in self._claims.of_node[holder])
        return max(now + forecast.start, since + forecast.least)

    def _held_alone(self, holder: str, version: int) -> list[Numbered]:
        """Items of a version that only `holder` has, in the order in which it works on them."""
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
