"""A ledger's bounds, and its counters."""

from __future__ import annotations

from dataclasses import dataclass

from p2psync.errors import UsageError
from p2psync.membership.work import Verdict


@dataclass(frozen=True, kw_only=True)
class LedgerConfig:
    """A ledger's bounds.

    claim_ttl, max_hold: seconds, see `trainer.ledger.core`. max_staleness: versions a result may lie behind the newest.

    max_items: in pool, claimed, done and taken together. max_per_node: claimed by one node at once. max_done_bytes:
    results that wait to be taken; beyond it nothing is leased or accepted. max_payload_bytes: of all items together.
    remembered: ids of items that were completed, kept to tell a duplicate from a late result.

    allot: give each node what it can finish in time (`p2psync.trainer.ledger.allotment`); else whoever asks gets what
    it asks for. first_items: what a node may hold of which nothing is known yet, besides its share. hedge_margin: work
    that is held is offered to another node when that would be this many times sooner through with it; 0: never.
    max_rate: tokens a second that no node can pass, whatever it claims.
    """

    claim_ttl: float = 30.0
    max_hold: float = 1800.0
    max_staleness: int = 1
    max_items: int = 65536
    max_per_node: int = 1024
    max_done_bytes: int = 1 << 30
    max_payload_bytes: int = 1 << 30
    remembered: int = 65536
    allot: bool = True
    first_items: int = 4
    hedge_margin: float = 1.25
    max_rate: float = 1e6

    def __post_init__(self) -> None:
        bounds = (
            *(self.max_items, self.max_per_node, self.max_done_bytes, self.max_payload_bytes, self.remembered),
            *(self.first_items, self.max_rate),
        )
        if min(bounds) <= 0 or not 0 < self.claim_ttl <= self.max_hold or self.max_staleness < 0:
            raise UsageError("the ledger's bounds must be above 0, and claim_ttl at most max_hold")
        if self.remembered < self.max_items:
            raise UsageError("a ledger remembers at least max_items ids, or it could take one of them for new")
        if self.hedge_margin != 0 and self.hedge_margin < 1:
            raise UsageError("hedge_margin is 1 or more, or 0 for no hedging")


@dataclass(frozen=True, kw_only=True)
class LedgerCounts:
    """Counters of items since the start.

    leased: grants of items; of these re_leased had been leased before, and hedged were held by another node at the
    time.
    """

    put: int
    leased: int
    re_leased: int
    hedged: int
    returned: int
    completed: int
    committed: int
    dropped: int
    refused: dict[Verdict, int]
