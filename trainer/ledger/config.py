"""A ledger's bounds, and its counters."""

from __future__ import annotations

from dataclasses import dataclass

from p2psync.errors import UsageError
from p2psync.membership.work import Verdict
from p2psync.setting_checks import check_flags, check_number


@dataclass(frozen=True, kw_only=True)
class LedgerConfig:
    """A ledger's bounds, one line for each: meaning, unit, default.

    claim_ttl: seconds that a claim on an item lasts unless its holder renews it [30]
    max_hold: seconds that a node may hold an item at most, however often it renews the claim [1800]
    max_staleness: versions that a result may lie behind the newest [1]
    max_items: items in pool, claimed, done and taken together [65536]
    max_per_node: items that one node may claim at once [1024]
    max_done_bytes: bytes of results that wait to be taken; beyond it nothing is leased or accepted [1 GiB]
    max_payload_bytes: bytes of all items together [1 GiB]
    remembered: ids of completed items that are kept, to tell a duplicate from a late result [65536]
    allot: give each node only items that it can finish in time; else as many as it asks for [yes]
    first_items: items that a node of unknown speed may hold besides its share [4]
    hedge_margin: offer held work to a node that would be so many times sooner through with it; 0: never [1.25]
    max_rate: tokens a second that no node can pass, whatever it claims [1000000]
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
        """Raises `UsageError` for a setting that cannot be meant."""
        whole = ("max_staleness", "max_items", "max_per_node", "max_done_bytes", "max_payload_bytes", "remembered")
        for name in (*whole, "first_items"):
            check_number(getattr(self, name), name, 0, whole=True)
        for name in ("claim_ttl", "max_hold", "hedge_margin", "max_rate"):
            check_number(getattr(self, name), name, 0)
        check_flags({"allot": self.allot})
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
