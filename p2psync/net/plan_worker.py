"""Runs the hub's planner in its own thread, so that planning does not block the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from p2psync.membership.planning import Planner, PlanResult, PlanTask


class PlanWorker:
    """Warms a planner, then carries out one task at a time. Use it on one loop."""

    def __init__(self, planner: Planner, made: Callable[[PlanResult], None], failed: Callable[[str], None]) -> None:
        """made, failed: called on the loop with each task's outcome."""
        self._planner = planner
        self._made = made
        self._failed = failed
        self._thread = ThreadPoolExecutor(1, "p2psync-planner")
        self._tasks: set[asyncio.Task[None]] = set()

    async def warm(self) -> None:
        """Waits until the planner has compiled what it needs. The first plan reports any failure of it."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(Exception):
            await loop.run_in_executor(self._thread, self._planner.warm)

    def make(self, task: PlanTask) -> None:
        """Starts a plan; `made` or `failed` receives its outcome."""
        making = asyncio.get_running_loop().create_task(self._make(task))
        self._tasks.add(making)
        making.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Starts and reports nothing more; a plan that is being made ends by itself."""
        for task in self._tasks:
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._planner.close()

    async def _make(self, task: PlanTask) -> None:
        try:
            plan_result = await asyncio.get_running_loop().run_in_executor(self._thread, self._planner.plan, task)
        except Exception as error:  # whatever a planner raises, the hub keeps the last plan
            self._failed(f"{type(error).__name__}: {error}")
        else:
            self._made(plan_result)
