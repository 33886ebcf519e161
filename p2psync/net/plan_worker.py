"""The hub's planner in a thread of its own, so that waiting for a plan does not keep nodes waiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from p2psync.membership.planning import Planner, PlanResult, PlanTask


class PlanWorker:
    """Warms a planner, then carries out one task at a time. To be used on one loop."""

    def __init__(self, planner: Planner, made: Callable[[PlanResult], None], failed: Callable[[str], None]) -> None:
        """made, failed: told of each task's outcome, on the loop."""
        self._planner = planner
        self._made = made
        self._failed = failed
        self._thread = ThreadPoolExecutor(1, "p2psync-planner")
        self._tasks: set[asyncio.Task[None]] = set()

    async def warm(self) -> None:
        """Wait until the planner has compiled what it needs. What keeps it from that, its first plan will tell."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(Exception):
            await loop.run_in_executor(self._thread, self._planner.warm)

    def make(self, task: PlanTask) -> None:
        """Make a plan, and tell of it."""
        making = asyncio.get_running_loop().create_task(self._make(task))
        self._tasks.add(making)
        making.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Begin nothing any more, and tell of nothing; a plan that is being made is left to end by itself."""
        for task in self._tasks:
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._planner.close()

    async def _make(self, task: PlanTask) -> None:
        try:
            plan_result = await asyncio.get_running_loop().run_in_executor(self._thread, self._planner.plan, task)
        except Exception as error:  # whatever is wrong with a plan, the hub goes on with the last one
            self._failed(f"{type(error).__name__}: {error}")
        else:
            self._made(plan_result)
