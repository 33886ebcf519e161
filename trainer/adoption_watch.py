"""Waits until actors run the newest version, and tells people now and then which ones are missing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from p2psync.errors import HubError
from p2psync.membership.records import Member
from p2psync.observe.events import Event, Note
from p2psync.protocol.versions import Position
from p2psync.trainer.adoption import Adoption, adoption_of

#: How often `until_running` asks the hub, and tells which actors are missing (seconds).
POLL_SECONDS, TELL_SECONDS = 0.2, 10.0


class AdoptionWatch:
    """Watches which actors run the newest version of one trainer; on one loop."""

    def __init__(
        self,
        members: Callable[[], Awaitable[Sequence[Member]]],
        position: Callable[[], Position | None],
        on_event: Callable[[Event], None],
    ) -> None:
        """members: asks the hub; may raise `HubError`. position: the newest version."""
        self._members = members
        self._position = position
        self._emit = on_event
        #: The state that `until_running` saw last.
        self.latest = Adoption(-1, 0, ())

    async def until_running(self, actors: int, straggler_timeout: float = math.inf) -> None:
        """Wait until at least `actors` actors, and all others that the hub knows, run the newest version.

        straggler_timeout: seconds to wait for the others once `actors` of them run it. It polls, since an
        acknowledgement raises no revision of the hub's view. While the hub is away it goes on waiting.
        """
        clock = asyncio.get_running_loop().time
        tell_at, give_up_at = clock() + TELL_SECONDS, math.inf
        while True:
            with suppress(HubError):
                self.latest = adoption_of(await self._members(), self._position())
            if self.latest.reached(actors):
                give_up_at = min(give_up_at, clock() + straggler_timeout)
                if not self.latest.waiting or clock() >= give_up_at:
                    return
            if clock() >= tell_at:
                tell_at = clock() + TELL_SECONDS
                self._emit(Note(f"waiting: {self.latest}"))
            await asyncio.sleep(POLL_SECONDS)
