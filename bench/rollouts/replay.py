"""What a journal holds after some changes, without a disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from p2psync.membership.work import WorkItem
from p2psync.trainer.ledger.records import (
    Accepted,
    Admitted,
    Change,
    Claimed,
    Done,
    Dropped,
    HandedBack,
    HandedOut,
    Put,
    Saved,
    StepCommitted,
    Unclaimed,
)


class Replay:
    """Changes, applied one by one."""

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self._versions: dict[int, str] = {}
        self._open: dict[int, WorkItem] = {}
        self._claims: dict[tuple[str, int], str] = {}
        self._results: dict[int, Done] = {}
        self._taken: set[int] = set()
        self._remembered: list[str] = []
        self._step = self._number = self._order = 0
        for change in changes:
            self.apply(change)

    def apply(self, change: Change) -> None:
        """One more."""
        match change:
            case Admitted():
                self._versions[change.version] = change.digest
                self._versions = {v: d for v, d in self._versions.items() if v >= change.oldest}
            case Put():
                self._open.update(enumerate(change.items, change.first))
                self._number = change.first + len(change.items)
            case Claimed():
                self._claims.update({(change.lease, number): change.node for number in change.items})
            case Unclaimed():
                for number in change.items:
                    del self._claims[change.lease, number]
            case Accepted():
                self._accept(change)
            case HandedOut():
                self._taken.update(change.items)
            case HandedBack():
                self._taken.difference_update(change.items)
            case StepCommitted():
                self._results = {n: done for n, done in self._results.items() if n not in self._taken}
                self._taken.clear()
                self._step = change.step
            case Dropped():
                for number in change.items:
                    del self._open[number]
                    self._unclaim(number)

    def saved(self) -> Saved:
        """The state now."""
        results = sorted(self._results.items(), key=lambda entry: entry[1].order)
        return Saved(
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

    def _accept(self, change: Accepted) -> None:
        item = self._open.pop(change.item)
        self._unclaim(change.item)
        self._results[change.item] = Done(
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
