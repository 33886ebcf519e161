"""The accepted results, in order: those that wait to be taken, and those that were taken for the step in hand."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from p2psync.trainer.ledger.records import LedgerResult


class ResultQueue:
    """Results by their order. size: bytes of the results that wait."""

    def __init__(self) -> None:
        self.waiting: OrderedDict[int, LedgerResult] = OrderedDict()  # by order
        self.taken: dict[int, LedgerResult] = {}
        self.size = 0

    def add(self, done: LedgerResult) -> None:
        """Add a result that waits to be taken."""
        self.waiting[done.order] = done
        self.size += len(done.result)

    def take(self, most: int, version: int | None) -> list[LedgerResult]:
        """Take up to `most` results, oldest first, of items put in for `version` (None: of any)."""
        taken: list[LedgerResult] = []
        for done in self.waiting.values():
            if len(taken) >= most:
                break
            if version is None or done.item.version == version:
                taken.append(done)
        for done in taken:
            del self.waiting[done.order]
            self.size -= len(done.result)
            self.taken[done.order] = done
        return taken

    def hand_back(self, results: Iterable[LedgerResult] | None) -> list[LedgerResult]:
        """Return these results (None: all) that were taken; they wait again, in their old order."""
        back = list(self.taken.values()) if results is None else [done for done in results if done.order in self.taken]
        for done in back:
            del self.taken[done.order]
            self.add(done)
        self.waiting = OrderedDict(sorted(self.waiting.items()))
        return back

    def forget_taken(self) -> int:
        """Drop the results that were taken; returns how many."""
        gone = len(self.taken)
        self.taken.clear()
        return gone
