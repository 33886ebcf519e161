"""Writes a ledger's changes to its journal in a thread, each batch with all changes that came during the one before.

The ledger goes on at once; code that must not answer before a change is durable awaits `settled`.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from p2psync.errors import StoreError
from p2psync.trainer.ledger.journal import Journal
from p2psync.trainer.ledger.records import LedgerChange


class JournalWriter:
    """Writes the changes of one ledger; on one loop. Without a journal it writes nothing, and `settled` never waits."""

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._pending: list[LedgerChange] = []
        self._recorded = self._written = 0
        self._writing: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "p2psync-journal")

    def record(self, change: LedgerChange) -> None:
        """Queue a change; it is written soon, after all earlier ones."""
        if self._journal is not None:
            self._pending.append(change)
            self._recorded += 1
            self._begin()

    async def settled(self) -> None:
        """Wait until all changes recorded so far are durable.

        Raises `StoreError` while the disk refuses; the changes stay queued, and the next call tries again.
        """
        wanted = self._recorded
        while self._written < wanted:
            self._begin()
            assert self._writing is not None
            await asyncio.shield(self._writing)

    async def close(self) -> None:
        """Write the queued changes, and close the journal. Raises `StoreError` if the disk refuses."""
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
            await asyncio.sleep(0)  # changes of this same iteration of the loop go into the same batch
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
    """Mark a task's `StoreError` as retrieved: callers of `settled` get it, and there may be none."""
    if not task.cancelled() and isinstance(task.exception(), StoreError):
        return
