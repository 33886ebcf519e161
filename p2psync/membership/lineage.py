"""The lineage: the manifests that the run's trainer has announced and not retired."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice, takewhile

import msgspec

from p2psync.errors import BaseMismatchError, LineageFullError
from p2psync.membership.records import Announcement
from p2psync.protocol.manifest import Manifest

#: Default bounds on the manifests of a hub, and on their bytes: every node reads a summary of all of them, and the hub
#: keeps them in memory.
MAX_MANIFESTS, MAX_MANIFEST_BYTES = 4096, 1 << 30


@dataclass(frozen=True)
class LineageEntry:
    """One announced manifest: its summary, and its signed bytes. since: the first revision that shows it."""

    announcement: Announcement
    data: bytes
    since: int


@dataclass
class _KnownVersions:
    """The versions of each epoch: one manifest per step, one digest per version."""

    steps: dict[tuple[int, int | None, int], str] = field(default_factory=dict)
    digests: dict[tuple[int, int], str] = field(default_factory=dict)

    def add(self, a: Announcement) -> None:
        """Records `a`; raises `BaseMismatchError` if it contradicts an earlier announcement."""
        other = self.steps.setdefault((a.epoch, a.base, a.version), a.id)
        if other != a.id:
            raise BaseMismatchError(
                f"epoch {a.epoch} has announced another manifest for {step_name(a)}; publish it as a new version"
            )
        self._check_digest(a.epoch, a.version, a.digest)
        if a.base is not None:
            self._check_digest(a.epoch, a.base, a.base_digest)

    def _check_digest(self, epoch: int, version: int, digest: str) -> None:
        if self.digests.setdefault((epoch, version), digest) != digest:
            raise BaseMismatchError(
                f"epoch {epoch} has announced version {version} with another digest; claim a higher epoch to fork"
            )


class Lineage:
    """Manifests by id, in the order they were announced, at most `max_manifests` of them and `max_bytes` in all."""

    def __init__(self, max_manifests: int = MAX_MANIFESTS, max_bytes: int = MAX_MANIFEST_BYTES) -> None:
        self._max_manifests = max_manifests
        self._max_bytes = max_bytes
        self._entries: dict[str, LineageEntry] = {}
        #: The newest version of the highest epoch, None before any: after a fork the later trainer's version counts.
        self.head: int | None = None
        #: Payload bytes of the smallest manifest that leads to the newest version; 0 before any.
        self.payload = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes of all manifests."""
        return sum(len(entry.data) for entry in self._entries.values())

    def get(self, manifest_id: str) -> bytes | None:
        """The signed manifest of this id (hex), None if it is not in the lineage."""
        entry = self._entries.get(manifest_id)
        return None if entry is None else entry.data

    def clear(self) -> None:
        """Removes all manifests: another run has begun."""
        self._hold({})

    def update(self, add: Iterable[LineageEntry], retire: Iterable[str]) -> list[str]:
        """Retires manifests, then adds others; all or nothing. Skips ids that are already held or already gone. Returns
        the ids that were added or removed.

        Raises `BaseMismatchError` when an added manifest contradicts one of the same epoch, `LineageFullError` over the
        bounds.
        """
        entries = dict(self._entries)
        for manifest_id in retire:
            entries.pop(manifest_id, None)
        points = _KnownVersions()
        for entry in entries.values():
            points.add(entry.announcement)
        for entry in add:
            points.add(entry.announcement)
            entries.setdefault(entry.announcement.id, entry)
        self._check_bounds(entries)
        # A manifest that was retired and announced again moves to the end.
        changed = [id for id, entry in self._entries.items() if entries.get(id) is not entry]
        changed += [id for id in entries if id not in self._entries]
        self._hold(entries)
        return changed

    def newer(self, revision: int, most: int) -> int:
        """Returns how many manifests were added after this revision of the view, at most `most`."""
        newest = islice(reversed(self._entries.values()), most)
        return sum(1 for _ in takewhile(lambda entry: entry.since > revision, newest))

    def __contains__(self, manifest_id: str) -> bool:
        return manifest_id in self._entries

    def announcements(self, newest: int, inline_each: int, inline_total: int) -> list[Announcement]:
        """Returns all announcements, oldest first.

        Of the `newest` last ones, those of up to `inline_each` bytes carry their signed manifest, the last first, up to
        `inline_total` bytes.
        """
        shown = []
        left = inline_total
        for age, entry in enumerate(reversed(self._entries.values())):
            announcement, size = entry.announcement, len(entry.data)
            if age < newest and size <= min(inline_each, left):
                announcement = msgspec.structs.replace(announcement, inline=entry.data)
                left -= size
            shown.append(announcement)
        return shown[::-1]

    def _hold(self, entries: dict[str, LineageEntry]) -> None:
        self._entries = entries
        shown = [entry.announcement for entry in entries.values()]
        newest = max(((a.epoch, a.version) for a in shown), default=None)
        self.head = newest[1] if newest is not None else None
        self.payload = min((a.payload_bytes for a in shown if (a.epoch, a.version) == newest), default=0)

    def _check_bounds(self, entries: dict[str, LineageEntry]) -> None:
        nbytes = sum(len(entry.data) for entry in entries.values())
        if len(entries) > self._max_manifests or nbytes > self._max_bytes:
            raise LineageFullError(
                f"the lineage would hold {len(entries)} manifests of {nbytes} bytes, over the hub's bound of"
                f" {self._max_manifests} and {self._max_bytes}; retire old ones first"
            )


def lineage_entry(manifest: Manifest, manifest_id: bytes, data: bytes, since: int) -> LineageEntry:
    """Returns the lineage's entry for a verified manifest. since: see `LineageEntry`."""
    return LineageEntry(to_announcement(manifest, manifest_id, len(data)), data, since)


def to_announcement(manifest: Manifest, manifest_id: bytes, nbytes: int) -> Announcement:
    """Returns the summary of a manifest that the hub announces. nbytes: of the signed manifest."""
    return Announcement(
        id=manifest_id.hex(),
        version=manifest.version,
        base=manifest.base,
        epoch=manifest.epoch,
        digest=manifest.digest.hex(),
        base_digest=manifest.base_digest.hex(),
        payload_bytes=manifest.payload_bytes,
        manifest_bytes=nbytes,
        profile=manifest.profile,
    )


def step_name(a: Announcement) -> str:
    """Returns the step in words, for messages."""
    return f"the anchor of version {a.version}" if a.base is None else f"{a.base}→{a.version}"
