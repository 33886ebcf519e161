"""The claims on items: which node holds which items until when, by work lease; at most two claims on one item."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from p2psync.membership.deadlines import Deadlines
from p2psync.membership.work import WorkItem

#: Nodes that may hold one item at a time: the one that leased it first, and one that hedges.
MAX_HOLDERS = 2


@dataclass(slots=True)
class WorkClaim:
    """The claims of one work lease.

    items: by number. since: when they were leased (seconds). ends: when they end at the latest. void: see `Receipt`.
    """

    node: str
    since: float
    ends: float
    items: dict[int, WorkItem] = field(default_factory=dict)
    void: list[str] = field(default_factory=list)


class WorkClaims:
    """All claims. A claim ends `ttl` seconds after its last renewal, and `max_hold` seconds after it began."""

    def __init__(self, ttl: float, max_hold: float) -> None:
        self._ttl = ttl
        self._max_hold = max_hold
        self.by_lease: dict[str, WorkClaim] = {}
        self.of_node: dict[str, set[str]] = {}
        self.count: Counter[str] = Counter()  # node → items
        self._holders: dict[int, list[str]] = {}  # item → leases
        self._of_version: Counter[int] = Counter()  # claims of items put in for a version
        self._deadlines = Deadlines()

    def __len__(self) -> int:
        """The number of items that are claimed, by one node or two."""
        return len(self._holders)

    def holders(self, number: int) -> list[str]:
        """Returns the work leases that hold an item."""
        return self._holders.get(number, [])

    def versions(self) -> list[int]:
        """Returns the versions that claimed items were put in for."""
        return list(self._of_version)

    def add(self, lease: str, node: str, items: list[tuple[int, WorkItem]], now: float) -> WorkClaim:
        """Claim items under a fresh work lease."""
        claim = self.by_lease[lease] = WorkClaim(node, now, now + self._max_hold, dict(items))
        self.of_node.setdefault(node, set()).add(lease)
        self.count[node] += len(items)
        for number, item in items:
            self._holders.setdefault(number, []).append(lease)
            self._of_version[item.version] += 1
        self._set_deadline(lease, claim, now)
        return claim

    def remove(self, lease: str, number: int) -> WorkItem:
        """End a lease's claim on one item, and return the item; a lease without items is forgotten."""
        claim = self.by_lease[lease]
        item = claim.items.pop(number)
        self.count[claim.node] -= 1
        self._of_version[item.version] -= 1
        if not self._of_version[item.version]:
            del self._of_version[item.version]
        holders = self._holders[number]
        holders.remove(lease)
        if not holders:
            del self._holders[number]
        if not claim.items:
            self._forget(lease, claim)
        return item

    def renew(self, node: str, now: float) -> None:
        """Renew all claims of a node, each up to its end."""
        for lease in self.of_node.get(node, ()):
            self._set_deadline(lease, self.by_lease[lease], now)

    def due(self, now: float) -> list[str]:
        """Returns the leases that have expired, earliest first. The caller must remove their claims."""
        return self._deadlines.pop_due(now)

    def next_expiry(self) -> float | None:
        """Returns when the next claim ends unless it is renewed; None if there is none."""
        return self._deadlines.next()

    def _set_deadline(self, lease: str, claim: WorkClaim, now: float) -> None:
        self._deadlines.set(lease, min(now + self._ttl, claim.ends))

    def _forget(self, lease: str, claim: WorkClaim) -> None:
        del self.by_lease[lease]
        self._deadlines.discard(lease)
        leases = self.of_node[claim.node]
        leases.remove(lease)
        if not leases:
            del self.of_node[claim.node], self.count[claim.node]
