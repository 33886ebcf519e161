"""Which version is live, read where commits pass: at the gate, so that it is never that of a commit half way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from p2psync.actor.commit_lock import Gate
from p2psync.actor.demand import Reading
from p2psync.protocol.versions import Position


class Live(Protocol):
    """What an engine holds, as whoever answers requests asks for it."""

    async def read(self) -> Reading:
        """What is live, outside of any commit."""

    def hold(self) -> AbstractAsyncContextManager[Reading]:
        """Keep commits out meanwhile."""


class LiveVersion:
    """What an engine holds whose commits pass `gate`."""

    def __init__(self, gate: Gate, position: Callable[[], Position | None]) -> None:
        """position: of the engine; changed only inside `gate.closed`."""
        self._gate = gate
        self._position = position

    async def read(self) -> Reading:
        """What is live, after the commit at hand, if there is one."""
        async with self.hold() as reading:
            return reading

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Reading]:
        """Keep commits out meanwhile. Raises what the gate was ended with."""
        async with self._gate.holding():
            yield Reading(position=self._position(), commits=self._gate.commits)
