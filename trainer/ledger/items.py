"""All items of work that are open, by id, and which ids were completed: each stands for one piece of work."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from p2psync.errors import UsageError
from p2psync.membership.work import MAX_ITEM_ID, MAX_PAYLOAD_BYTES, WorkItem
from p2psync.trainer.ledger.config import LedgerConfig


class OpenItems:
    """numbers: of what is pooled or claimed, by id. next: the number of the next new item."""

    def __init__(self, config: LedgerConfig) -> None:
        self.numbers: dict[str, int] = {}
        self.next = 0
        self._config = config
        self._bytes = 0
        self._completed: OrderedDict[str, None] = OrderedDict()

    def new(self, version: int, items: Iterable[tuple[str, bytes]], others: int, *, skip_known: bool) -> list[WorkItem]:
        """Items that may be put in; see `Ledger.put`. others: items that take room and are not open. Changes nothing.

        Raises `UsageError`.
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
        """An item is there."""
        self.numbers[work.item] = number
        self._bytes += len(work.payload)

    def close(self, work: WorkItem) -> None:
        """An item is completed or dropped."""
        del self.numbers[work.item]
        self._bytes -= len(work.payload)

    def completed(self, item: str) -> bool:
        """Whether an item has a result, as far as is remembered."""
        return item in self._completed

    def remember(self, item: str) -> None:
        """An item has a result."""
        self._completed[item] = None
        if len(self._completed) > self._config.remembered:
            self._completed.popitem(last=False)

    def _known(self, item: str) -> bool:
        return item in self.numbers or item in self._completed
