"""What a node that asks for work is given: its share of what is left, then what others hold and would finish late.

What is expected of all nodes is looked at together, and anew after a while that grows with their number: within it,
granting does not change when all will be through, since whoever is given its share will be busy until then.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from p2psync.membership.work import WorkItem
from p2psync.trainer.ledger.allotment import end_of
from p2psync.trainer.ledger.claims import MAX_HOLDERS, Claims
from p2psync.trainer.ledger.config import LedgerConfig
from p2psync.trainer.ledger.pool import Pool
from p2psync.trainer.ledger.throughput import Pace

#: How long an outlook holds for each node in it (seconds): looking costs about a hundredth of that.
_HOLDS = 0.0005
#: And until there are so many times as many nodes.
_GROWN = 1.25

Numbered = tuple[int, WorkItem]


@dataclass
class _Outlook:
    """What was expected at a time. ends: when all work up to a version will be done, by version. nodes: in it.

    late: (minus when a node will be through with what it alone holds of the oldest version, the node), a heap. Times
    are absolute.
    """

    at: float
    nodes: int
    ends: dict[int, float]
    oldest: int
    late: list[tuple[float, str]]


class Granting:
    """Chooses, and changes nothing."""

    def __init__(self, config: LedgerConfig, pool: Pool, claims: Claims, pace: Pace) -> None:
        self._config = config
        self._pool = pool
        self._claims = claims
        self._pace = pace
        self._outlook: _Outlook | None = None

    def changed(self) -> None:
        """Work was put in or came back, or there is a new version: look anew."""
        self._outlook = None

    def choose(
        self, node: str, most: int, room: int, now: float, upto: int | None
    ) -> tuple[list[Numbered], list[Numbered]]:
        """Items for `node`, at most so many and payloads of `room` bytes: of the pool, and of what others hold.

        upto: only of what was put in for this version or an earlier one.
        """
        if most <= 0 or not self._pace.in_time(node, now) or not (len(self._pool) or len(self._claims)):
            return [], []
        if not self._config.allot:
            return self._first(most, room, upto), []
        outlook = self._look(now)
        if not self._pace.measured(node):
            most = min(most, self._untried(outlook.nodes) - self._claims.count[node])
        mine = self._pace.prospect(node, now)
        chosen: list[Numbered] = []
        for version, count in self._versions(upto):
            if version > outlook.oldest and not chosen and (hedged := self._hedge(node, outlook, now)):
                return [], hedged
            wanted = mine.capacity(outlook.ends.get(version, math.inf) - now) - len(chosen)
            chosen += self._of(version, min(count, most - len(chosen), wanted), room - _size(chosen))
        return chosen, [] if chosen else self._hedge(node, outlook, now)

    def _versions(self, upto: int | None) -> list[tuple[int, int]]:
        return [(version, count) for version, count in self._pool.versions() if upto is None or version <= upto]

    def _first(self, most: int, room: int, upto: int | None) -> list[Numbered]:
        chosen: list[Numbered] = []
        for version, count in self._versions(upto):
            chosen += self._of(version, min(count, most - len(chosen)), room - _size(chosen))
        return chosen

    def _untried(self, nodes: int) -> int:
        """What a node may hold of which nothing is known: half of an equal part, since it may be a slow one."""
        total = len(self._pool) + len(self._claims)
        return max(self._config.first_items, math.ceil(total / (2 * max(2, nodes))))

    def _of(self, version: int, count: int, room: int) -> list[Numbered]:
        chosen: list[Numbered] = []
        for number, item in self._pool.in_order(version, count):
            room -= len(item.payload)
            if room < 0:
                break
            chosen.append((number, item))
        return chosen

    # ---- the outlook -----------------------------------------------------------------------------------------------

    def _look(self, now: float) -> _Outlook:
        known = self._outlook
        holds = self._pace.known * _HOLDS
        if known is not None and now <= known.at + holds and self._pace.known <= _GROWN * known.nodes:
            return known
        self._pace.refresh()
        active = self._pace.active(now)
        prospects = [self._pace.prospect(name, now) for name in active]
        ends = {}
        left = 0
        versions = self._pool.versions()
        for version, count in versions:
            left += count
            # Whoever asks while the outlook holds must still find what it would have found at once.
            ends[version] = now + holds + end_of(prospects, left)
        oldest = min([version for version, _ in versions] + self._claims.versions(), default=0)
        late = [(-end, name) for name in self._claims.of_node if (end := self._through(name, oldest, now)) is not None]
        heapq.heapify(late)
        self._outlook = _Outlook(now, self._pace.known, ends, oldest, late)
        return self._outlook

    def _hedge(self, node: str, outlook: _Outlook, now: float) -> list[Numbered]:
        """The last item of whoever would end the oldest step latest, if `node` would be clearly sooner."""
        if not self._config.hedge_margin:
            return []
        mine = now + self._config.hedge_margin * self._pace.prospect(node, now).finish(1)
        late = outlook.late
        # Whatever else the step waits for, it waits longest for the first of these.
        while late and -late[0][0] > mine and late[0][1] != node:
            holder = late[0][1]
            end = self._through(holder, outlook.oldest, now)
            if end is None:
                heapq.heappop(late)
            elif -end > late[0][0]:
                heapq.heapreplace(late, (-end, holder))
            else:
                return [self._alone(holder, outlook.oldest)[-1]]
        return []

    def _through(self, holder: str, version: int, now: float) -> float | None:
        """When a node will be through with what only it holds of a version; None if there is no such item."""
        alone = self._alone(holder, version)
        if not alone:
            return None
        prospect = self._pace.prospect(holder, now, len(alone))
        since = max(self._claims.by_lease[lease].since for lease in self._claims.of_node[holder])
        return max(now + prospect.start, since + prospect.least)

    def _alone(self, holder: str, version: int) -> list[Numbered]:
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
