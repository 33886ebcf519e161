"""Writes the newest version out whole where an anchor is due, while training goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from p2psync.errors import P2PSyncError
from p2psync.observe.events import Event, Note, Trouble
from p2psync.protocol.versions import Position
from p2psync.trainer.announcer import Announcer
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.versions.builder import BuiltVersion
from p2psync.trainer.versions.retention import anchor_due, newest_anchor


class AnchorWriter:
    """Writes the anchors of one trainer; on one loop."""

    def __init__(
        self,
        config: TrainerConfig,
        announcer: Announcer,
        publishing: asyncio.Lock,
        *,
        make_anchor: Callable[[], BuiltVersion],
        offer: Callable[[BuiltVersion], object],
        on_event: Callable[[Event], None],
    ) -> None:
        """publishing: held while a version is made. make_anchor: builds the anchor; blocking, called in a thread.

        offer: serves the anchor and has it announced.
        """
        self._config = config
        self._announcer = announcer
        self._publishing = publishing
        self._make_anchor = make_anchor
        self._offer = offer
        self._emit = on_event
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start_if_due(self, position: Position | None) -> None:
        """Begin to write an anchor, unless none is due or one is being written. position: the newest version."""
        if self._task is not None:
            return
        config, lineage = self._config, self._announcer.lineage()
        why = anchor_due(
            lineage,
            config.anchor_ratio,
            deltas=config.anchor_deltas,
            seconds=config.anchor_seconds,
            age=self._announcer.age(newest_anchor(lineage)),
        )
        if not lineage and position is not None:
            why = "none of the versions is here any more"
        if why:
            self._task = asyncio.create_task(self.write(why))

    async def write(self, why: str) -> None:
        """Write the newest version out whole, and tell people why. A failure is told and not raised."""
        try:
            async with self._publishing:
                if not self._stopping:
                    self._emit(Note(f"writing the newest version out whole: {why}"))
                    self._offer(await asyncio.to_thread(self._make_anchor))
        except P2PSyncError as error:
            if not self._stopping:
                self._emit(Trouble(f"no new anchor yet: {error}"))
        finally:
            self._task = None

    async def written(self) -> None:
        """Wait until an anchor that is being written is durable."""
        if self._task is not None:
            await asyncio.shield(self._task)

    def stop(self) -> None:
        """Write no more anchors; one that is being written goes on until its builder stops."""
        self._stopping = True
