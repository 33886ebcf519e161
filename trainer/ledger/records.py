"""What happens in a ledger, as records that can be written down, and a ledger's state as it can be read back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from p2psync.membership.work import WorkItem


class LedgerChange(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened. Applied in order, all changes give the state."""


class VersionAdmitted(LedgerChange, frozen=True, kw_only=True):
    """A version is the newest; versions below `oldest` are forgotten. digest: 32 hex digits."""

    version: int
    digest: str
    oldest: int


class ItemsPut(LedgerChange, frozen=True, kw_only=True):
    """Items were put in; they are numbered from `first` on."""

    first: int
    items: list[WorkItem]


class ItemsClaimed(LedgerChange, frozen=True, kw_only=True):
    """A node claimed items, by number, under a work lease."""

    lease: str
    node: str
    items: list[int]


class ClaimsEnded(LedgerChange, frozen=True, kw_only=True):
    """Claims of a work lease on these items, by number, ended without a result that counts."""

    lease: str
    items: list[int]


class ResultAccepted(LedgerChange, frozen=True, kw_only=True):
    """An item's result counts; every claim on it has ended. order: results are given out in this order."""

    item: int
    order: int
    node: str
    version: int
    tokens: int
    result: bytes


class ResultsTaken(LedgerChange, frozen=True, kw_only=True):
    """Results of these items were taken for a step."""

    step: int
    items: list[int]


class ResultsReturned(LedgerChange, frozen=True, kw_only=True):
    """What was handed out of these items waits to be taken again."""

    items: list[int]


class StepCommitted(LedgerChange, frozen=True, kw_only=True):
    """What was handed out is gone; `step` is in hand now."""

    step: int


class ItemsDropped(LedgerChange, frozen=True, kw_only=True):
    """Unfinished items were given up."""

    items: list[int]


@dataclass(frozen=True, kw_only=True)
class LedgerResult:
    """An accepted result. item: as it was put in. version: the policy the result was made under."""

    item: WorkItem
    node: str
    version: int
    result: bytes
    tokens: int = 0
    number: int = 0
    order: int = 0


@dataclass(kw_only=True)
class SavedLedger:
    """A ledger's state as it was written down. Claims: (lease, node, item number).

    versions: (number, digest), ascending. open: (number, item), ascending. done, taken: in their order. remembered:
    ids of items that were completed or dropped, oldest first.
    """

    step: int = 0
    next_number: int = 0
    next_order: int = 0
    versions: list[tuple[int, str]] = field(default_factory=list)
    open: list[tuple[int, WorkItem]] = field(default_factory=list)
    claims: list[tuple[str, str, int]] = field(default_factory=list)
    done: list[LedgerResult] = field(default_factory=list)
    taken: list[LedgerResult] = field(default_factory=list)
    remembered: list[str] = field(default_factory=list)


Recorder = Callable[[LedgerChange], None]


def discard_change(_change: LedgerChange) -> None:
    """The recorder of a ledger that lives in memory only."""
