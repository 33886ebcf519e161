"""Replays changes as a journal would, without a disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from p2psync.membership.work import WorkItem
from p2psync.trainer.ledger.records import (
    ClaimsEnded,
    ItemsClaimed,
    ItemsDropped,
    ItemsPut,
    LedgerChange,
    LedgerResult,
    ResultAccepted,
    ResultsReturned,
    ResultsTaken,
    SavedLedger,
    StepCommitted,
    VersionAdmitted,
)


class Replay:
    """Changes, applied one by one."""

    def __init__(self, changes: Iterable[LedgerChange] = ()) -> None:
        self._versions: dict[int, str] = {}
        self._open: dict[int, WorkItem] = {}
        self._claims: dict[tuple[str, int], str] = {}
        self._results: dict[int, LedgerResult] = {}
        self._taken: set[int] = set()
        self._remembered: list[str] = []
        self._step = self._number = self._order = 0
        for change in changes:
            self.apply(change)

    def apply(self, change: LedgerChange) -> None:
        """One more."""
        match change:
            case VersionAdmitted():
                self._versions[change.version] = change.digest
                self._versions = {v: d for v, d in self._versions.items() if v >= change.oldest}
            case ItemsPut():
                self._open.update(enumerate(change.items, change.first))
                self._number = change.first + len(change.items)
            case ItemsClaimed():
                self._claims.update({(change.lease, number): change.node for number in change.items})
            case ClaimsEnded():
                for number in change.items:
                    del self._claims[change.lease, number]
            case ResultAccepted():
                self._accept(change)
            case ResultsTaken():
                self._taken.update(change.items)
            case ResultsReturned():
                self._taken.difference_update(change.items)
            case StepCommitted():
                self._results = {n: done for n, done in self._results.items() if n not in self._taken}
                self._taken.clear()
                self._step = change.step
            case ItemsDropped():
                for number in change.items:
                    del self._open[number]
                    self._unclaim(number)

    def saved(self) -> SavedLedger:
        """The state now."""
        results = sorted(self._results.items(), key=lambda entry: entry[1].order)
        return SavedLedger(
            step=self._step,
            next_number=self._number,
            next_order=self._order,
            versions=sorted(self._versions.items()),
            open=sorted(self._open.items()),
            claims=sorted((lease, node, number) for (lease, number), node in self._claims.items()),
            done=[replace(done) for number, done in results if number not in self._taken],
            taken=[replace(done) for number, done in results if number in self._taken],
            remembered=list(self._remembered),
        )

    def _accept(self, change: ResultAccepted) -> None:
        item = self._open.pop(change.item)
        self._unclaim(change.item)
        self._results[change.item] = LedgerResult(
            item=item,
            node=change.node,
            version=change.version,
            result=change.result,
            tokens=change.tokens,
            number=change.item,
            order=change.order,
        )
        self._remembered.append(item.item)
        self._order = change.order + 1

    def _unclaim(self, number: int) -> None:
        for key in [key for key in self._claims if key[1] == number]:
            del self._claims[key]
