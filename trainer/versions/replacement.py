"""What was published and nobody can get is replaced: versions that no actor runs, and packs with a damaged chunk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Protocol

from p2psync.errors import P2PSyncError
from p2psync.membership.acceptance import Acceptance
from p2psync.membership.records import Member
from p2psync.observe.events import Event, Trouble
from p2psync.store.packs import Store
from p2psync.trainer.versions.pack_reading import name_of

#: How often the hub is asked whether some actor runs the newest version, until one does (seconds).
LOOK_EVERY = 3.0
#: Peers have so long to bring a chunk that was found damaged here (seconds).
REPLACE_AFTER = 3.0


class Beside(Protocol):
    """What runs something as long as a node."""

    def run_beside(self, coroutine: Coroutine[object, object, None]) -> None: ...


class Publishing(Protocol):
    """A trainer's node."""

    @property
    def runner(self) -> Beside: ...
    async def write_out(self) -> None: ...
    def take_back(self, id: bytes) -> None: ...


class Replacing:
    """Replaces what one trainer published; on its loop."""

    def __init__(
        self,
        node: Publishing,
        store: Store,
        acceptance: Acceptance,
        members: Callable[[], Awaitable[Sequence[Member]]],
        on_event: Callable[[Event], None],
    ) -> None:
        """members: asks the hub who is there; raises `P2PSyncError`."""
        self._node = node
        self._store = store
        self._acceptance = acceptance
        self._members = members
        self._emit = on_event
        self._losses: set[bytes] = set()

    async def run(self) -> None:
        """Watch for ever over what becomes of the newest version."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if not self._acceptance.settled:
                with suppress(P2PSyncError):  # the announcer tells of a hub that is away
                    await self._look()

    async def _look(self) -> None:
        reason = self._acceptance.check(await self._members(), time.monotonic())
        if reason is not None:
            self._emit(Trouble(f"{reason}: verifying the published bits, and writing them out whole"))
            await self._node.write_out()

    def lost(self, id: bytes) -> None:
        """A chunk of this manifest is damaged here: peers may have it; else the manifest is taken back."""
        if id not in self._losses:
            self._losses.add(id)
            self._node.runner.run_beside(self._replace(id))

    async def _replace(self, id: bytes) -> None:
        await asyncio.sleep(REPLACE_AFTER)
        self._losses.discard(id)
        pack = self._store.get(id)
        if pack is not None and not pack.complete:
            self._emit(Trouble(f"{name_of(pack)} has a damaged chunk that nobody else has: it is taken back"))
            self._node.take_back(id)
