"""Members whose live version is of another run than this trainer's, or of a later epoch of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from p2psync.membership.records import Member
from p2psync.observe.events import ActorsOnNewerRun


class OtherRuns:
    """The members of a hub whose versions are not of one trainer's run. Versions of two runs are unrelated."""

    def __init__(self, run: str, epoch: int) -> None:
        """run, epoch: the trainer's."""
        self._run = run
        self._epoch = epoch
        # How many members the last warning named, by the newest run and epoch among them.
        self._told: dict[tuple[str, int], int] = {}

    def without_other_runs(self, members: Iterable[Member]) -> list[Member]:
        """Returns the members of this run, and those of older runs as members without a version.

        Members at a newer run do not take this trainer's versions and are left out, except for trainers.
        """
        seen = []
        for member in members:
            if member.run in ("", self._run):
                seen.append(member)
            elif member.run < self._run or member.info.role == "trainer":
                seen.append(msgspec.structs.replace(member, version=None, digest="", run="", epoch=0))
        return seen

    def warning(self, members: Iterable[Member]) -> ActorsOnNewerRun | None:
        """Returns a warning about members that will not take this trainer's versions, being at a newer run or epoch.

        It comes once, and again whenever there are twice as many of them; None otherwise.
        """
        ahead = [(member.run, member.epoch) for member in members if member.info.role != "trainer"]
        ahead = [place for place in ahead if place > (self._run, self._epoch)]
        if not ahead:
            self._told.clear()
            return None
        newest = max(ahead)
        if len(ahead) < 2 * self._told.get(newest, 0):
            return None
        self._told = {newest: len(ahead)}
        return ActorsOnNewerRun(len(ahead), *newest, self._run, self._epoch)
