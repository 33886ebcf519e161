"""Parts that the ledger's tests share: a clock to turn by hand, and waiting for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def until(condition: Callable[[], object]) -> None:
    """Runs the loop until `condition` holds; fails after 10 s."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what is waited for happens at the server's side, which tells nobody)
            await asyncio.sleep(0)
