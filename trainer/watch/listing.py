"""A listing of a watched directory, as one scan saw it: plain values, without a file system behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class EntryKind(Enum):
    """The kind of an entry, after a link was followed."""

    FILE = "file"
    DIRECTORY = "directory"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """The header of a safetensors file. size: bytes the file must have. optimizer: whether it holds optimizer state."""

    size: int
    optimizer: bool = False


@dataclass(frozen=True, slots=True)
class ListingEntry:
    """One file or directory.

    path: relative to the watched directory, with "/"; bytes that are no UTF-8 as surrogates. size: bytes.
    mtime, ctime: ns. target: of a link, relative to the watched directory, or absolute if outside. identity: device and
    inode. owner: user id. links: hard links of the file. error: why it could not be read. tensors: header of a
    safetensors file. shards: the files that an index names. fault: why the header or the index is not valid.
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
        """The directory of the entry; "" is the watched one."""
        return self.path.rpartition("/")[0]

    @property
    def stat(self) -> tuple[str, str, int, int, int, str]:
        """Values of which one changes when the file is written to, replaced or linked elsewhere; no inode, as network
        file systems change these."""
        return (self.path, self.kind.value, self.size, self.mtime, self.ctime, self.target or "")


@dataclass(frozen=True)
class Listing:
    """All entries of one scan. wall: its time (Unix ns). owner: of the watched directory (user id)."""

    entries: Mapping[str, ListingEntry]
    wall: int
    owner: int = 0
    _children: dict[str, list[ListingEntry]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, entries: Iterable[ListingEntry], wall: int, owner: int = 0) -> Listing:
        """Returns a listing of these entries, given in any order."""
        made = cls({entry.path: entry for entry in entries}, wall, owner)
        for path in sorted(made.entries):
            made._children.setdefault(made.entries[path].parent, []).append(made.entries[path])
        return made

    def children(self, folder: str) -> list[ListingEntry]:
        """Returns the entries directly in a directory, by name."""
        return self._children.get(folder, [])

    def owner_of(self, folder: str) -> int:
        """Returns the user id of a directory."""
        return self.entries[folder].owner if folder else self.owner

    def may_exist(self, path: str) -> bool:
        """Returns whether a path is in the listing, or may exist since a directory above it could not be read."""
        if path in self.entries:
            return True
        parts = path.split("/")
        above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        return any(folder in self.entries and self.entries[folder].error for folder in above)
