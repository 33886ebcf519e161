"""The background scrub: reads every live bit in rounds, to find damage that no commit touches.

A commit checks only what it changes, in O(changed). The scrub finds bits that rotted on a disk or that another process
overwrote. It reads one tensor at a time in the engine's thread, between its other work, for a small share of the time.
A commit during a round starts the round over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from p2psync.delta.digest import MODULUS, digest_bytes, digest_units
from p2psync.delta.tensors import TensorSpec
from p2psync.engines.base import Engine
from p2psync.errors import P2PSyncError
from p2psync.protocol.versions import Position

#: Minimum pause after each tensor (seconds). A smaller one reads small models all the time.
MIN_PAUSE_SECONDS = 0.05


class EngineThread(Protocol):
    """Runs a call in the engine's thread."""

    def __call__(self, call: Callable[[], int | None]) -> Awaitable[int | None]:
        """Waits for the call and returns its result."""


class EngineScrubber:
    """Scrubs one engine."""

    def __init__(
        self, engine: Engine, in_worker: EngineThread, share: float, min_pause_seconds: float = MIN_PAUSE_SECONDS
    ) -> None:
        """share: of the engine thread's time, above 0 and at most 1. min_pause_seconds: after each tensor (seconds)."""
        self._engine = engine
        self._in_worker = in_worker
        self._share = share
        self._min_pause_seconds = min_pause_seconds

    async def run(self, vouched: Callable[[], Position | None], on_damage: Callable[[Position], None]) -> None:
        """Scrubs until it is cancelled; calls `on_damage` with a live version whose bits are not the committed ones.

        vouched: returns the position that counts as live; None while it is known to be damaged.
        """
        while True:
            await asyncio.sleep(self._min_pause_seconds)
            position = vouched()
            if position is None or position != self._engine.position:
                continue
            if await self.scrub_once() is False and vouched() == position:
                on_damage(position)

    async def scrub_once(self) -> bool | None:
        """Scrubs one round: returns whether every live bit is the committed one; None if a commit came in between."""
        position = self._engine.position
        if position is None:
            return None
        total = 0
        for spec in list(self._engine.table()):
            begun = time.perf_counter()
            digest = await self._in_worker(partial(self._digest, spec, position))
            if self._engine.position != position:
                return None
            if digest is None:
                break
            total += digest
            spent = time.perf_counter() - begun
            await asyncio.sleep(max(self._min_pause_seconds, spent / self._share - spent))
        if digest_bytes(total % MODULUS) == position.digest:
            return True
        return bool(await self._in_worker(self._scrub))

    def _scrub(self) -> bool:
        """Runs the engine's own scrub, after which the engine does not trust wrong bits."""
        try:
            return self._engine.scrub()
        except (P2PSyncError, OSError):
            return False

    def _digest(self, spec: TensorSpec, position: Position) -> int | None:
        """Returns a tensor's digest; None if its bits cannot be read at all."""
        try:
            return digest_units(spec, self._engine.units(spec)) if self._engine.position == position else 0
        except (P2PSyncError, OSError):
            return None
