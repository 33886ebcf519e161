"""Detects published versions that actors cannot run. Pure: time is an argument.

A trainer checks a version before it signs it. This check is independent of the trainer: actors report to the hub which
version they run, and which version they rejected because its bits differ from the signed digest. The monitor gives up
on a version if some actors reject it and none runs it, or if none runs it long after earlier versions were run. It
gives up once per version, and the trainer then replaces it. A rejection proves nothing, since the actor may lie or be
damaged: it costs the trainer at most one check of its own bits and one anchor per version, and nothing once an actor
runs the version.
"""

from __future__ import annotations

from collections.abc import Iterable

from p2psync.membership.records import Member
from p2psync.protocol.versions import Position

#: Seconds after the first rejection within which the remaining actors may still run the version. A longer wait delays
#: the replacement, a shorter one replaces versions that slow actors would run.
REFUSAL_WAIT_SECONDS = 10.0
#: Without any rejection, a version is given up on after this many times the longest time that any version took until an
#: actor ran it, and after this many seconds at least: slow links are no fault.
COMMIT_WAIT_FACTOR, COMMIT_WAIT_MIN_SECONDS = 10.0, 120.0
#: Versions without an actor whose rejections still count: an actor that is behind rejects an earlier version.
MAX_OPEN_VERSIONS = 256


class Acceptance:
    """Tracks, for the versions of one trainer, whether actors run them."""

    def __init__(self) -> None:
        self._live: Position | None = None
        # Digests (hex) of the versions after the last one that some actor ran, oldest first.
        self._open: dict[str, None] = {}
        self._since = 0.0
        self._refused_at = float("inf")
        self._slowest: float | None = None

    @property
    def settled(self) -> bool:
        """Whether nothing is left to check: an actor runs the newest version, or it was given up on."""
        return not self._open

    def published(self, position: Position, now: float) -> None:
        """Records the newest version; does nothing for a known one, such as an anchor of a published version."""
        if position == self._live:
            return
        if not self._open:
            self._since, self._refused_at = now, float("inf")
        self._live = position
        self._open[position.digest.hex()] = None
        if len(self._open) > MAX_OPEN_VERSIONS:
            del self._open[next(iter(self._open))]

    def check(self, members: Iterable[Member], now: float) -> str | None:
        """Compares the members with the open versions. Returns, once per version, the first part of a line that says
        why the version must be replaced; None if it need not be."""
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
