"""The ways of a loop: how each builds a version, and how its actors reach it.

free: a version is a number on a board that all processes see at once, and the ledger takes every actor to be at it.
p2psync: the product as it is. full: the same, but every version is an anchor, the whole of the weights. full-fifo and
full-strict: so are these, and the next version is published only once every actor runs the one before. full-sparse: so,
and of `staleness` + 1 versions one is published.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec

from p2psync.membership.work import WorkItem
from p2psync.net.background import BackgroundLoop
from p2psync.net.hub import HubService
from p2psync.protocol.versions import Position
from p2psync.trainer.ledger.core import Ledger
from p2psync.trainer.ledger.service import mount
from p2psync.trainer.rollouts import Rollouts
from p2psync.trainer.versions.builder import BuiltVersion, LocalVersionBuilder
from p2psync.trainer.versions.source import Source

_NUMBER = struct.Struct("<q")


class Board:
    """A version number in a file that processes share. 0: nothing was put up yet."""

    def __init__(self, path: Path) -> None:
        """Opens the board, which is created if it is missing."""
        if not path.exists():
            path.write_bytes(_NUMBER.pack(0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _NUMBER.size)

    @property
    def version(self) -> int:
        """The number on the board."""
        return int(_NUMBER.unpack_from(self._map)[0])

    def put_up(self, version: int) -> None:
        """Makes a version the one that all readers of the board see."""
        _NUMBER.pack_into(self._map, 0, version)


def free_position(first: Position, version: int) -> Position:
    """Returns the position of a version that was never made. first: the real one that all begin with."""
    if version == first.version:
        return first
    digest = hashlib.blake2b(_NUMBER.pack(version), digest_size=16).digest()
    return msgspec.structs.replace(first, version=version, digest=digest)


class _AllAtHead(Ledger):
    """A ledger that takes every node to be at the newest version."""

    def lease(self, node: str, lease_id: str, max_items: int, now: float, version: int | None = None) -> list[WorkItem]:
        """See `Ledger`."""
        return super().lease(node, lease_id, max_items, now, self.head)

    def renew_node(self, node: str, now: float, version: int | None = None) -> None:
        """See `Ledger`."""
        super().renew_node(node, now, self.head)


class FreeRollouts(Rollouts):
    """Rollouts of versions that are everywhere at once; in memory."""

    def mount(self, hub: HubService, loop: BackgroundLoop) -> None:
        """See `Rollouts`."""
        self._loop = loop
        self._service = mount(hub.build_app(), hub, _AllAtHead(self._config))


def rollouts_of(free: bool, journal: Path, staleness: int) -> Rollouts:
    """The ledger of a run."""
    return FreeRollouts(max_staleness=staleness) if free else Rollouts(journal=journal, max_staleness=staleness)


class AnchorVersionBuilder(LocalVersionBuilder):
    """Makes every version an anchor."""

    def skip_to(self, version: int) -> None:
        """Gives the next version this number, which is above those of all versions before."""
        self._newest = version - 1

    def make(
        self,
        source: Source,
        *,
        profile: str = "fast",
        rate: float = 0.0,
        settled: Callable[[], bool] = lambda: True,
        given_up: Callable[[], bool] = lambda: False,
    ) -> BuiltVersion | None:
        """See `LocalVersionBuilder`."""
        self._write_whole = True
        return super().make(source, profile=profile, rate=rate, settled=settled, given_up=given_up)
