"""Whether the newest version is one that actors can run. Pure: time is an argument.

A trainer checks a version before it signs it; this is the check that rests on nothing of the trainer's. Actors tell the hub
what they run, and which version they refused since its bits were not those that were signed. A version that some refuse
and none runs, or that none runs though earlier ones were run long before, is given up on once, and the trainer replaces
it. A single refusal proves nothing (an actor may lie, or be damaged itself): so it costs the trainer one look at its own
bits and one anchor a version at most, and nothing once an actor runs the version.
"""

from __future__ import annotations

from collections.abc import Iterable

from p2psync.membership.records import Member
from p2psync.protocol.versions import Position

#: Seconds after a first refusal that actors which neither run nor refuse the version are waited for.
PATIENCE = 10.0
#: Without any refusal, so many times as long is waited as any version took until an actor ran it, and so many seconds at
#: least: slow links are no fault.
TIMES, LEAST_WAIT = 10.0, 120.0


class Acceptance:
    """What became of the versions of one trainer."""

    def __init__(self) -> None:
        self._live: Position | None = None
        self._since = 0.0
        self._refused_at = float("inf")
        self._slowest: float | None = None
        self._settled = True

    @property
    def settled(self) -> bool:
        """Whether nothing is to be looked for: some actor runs the newest version, or it was given up on."""
        return self._settled

    def published(self, position: Position, now: float) -> None:
        """This is the newest version. No effect for one that is known, such as an anchor of it."""
        if position != self._live:
            self._live, self._since, self._settled = position, now, False
            self._refused_at = float("inf")

    def look(self, members: Iterable[Member], now: float) -> str | None:
        """Look at the members; returns, once a version, why it is to be replaced: the first part of a line."""
        live = self._live
        if live is None or self._settled:
            return None
        digest = live.digest.hex()
        actors = [member for member in members if member.info.role == "actor"]
        if any(actor.digest == digest for actor in actors):
            self._settled, self._slowest = True, max(self._slowest or 0.0, now - self._since)
            return None
        reason = self._reason(live, digest, actors, now)
        self._settled = reason is not None
        return reason

    def _reason(self, live: Position, digest: str, actors: list[Member], now: float) -> str | None:
        refusing = sum(actor.refused == digest for actor in actors)
        if refusing:
            self._refused_at = min(self._refused_at, now)
            if refusing == len(actors) or now - self._refused_at >= PATIENCE:
                return f"version {live.version} has other bits than were signed at {refusing} actors, and none runs it"
            return None
        if actors and self._slowest is not None:
            waited = now - self._since
            if waited >= max(LEAST_WAIT, TIMES * self._slowest):
                return f"version {live.version} is run by none of {len(actors)} actors after {waited:.0f} s"
        return None
