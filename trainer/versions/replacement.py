"""Replaces published versions that cannot be used: versions that no actor runs, and packs with a damaged chunk."""

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
from p2psync.trainer.versions.pack_reader import pack_name

#: How often the hub is asked whether an actor runs the newest version, until one does (seconds).
LOOK_SECONDS = 3.0
#: How long peers have to send a chunk that was found damaged here (seconds).
REPLACE_AFTER_SECONDS = 3.0


class TaskRunner(Protocol):
    """Runs tasks as long as a node runs."""

    def start_task(self, coroutine: Coroutine[object, object, None]) -> None: ...


class PublishingNode(Protocol):
    """The trainer's node, as far as a replacement needs it."""

    @property
    def runner(self) -> TaskRunner: ...
    async def write_whole(self) -> None: ...
    def withdraw(self, id: bytes) -> None: ...


class Replacement:
    """Replaces unusable versions of one trainer; on its loop."""

    def __init__(
        self,
        node: PublishingNode,
        store: Store,
        acceptance: Acceptance,
        members: Callable[[], Awaitable[Sequence[Member]]],
        on_event: Callable[[Event], None],
    ) -> None:
        """members: asks the hub for the members; may raise `P2PSyncError`."""
        self._node = node
        self._store = store
        self._acceptance = acceptance
        self._members = members
        self._emit = on_event
        self._losses: set[bytes] = set()

    async def run(self) -> None:
        """Watch for ever whether actors run the newest version, and replace it if they do not."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._acceptance.settled:
                with suppress(P2PSyncError):  # the announcer tells of a hub that is away
                    await self._look()

    async def _look(self) -> None:
        reason = self._acceptance.check(await self._members(), time.monotonic())
        if reason is not None:
            self._emit(Trouble(f"{reason}: verifying the published bits, and writing them out whole"))
            await self._node.write_whole()

    def lost(self, id: bytes) -> None:
        """Take in that a chunk of this manifest is damaged here; withdraw the manifest if no peer sends it soon."""
        if id not in self._losses:
            self._losses.add(id)
            self._node.runner.start_task(self._replace(id))

    async def _replace(self, id: bytes) -> None:
        await asyncio.sleep(REPLACE_AFTER_SECONDS)
        self._losses.discard(id)
        pack = self._store.get(id)
        if pack is not None and not pack.complete:
            self._emit(Trouble(f"{pack_name(pack)} has a damaged chunk that nobody else has: it is taken back"))
            self._node.withdraw(id)
