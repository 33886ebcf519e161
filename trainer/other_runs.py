"""Members whose live version is of another run than this trainer's, or of a later epoch of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from p2psync.membership.records import Member
from p2psync.observe.events import ActorsOnNewerRun


class Elsewhere:
    """What one trainer makes of its members' runs. Versions of two runs have nothing to do with each other."""

    def __init__(self, run: str, epoch: int) -> None:
        """run, epoch: the trainer's."""
        self._run = run
        self._epoch = epoch
        # Members that were told of, by the run and epoch that the most of them are at.
        self._told: dict[tuple[str, int], int] = {}

    def as_seen_here(self, members: Iterable[Member]) -> list[Member]:
        """The members without versions of other runs: who is at an older run has none of this one's yet, and who is at
        a newer one wants none."""
        seen = []
        for member in members:
            if member.run in ("", self._run):
                seen.append(member)
            elif member.run < self._run or member.info.role == "trainer":
                seen.append(msgspec.structs.replace(member, version=None, digest="", run="", epoch=0))
        return seen

    def news(self, members: Iterable[Member]) -> ActorsOnNewerRun | None:
        """What people must be told of members that will not take this trainer's versions: once, and again whenever
        twice as many are there."""
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
