"""Schedules squashes: watches which members are behind, and makes one squash at a time, while publishing goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from p2psync.engines.compose import BASE_FREE_PROFILES
from p2psync.errors import P2PSyncError
from p2psync.membership.records import Announcement, View
from p2psync.observe.events import Event, Squashed, Trouble
from p2psync.protocol.lineage import is_squash
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.trainer.squash.planner import MIN_REPLACED_DELTAS, SquashPlan, SquashPlanner
from p2psync.trainer.squash.squasher import BuiltSquash, Squasher, SquashPreempted
from p2psync.trainer.versions.builder import LocalVersionBuilder
from p2psync.trainer.versions.profile_choice import BITS

#: The share of a core that squashing may take: after each squash there is a pause of its duration over this share.
SHARE = 0.1


class SquashScheduler:
    """Schedules the squashes for the members of one trainer's run; on one loop."""

    def __init__(
        self,
        store: Store,
        squasher: Squasher,
        planner: SquashPlanner,
        *,
        versions: LocalVersionBuilder,
        publishing: asyncio.Lock,
        lineage: Callable[[], list[Announcement]],
        offer: Callable[[Pack], None],
        on_event: Callable[[Event], None],
    ) -> None:
        """versions: builds the versions; their head does not move while `publishing` is held. lineage: the
        announcements of the store's packs.

        offer: serves a squash, and has it announced.
        """
        self._store = store
        self._squasher = squasher
        self._planner = planner
        self._versions = versions
        self._publishing = publishing
        self._waiting = threading.Event()
        self._lineage = lineage
        self._offer = offer
        self._emit = on_event
        self._view: View | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tried: tuple[Announcement, ...] = ()
        self._stopped = False

    def viewed(self, view: View) -> None:
        """Take in the hub's view, and start a squash if members are behind."""
        self._view = view
        self._start_if_useful()

    def preempt(self) -> None:
        """Give up a squash that holds up the next version, and make it in a profile that does not."""
        self._waiting.set()

    async def stop(self) -> None:
        """Give up the squash that is being made, and wait until it has ended."""
        self._stopped = True
        self._squasher.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def _start_if_useful(self) -> None:
        if self._stopped or self._task is not None or self._timer is not None or self._view is None:
            return
        actors = [member for member in self._view.members if member.info.role == "actor"]
        head = self._view.head or 0
        if not any(actor.version is None or actor.version + MIN_REPLACED_DELTAS <= head for actor in actors):
            return
        lineage = self._lineage()
        manifests = {pack.signed.id.hex(): pack.manifest for pack in self._store.packs()}
        if any(a.id not in manifests for a in lineage):
            return  # a pack is being removed; the next view comes after that
        profile = _profile(lineage)
        plan = self._planner.plan(lineage, actors, manifests.__getitem__, lambda other: BITS[profile] / BITS[other])
        if plan is not None and plan.chain != self._tried:
            # A squash that came to nothing is not tried again until the head has moved on.
            self._tried = plan.chain
            self._task = asyncio.create_task(self._squash(plan, profile))

    async def _make(self, plan: SquashPlan, profile: str) -> BuiltSquash | None:
        if profile not in BASE_FREE_PROFILES:
            self._waiting.clear()
            async with self._publishing:
                live, end = self._versions.position, plan.chain[-1]
                if live is not None and (live.version, live.digest.hex()) == (end.version, end.digest):
                    with suppress(SquashPreempted):
                        return await asyncio.to_thread(
                            self._squasher.make, plan, self._versions.snapshot.units, self._waiting.is_set
                        )
        return await asyncio.to_thread(self._squasher.make, plan)

    async def _squash(self, plan: SquashPlan, profile: str) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            made = await self._make(plan, profile)
            if made is not None and not self._stopped:
                self._offer(made.pack)
                self._emit(_squashed(made))
        except (P2PSyncError, OSError, ValueError, MemoryError) as error:
            if not self._stopped:
                self._emit(Trouble(f"no squash for those behind: {error}"))
        finally:
            self._task = None
        if not self._stopped:
            self._timer = loop.call_later((loop.time() - began) / SHARE, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self._start_if_useful()


def _squashed(made: BuiltSquash) -> Squashed:
    m = made.pack.manifest
    return Squashed(
        base=m.base or 0,
        version=m.version,
        steps=made.steps,
        payload_bytes=m.payload_bytes,
        chain_bytes=made.chain_bytes,
        seconds=made.seconds,
        profile=m.profile,
    )


def _profile(lineage: list[Announcement]) -> str:
    """Returns the profile of the newest delta, which is the one chosen now; "fast" without deltas."""
    deltas = [a for a in lineage if a.base is not None and not is_squash(a)]
    return max(deltas, key=lambda a: (a.epoch, a.version)).profile if deltas else "fast"
