"""Between a ledger and its journal: changes go to disk in a thread, as many in one transaction as came meanwhile.

The ledger goes on at once; whoever must not answer before a change is durable awaits `settled`.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from p2psync.errors import StoreError
from p2psync.trainer.ledger.journal import Journal
from p2psync.trainer.ledger.records import LedgerChange


class JournalWriter:
    """On one loop. Without a journal everything is settled at once, and lost with the process."""

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._pending: list[LedgerChange] = []
        self._recorded = self._written = 0
        self._writing: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "p2psync-journal")

    def record(self, change: LedgerChange) -> None:
        """Take a change; it is written soon, after all that came before."""
        if self._journal is not None:
            self._pending.append(change)
            self._recorded += 1
            self._begin()

    async def settled(self) -> None:
        """Wait until all that was recorded so far is durable.

        Raises `StoreError` while the disk refuses; nothing is lost by that but time: the next call tries again.
        """
        wanted = self._recorded
        while self._written < wanted:
            self._begin()
            assert self._writing is not None
            await asyncio.shield(self._writing)

    async def close(self) -> None:
        """Write what is left, and close the journal. Raises `StoreError` if the disk refuses."""
        try:
            await self.settled()
        finally:
            await asyncio.to_thread(self._thread.shutdown)
            if self._journal is not None:
                self._journal.close()

    def _begin(self) -> None:
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
            self._writing.add_done_callback(_ignore_store_error)

    async def _write(self) -> None:
        assert self._journal is not None
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(0)  # whatever else this turn of the loop brings goes along
            batch, self._pending = self._pending, []
            try:
                await loop.run_in_executor(self._thread, self._journal.write, batch)
            except BaseException:
                self._pending = batch + self._pending
                raise
            self._written += len(batch)
        finally:
            self._writing = None
        if self._pending:
            self._begin()


def _ignore_store_error(task: asyncio.Task[None]) -> None:
    """Who awaits the task hears of its failure; that nobody does is no error."""
    if not task.cancelled() and isinstance(task.exception(), StoreError):
        return
