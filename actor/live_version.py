"""Reads the live version under the commit lock, so that it is never that of a commit half way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from p2psync.actor.commit_lock import CommitLock
from p2psync.actor.demand import LiveState
from p2psync.protocol.versions import Position


class LiveVersionReader(Protocol):
    """Reads the live version of an engine, for a server of rollout requests."""

    async def read(self) -> LiveState:
        """Returns the live version, outside of any commit."""

    def hold(self) -> AbstractAsyncContextManager[LiveState]:
        """Keeps commits out within the context."""


class LiveVersion:
    """The live version of an engine whose commits hold `commit_lock`."""

    def __init__(self, commit_lock: CommitLock, position: Callable[[], Position | None]) -> None:
        """position: of the engine; changed only inside `commit_lock.write_lock`."""
        self._commit_lock = commit_lock
        self._position = position

    async def read(self) -> LiveState:
        """Returns the live version, after a commit under way, if there is one."""
        async with self.hold() as state:
            return state

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[LiveState]:
        """Keeps commits out within the context. Raises the error with which the lock was ended."""
        async with self._commit_lock.read_lock_async():
            yield LiveState(position=self._position(), commits=self._commit_lock.commits)
