"""Counts the actors that run a version, and names those that do not yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p2psync.membership.records import Member
from p2psync.protocol.versions import Position

#: Nodes that a message names; of further ones it gives the number.
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Adoption:
    """The number of live actors that run a version. waiting: the actors that do not run it."""

    version: int
    running: int
    waiting: tuple[Member, ...]

    def reached(self, actors: int) -> bool:
        """Returns whether at least `actors` actors run it."""
        return self.running >= actors

    def out_of_time(self, actors: int, timeout: float, *, announced: bool) -> str:
        """Returns why a publish timed out, in one line. actors: how many it waited for. timeout: seconds.

        announced: whether the hub has the version's announcement.
        """
        if not announced:
            return f"the hub did not take it within {timeout:g} s: is it up? Publish again"
        if not self.running and not self.waiting:
            return f"no actor came for it within {timeout:g} s; it stays announced: publish again to seed it"
        lacking = "" if self.reached(actors) else f", {actors} were asked for"
        return f"after {timeout:g} s {self}{lacking}; it stays announced: publish again to seed it"

    def __str__(self) -> str:
        """Returns which actors are missing, as a part of a line."""
        if not self.waiting:
            return f"{self.running} of {self.running} actors run version {self.version}"
        named = ", ".join(_named(member) for member in self.waiting[:MAX_NAMED])
        more = len(self.waiting) - MAX_NAMED
        rest = f" and {more} more" if more > 0 else ""
        there = self.running + len(self.waiting)
        return f"{self.running} of {there} actors run version {self.version}; missing: {named}{rest}"


def adoption_of(members: Iterable[Member], live: Position | None) -> Adoption:
    """Returns which actors among these members run the version `live`; None: there is no version."""
    actors = [member for member in members if member.info.role == "actor"]
    digest, version = (live.digest.hex(), live.version) if live is not None else ("", -1)
    waiting = tuple(member for member in actors if member.digest != digest)
    return Adoption(version, len(actors) - len(waiting), waiting)


def _named(member: Member) -> str:
    runs = "nothing" if member.version is None else f"version {member.version}"
    where = f" at {member.info.host}" if member.info.host else ""
    return f"{member.info.node[:8]}{where} (runs {runs})"
