"""Which path leads to a version for the fewest bytes, and when a cheaper one is worth a switch. Sans-I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from p2psync.membership.records import Announcement
from p2psync.protocol.lineage import VersionKey, missing_bytes, resolve, target_key
from p2psync.swarm.synchronizer.config import FAILURES_TO_AVOID, MAX_SWITCHES, SWITCH_MAX_SHARE


class PathChooser:
    """Compares paths by the bytes that are missing here.

    A manifest that failed `FAILURES_TO_AVOID` times is avoided while another path exists, in the end an anchor.
    """

    def __init__(self, switch_bytes: int) -> None:
        """switch_bytes: that a switch must save."""
        self._switch_bytes = switch_bytes
        # Bytes held here of each manifest, and its failures since the last commit, by id (hex).
        self._held: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._switches = 0

    def holds(self, id: str, nbytes: int) -> None:
        """Sets the bytes that are held of a manifest."""
        self._held[id] = nbytes

    def gained(self, id: str, nbytes: int) -> None:
        """Adds bytes to those held; below 0: they were lost."""
        self._held[id] = self._held.get(id, max(0, -nbytes)) + nbytes

    def forget(self, id: str) -> None:
        """Forgets what is held of a manifest."""
        self._held.pop(id, None)

    def failed(self, ids: Iterable[str]) -> None:
        """Counts a failure of each manifest."""
        for id in ids:
            self._failures[id] = self._failures.get(id, 0) + 1

    def committed(self) -> None:
        """Forgets failures and switches."""
        self._failures.clear()
        self._switches = 0

    def path(
        self, lineage: Sequence[Announcement], start: VersionKey | None, end: VersionKey
    ) -> list[Announcement] | None:
        """Returns the path of the fewest missing bytes; None: no path leads there."""
        trusted = [a for a in lineage if self._failures.get(a.id, 0) < FAILURES_TO_AVOID]
        path = resolve(trusted, start, end, self._held)
        return path if path is not None else resolve(lineage, start, end, self._held)

    def switch(
        self,
        lineage: Sequence[Announcement],
        start: VersionKey | None,
        end: VersionKey,
        begun: list[Announcement],
    ) -> list[Announcement] | None:
        """Returns a path that is worth leaving the one begun for, and counts the switch; None: there is none.

        It must need clearly fewer bytes than the rest of the path begun and the path from there to the same version.
        """
        if self._switches >= MAX_SWITCHES:
            return None
        path = self.path(lineage, start, end)
        after = resolve(lineage, target_key(begun[-1]), end, self._held)
        if not path or after is None or path == begun:
            return None
        stay = missing_bytes(begun, self._held) + missing_bytes(after, self._held)
        if missing_bytes(path, self._held) > min(SWITCH_MAX_SHARE * stay, stay - self._switch_bytes):
            return None
        self._switches += 1
        return path
