"""The changes of a ledger, as records for a journal, and a ledger's state as a journal holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from p2psync.membership.work import WorkItem


class LedgerChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a ledger's state. Applied in order, all changes give the state."""


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
    """Claims of a work lease on these items, by number, ended without a result that counted."""

    lease: str
    items: list[int]


class ResultAccepted(LedgerChange, frozen=True, kw_only=True):
    """An item's result was accepted; every claim on it has ended. order: results are handed out in this order."""

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
    """Results of these items that were taken wait to be taken again."""

    items: list[int]


class StepCommitted(LedgerChange, frozen=True, kw_only=True):
    """The results that were taken are dropped; `step` is in hand now."""

    step: int


class ItemsDropped(LedgerChange, frozen=True, kw_only=True):
    """Unfinished items were dropped."""

    items: list[int]


@dataclass(frozen=True, kw_only=True)
class LedgerResult:
    """An accepted result.

    item: as it was put in. node: that made it. version: the policy that it was made under. result: bytes of the actor's
    choice. tokens: how many it took, 0: unknown. number, order: the ledger's own, see `ItemsPut` and `ResultAccepted`.
    """

    item: WorkItem
    node: str
    version: int
    result: bytes
    tokens: int = 0
    number: int = 0
    order: int = 0


@dataclass(kw_only=True)
class SavedLedger:
    """A ledger's state, as a journal holds it.

    versions: (number, digest), ascending. open: (number, item), ascending. claims: (lease, node, item number). done,
    taken: results in their order. remembered: ids of items that were completed, oldest first.
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
    """Discard a change: the recorder of a ledger in memory."""
