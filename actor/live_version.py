"""Which version is live, read where commits pass: at the gate, so that it is never that of a commit half way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from p2psync.actor.commit_lock import CommitLock
from p2psync.actor.demand import LiveReading
from p2psync.protocol.versions import Position


class LiveVersionReader(Protocol):
    """What an engine holds, as whoever answers requests asks for it."""

    async def read(self) -> LiveReading:
        """What is live, outside of any commit."""

    def hold(self) -> AbstractAsyncContextManager[LiveReading]:
        """Keep commits out meanwhile."""


class LiveVersion:
    """What an engine holds whose commits pass `commit_lock`."""

    def __init__(self, commit_lock: CommitLock, position: Callable[[], Position | None]) -> None:
        """position: of the engine; changed only inside `commit_lock.write_lock`."""
        self._commit_lock = commit_lock
        self._position = position

    async def read(self) -> LiveReading:
        """What is live, after the commit at hand, if there is one."""
        async with self.hold() as reading:
            return reading

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[LiveReading]:
        """Keep commits out meanwhile. Raises what the gate was ended with."""
        async with self._commit_lock.read_lock_async():
            yield LiveReading(position=self._position(), commits=self._commit_lock.commits)
