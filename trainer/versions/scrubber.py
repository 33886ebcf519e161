"""The trainer's background scrub: a block of the published bits at a time, whenever nothing is being published.

A publish compares the sums of all blocks. The scrub compares digests, so it also finds damage that the sums miss, and
damage while nothing is published; the bits are then rebuilt from the store before the next version is made from them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from p2psync.errors import P2PSyncError
from p2psync.observe.events import Event, Trouble
from p2psync.trainer.versions.builder import LocalVersionBuilder

#: The share of one core that scrubbing may take. A gigabyte then takes some 25 s; a larger share slows the training.
SHARE = 0.02
#: Least pause after each block, and pause after each round (seconds), so that small models are not read all the time.
MIN_PAUSE_SECONDS, ROUND_PAUSE_SECONDS = 0.05, 30.0


class SnapshotScrubber:
    """Scrubs the snapshot of one version builder; on one loop."""

    def __init__(
        self,
        versions: LocalVersionBuilder,
        publishing: asyncio.Lock,
        on_rebuilt: Callable[[], None],
        on_event: Callable[[Event], None],
    ) -> None:
        """publishing: held while the snapshot changes. on_rebuilt: called after the bits were rebuilt."""
        self._versions = versions
        self._publishing = publishing
        self._on_rebuilt = on_rebuilt
        self._emit = on_event

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Scrub for ever. sleep: waits so many seconds."""
        while True:
            spent = 0.0
            try:
                async with self._publishing:
                    before, began = self._versions.rebuilds, time.perf_counter()
                    read = await asyncio.to_thread(self._versions.scrub)
                    spent = time.perf_counter() - began
                if self._versions.rebuilds != before:
                    self._on_rebuilt()
            except P2PSyncError as error:
                self._emit(Trouble(f"the published bits cannot be verified: {error}"))
                read = 0
            await sleep(max(MIN_PAUSE_SECONDS, spent / SHARE - spent) if read else ROUND_PAUSE_SECONDS)
