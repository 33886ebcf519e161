"""The tasks of one node, and the error that ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class NodeTasks:
    """Runs tasks on the running loop. An exception of one ends the node."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._lasting: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def spawn(self, coroutine: Coroutine[object, object, None], *, lasting: bool = False) -> asyncio.Task[None]:
        """Runs a coroutine until it ends or the node stops. lasting: `cancel` waits for it instead."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        if lasting:
            self._lasting.add(task)
        task.add_done_callback(self._ended)
        return task

    def break_node(self, error: BaseException) -> None:
        """Ends the node: `until_broken` raises this error, if it is the first."""
        if not self._broken.done():
            self._broken.set_exception(error)

    async def until_broken(self) -> None:
        """Waits for the error that ends this node, and raises it; never returns."""
        await asyncio.shield(self._broken)

    async def unless_broken(self, coroutine: Coroutine[object, object, None]) -> None:
        """Waits for a coroutine; raises the error that ends this node if that comes first."""
        tasks = [asyncio.create_task(coroutine), asyncio.create_task(self.until_broken())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    async def cancel(self) -> None:
        """Cancels all tasks but lasting ones, and waits until every one has ended."""
        for task in self._tasks - self._lasting:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Ends the waits of `until_broken`."""
        self._broken.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._lasting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.break_node(error)
