"""What one look at a watched directory saw: plain values, without a file system behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class EntryKind(Enum):
    """What an entry is, after a link was followed."""

    FILE = "file"
    DIRECTORY = "directory"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What the header of a safetensors file says. size: bytes the file must have. optimizer: holds optimizer state."""

    size: int
    optimizer: bool = False


@dataclass(frozen=True, slots=True)
class ListingEntry:
    """One file or directory.

    path: relative to the watched directory, with "/"; bytes that are no UTF-8 as surrogates. size: bytes.
    mtime, ctime: ns. target: for a link, where it leads, relative to the watched directory, or absolute if outside.
    identity: device and inode. owner: user id. links: names that the file has. error: why it could not be read.
    tensors: of a safetensors file; shards: the files that an index names; fault: why neither could be made of it.
    """

    path: str
    kind: EntryKind = EntryKind.FILE
    size: int = 0
    mtime: int = 0
    ctime: int = 0
    target: str | None = None
    identity: tuple[int, int] = (0, 0)
    owner: int = 0
    links: int = 1
    error: str = ""
    tensors: TensorHeader | None = None
    shards: frozenset[str] | None = None
    fault: str = ""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> str:
        """The directory that it lies in; "" is the watched one."""
        return self.path.rpartition("/")[0]

    @property
    def stat(self) -> tuple[str, str, int, int, int, str]:
        """What changes when the file is written to, replaced or linked elsewhere. The inode says nothing here."""
        return (self.path, self.kind.value, self.size, self.mtime, self.ctime, self.target or "")


@dataclass(frozen=True)
class Listing:
    """All entries of one look. wall: the time of it (Unix ns). owner: of the watched directory (user id)."""

    entries: Mapping[str, ListingEntry]
    wall: int
    owner: int = 0
    _children: dict[str, list[ListingEntry]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, entries: Iterable[ListingEntry], wall: int, owner: int = 0) -> Listing:
        """A listing of these entries, in any order."""
        made = cls({entry.path: entry for entry in entries}, wall, owner)
        for path in sorted(made.entries):
            made._children.setdefault(made.entries[path].parent, []).append(made.entries[path])
        return made

    def children(self, folder: str) -> list[ListingEntry]:
        """Entries directly in a directory, by name."""
        return self._children.get(folder, [])

    def owner_of(self, folder: str) -> int:
        """The user id of a directory."""
        return self.entries[folder].owner if folder else self.owner

    def may_exist(self, path: str) -> bool:
        """Whether a path was seen, or may be there unseen because a directory above it could not be read."""
        if path in self.entries:
            return True
        parts = path.split("/")
        above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        return any(folder in self.entries and self.entries[folder].error for folder in above)
