"""Whether the newest versions are such that actors can run them. Pure: time is an argument.

A trainer checks a version before it signs it; this is the check that rests on nothing of the trainer's. Actors tell the
hub what they run, and which version they refused since its bits were not those that were signed. Versions that some
refuse and none runs, or that none runs though earlier ones were run long before, are given up on once, and the trainer
replaces them. A refusal proves nothing (an actor may lie, or be damaged itself): so it costs the trainer one look at
its own bits and one anchor for each version at most, and nothing once an actor runs the version.
"""

from __future__ import annotations

from collections.abc import Iterable

from p2psync.membership.records import Member
from p2psync.protocol.versions import Position

#: Seconds after a first refusal that actors which neither run nor refuse a version are waited for.
REFUSAL_WAIT_SECONDS = 10.0
#: Without any refusal, so many times as long is waited as any version took until an actor ran it, and so many seconds
#: at least: slow links are no fault.
COMMIT_WAIT_FACTOR, COMMIT_WAIT_MIN_SECONDS = 10.0, 120.0
#: Versions that no actor runs yet of which refusals count; an actor that is behind refuses an earlier one.
MAX_OPEN_VERSIONS = 256


class Acceptance:
    """What became of the versions of one trainer."""

    def __init__(self) -> None:
        self._live: Position | None = None
        # Digests (hex) of the versions since the last one that some actor ran, in rising order.
        self._open: dict[str, None] = {}
        self._since = 0.0
        self._refused_at = float("inf")
        self._slowest: float | None = None

    @property
    def settled(self) -> bool:
        """Whether nothing is to be looked for: some actor runs the newest version, or it was given up on."""
        return not self._open

    def published(self, position: Position, now: float) -> None:
        """This is the newest version. No effect for one that is known, such as an anchor of it."""
        if position == self._live:
            return
        if not self._open:
            self._since, self._refused_at = now, float("inf")
        self._live = position
        self._open[position.digest.hex()] = None
        if len(self._open) > MAX_OPEN_VERSIONS:
            del self._open[next(iter(self._open))]

    def check(self, members: Iterable[Member], now: float) -> str | None:
        """Look at the members; returns, once for each version, why it is to be replaced: the first part of a line."""
        actors = [member for member in members if member.info.role == "actor"]
        run = {actor.digest for actor in actors} & self._open.keys()
        if run:
            self._slowest = max(self._slowest or 0.0, now - self._since)
            newest = max(list(self._open).index(digest) for digest in run)
            self._open = dict.fromkeys(list(self._open)[newest + 1 :])
            self._since, self._refused_at = now, float("inf")
        reason = self._reason(actors, now) if self._open else None
        if reason is not None:
            self._open = {}
        return reason

    def _reason(self, actors: list[Member], now: float) -> str | None:
        assert self._live is not None
        number = self._live.version
        refusing = sum(actor.rejected in self._open for actor in actors)
        if refusing:
            self._refused_at = min(self._refused_at, now)
            if refusing == len(actors) or now - self._refused_at >= REFUSAL_WAIT_SECONDS:
                return (
                    f"version {number} is run by none of {len(actors)} actors, {refusing} found other bits than signed"
                )
        elif actors and self._slowest is not None:
            waited = now - self._since
            if waited >= max(COMMIT_WAIT_MIN_SECONDS, COMMIT_WAIT_FACTOR * self._slowest):
                return f"version {number} is run by none of {len(actors)} actors after {waited:.0f} s"
        return None
