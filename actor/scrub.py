"""The background scrub: now and then every live bit is read, so that damage which no commit touches is found too.

A commit checks what it changes, in O(changed). Bits that rot on a disk, or that another process wrote over, are found
here. Tensors are read one at a time in the engine's thread, between its other work, and only for a small share of the
time; a commit in the middle begins the round anew.
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

#: The pause after each tensor is at least this (seconds), so that small models are not read all the time.
MIN_PAUSE_SECONDS = 0.05


class EngineThread(Protocol):
    """Calls something in the engine's thread."""

    def __call__(self, call: Callable[[], int | None]) -> Awaitable[int | None]:
        """Wait for what it returns."""


class Scrubber:
    """Scrubs one engine."""

    def __init__(
        self, engine: Engine, in_worker: EngineThread, share: float, least_pause: float = MIN_PAUSE_SECONDS
    ) -> None:
        """share: of the engine thread's time, above 0 and at most 1."""
        self._engine = engine
        self._in_worker = in_worker
        self._share = share
        self._least_pause = least_pause

    async def run(self, vouched: Callable[[], Position | None], doubt: Callable[[Position], None]) -> None:
        """Scrub for ever; `doubt` is told of a live version whose bits are not those that were committed.

        vouched: what is believed to be live; None while it is doubted already and being fetched anew.
        """
        while True:
            await asyncio.sleep(self._least_pause)
            position = vouched()
            if position is None or position != self._engine.position:
                continue
            if await self.sound() is False and vouched() == position:
                doubt(position)

    async def sound(self) -> bool | None:
        """One round: whether every live bit is what was committed; None if a commit came in between."""
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
            await asyncio.sleep(max(self._least_pause, spent / self._share - spent))
        if digest_bytes(total % MODULUS) == position.digest:
            return True
        return bool(await self._in_worker(self._scrub))

    def _scrub(self) -> bool:
        """The engine's own look, after which it does not trust those bits itself."""
        try:
            return self._engine.scrub()
        except (P2PSyncError, OSError):
            return False

    def _digest(self, spec: TensorSpec, position: Position) -> int | None:
        """None if the bits cannot be read at all."""
        try:
            return digest_units(spec, self._engine.units(spec)) if self._engine.position == position else 0
        except (P2PSyncError, OSError):
            return None
