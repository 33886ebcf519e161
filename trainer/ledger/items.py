"""The open items of work by id, and the ids that were completed: each id stands for one piece of work."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from p2psync.errors import UsageError
from p2psync.membership.work import MAX_ITEM_ID, MAX_PAYLOAD_BYTES, WorkItem
from p2psync.trainer.ledger.config import LedgerConfig


class OpenItems:
    """The items that are pooled or claimed. numbers: their numbers, by id. next: the number of the next new item."""

    def __init__(self, config: LedgerConfig) -> None:
        self.numbers: dict[str, int] = {}
        self.next = 0
        self._config = config
        self._bytes = 0
        self._completed: OrderedDict[str, None] = OrderedDict()

    def new(self, version: int, items: Iterable[tuple[str, bytes]], others: int, *, skip_known: bool) -> list[WorkItem]:
        """Returns the items that may be put in, and changes nothing; see `Ledger.put`.

        others: how many further items count towards `max_items`. Raises `UsageError`.
        """
        new = [WorkItem(item=item, version=version, payload=payload) for item, payload in items]
        if skip_known:
            new = [work for work in new if not self._known(work.item)]
        ids = {work.item for work in new}
        if len(ids) < len(new) or any(self._known(item) for item in ids):
            raise UsageError("an item's id was put in before; each id stands for one piece of work")
        if any(not 0 < len(work.item) <= MAX_ITEM_ID or len(work.payload) > MAX_PAYLOAD_BYTES for work in new):
            raise UsageError(
                f"an item has an id of 1 to {MAX_ITEM_ID} characters and at most {MAX_PAYLOAD_BYTES} bytes"
            )
        size = sum(len(work.payload) for work in new)
        full = len(self.numbers) + others + len(new) > self._config.max_items
        if full or self._bytes + size > self._config.max_payload_bytes:
            raise UsageError("the ledger is full; take results, or drop old work, before more is put in")
        return new

    def open(self, number: int, work: WorkItem) -> None:
        """Add an item."""
        self.numbers[work.item] = number
        self._bytes += len(work.payload)

    def close(self, work: WorkItem) -> None:
        """Remove an item that is completed or dropped."""
        del self.numbers[work.item]
        self._bytes -= len(work.payload)

    def completed(self, item: str) -> bool:
        """Returns whether an item was completed, as far as ids are remembered."""
        return item in self._completed

    def remember(self, item: str) -> None:
        """Remember that an item was completed; the oldest id beyond the bound is forgotten."""
        self._completed[item] = None
        if len(self._completed) > self._config.remembered:
            self._completed.popitem(last=False)

    def _known(self, item: str) -> bool:
        return item in self.numbers or item in self._completed
