"""The versions that one node knows: those that the hub announced, and later ones from peers. Sans-I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from p2psync.membership.records import Announcement, View
from p2psync.protocol.lineage import newest_announcement
from p2psync.protocol.versions import Position
from p2psync.swarm.synchronizer.config import MAX_GOSSIPED


class KnownVersions:
    """The hub's last view, and the versions that peers announced since.

    A trainer that comes back announces its lineage in rising order of epochs and versions. So a manifest counts as gone
    only if it is not announced and the newest announced version is not before it.
    """

    def __init__(self) -> None:
        self.view: View | None = None
        #: The newest version that the hub announced.
        self.head: Announcement | None = None
        self._gossiped: dict[str, Announcement] = {}

    @property
    def run(self) -> str:
        """The run that the hub offers; "" before its first view."""
        return self.view.run if self.view is not None else ""

    @property
    def lineage(self) -> list[Announcement]:
        """The announcements of all known versions."""
        return [*(self.view.lineage if self.view is not None else ()), *self._gossiped.values()]

    @property
    def newest(self) -> Announcement | None:
        """The newest known version."""
        return newest_announcement(self.lineage)

    def update(self, view: View) -> bool:
        """Takes the hub's view; returns whether its run or epoch is another than before."""
        before = self.view
        is_other = before is None or (view.run, view.epoch) != (before.run, before.epoch)
        self.view, self.head = view, newest_announcement(view.lineage)
        self._gossiped = {id: a for id, a in self._gossiped.items() if not is_other and self.is_ahead(a)}
        return is_other

    def drop_view(self) -> None:
        """Forgets the hub's view."""
        self.view = self.head = None

    def add_gossiped(self, announcement: Announcement, run: str) -> bool:
        """Adds a peer's version; returns whether it is new, and later than all that the hub announced."""
        view = self.view
        if view is None or (run, announcement.epoch) != (view.run, view.epoch) or announcement.id in self._gossiped:
            return False
        if not self.is_ahead(announcement):
            return False
        if len(self._gossiped) >= MAX_GOSSIPED:
            del self._gossiped[next(iter(self._gossiped))]
        self._gossiped[announcement.id] = announcement
        return True

    def drop_gossiped(self, id: str) -> bool:
        """Forgets a version that only a peer announced; returns whether it is one."""
        return self._gossiped.pop(id, None) is not None

    def is_ahead(self, announcement: Announcement) -> bool:
        """Returns whether a version comes after the hub's newest."""
        head = self.head
        return head is None or (announcement.epoch, announcement.version) > (head.epoch, head.version)

    def has_announced(self, path: Iterable[Announcement]) -> bool:
        """Returns whether the hub has announced every manifest of a path."""
        return self.view is not None and {a.id for a in path} <= {a.id for a in self.view.lineage}

    def is_gone(self, id: str, run: str, epoch: int, version: int, kept: Collection[str]) -> bool:
        """Returns whether a manifest is withdrawn, and not among those kept (ids).

        Manifests of other runs, and unannounced ones up to the newest, count as withdrawn.
        """
        if self.head is None or self.view is None or id in kept:
            return False
        return run != self.view.run or (epoch, version) <= (self.head.epoch, self.head.version)

    def find(self, digest: str) -> tuple[Announcement, Position] | None:
        """Returns the announced version with this digest (hex), and a manifest that vouches for it.

        An end of a manifest goes before a base, and among ends the newest.
        """
        assert self.view is not None
        for a in sorted(self.view.lineage, key=lambda a: (a.epoch, a.version), reverse=True):
            if a.digest == digest:
                return a, self.position_of(a)
        for a in self.view.lineage:
            if a.base is not None and a.base_digest == digest:
                return a, self._position(a, a.base, digest)
        return None

    def position_of(self, announcement: Announcement) -> Position:
        """Returns the version that a manifest of the hub's run leads to."""
        return self._position(announcement, announcement.version, announcement.digest)

    def _position(self, a: Announcement, version: int, digest: str) -> Position:
        return Position(run=self.run, epoch=a.epoch, version=version, digest=bytes.fromhex(digest))
