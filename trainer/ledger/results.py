"""Accepted results: those that wait to be taken, and those that were taken for the step in hand. In order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from p2psync.trainer.ledger.records import LedgerResult


class ResultQueue:
    """size: bytes of the results that wait."""

    def __init__(self) -> None:
        self.waiting: OrderedDict[int, LedgerResult] = OrderedDict()  # by order
        self.taken: dict[int, LedgerResult] = {}
        self.size = 0

    def add(self, done: LedgerResult) -> None:
        """One more waits."""
        self.waiting[done.order] = done
        self.size += len(done.result)

    def take(self, most: int, version: int | None) -> list[LedgerResult]:
        """Move up to so many to those that were taken, oldest first; of items put in for `version` (None: of any)."""
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
        """Move these (None: all) back, where they were taken; they wait in their old order."""
        back = list(self.taken.values()) if results is None else [done for done in results if done.order in self.taken]
        for done in back:
            del self.taken[done.order]
            self.add(done)
        self.waiting = OrderedDict(sorted(self.waiting.items()))
        return back

    def forget_taken(self) -> int:
        """What was taken is gone; returns how many."""
        gone = len(self.taken)
        self.taken.clear()
        return gone
