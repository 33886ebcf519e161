"""The trainer's own record of each delta's changes, readable without the weights that it starts from.

A `fast` delta needs no record. A `tight` one is read against its base, which the trainer no longer has after the next
version; so its blocks are encoded once more, in profile `fast`, while they are decoded into the snapshot:

    ROOT/<manifest id, hex>         a delta file with the same steps as the manifest of that id

Only squashing reads these files: without a sound record, no squash goes across that delta. So they are written on the
way, dropped where the disk refuses, and never waited for.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

from p2psync.delta.block import Block
from p2psync.engines.compose import BASE_FREE_PROFILES, DeltaReader
from p2psync.errors import P2PSyncError, StoreError
from p2psync.store.deltafile import DeltaFile, DeltaFileWriter
from p2psync.store.disk import disk_errors
from p2psync.store.encoding import DELTA_BLOCK_UNITS, Encoding
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.store.records import clear, make_directory

_NAME = re.compile(r"[0-9a-f]{64}")


class PackDelta:
    """Reads a pack of the store as a `DeltaReader`."""

    def __init__(self, pack: Pack) -> None:
        self.path, self.manifest, self._pack = pack.path, pack.manifest, pack

    def chunk(self, index: int) -> bytes:
        """Returns chunk `index`, verified, since another thread may remove the pack meanwhile. Raises `StoreError`."""
        data = self._pack.read(index)
        if data is None or not self.manifest.verify_chunk(index, data):
            raise StoreError(f"{self.path}: chunk {index} is damaged or gone")
        return data

    def close(self) -> None:
        """Does nothing: no file was opened."""


class DeltaRecordWriter:
    """Writes the record of one delta. A failure drops the record and is not raised."""

    def __init__(self, path: Path, pack: Pack) -> None:
        #: Seconds spent on the record, not on decoding.
        self.seconds = 0.0
        self._pack = pack
        self._writer: DeltaFileWriter | None = None
        self._encoding: Encoding | None = None
        with suppress(StoreError):
            self._writer = DeltaFileWriter(path, force=True)
            self._encoding = Encoding(self._writer, pack.manifest.rows())

    def take(self, block: Block) -> None:
        """Write the next block, in rising order."""
        began = time.monotonic()
        if self._encoding is not None:
            try:
                self._encoding.take_block(block)
            except StoreError:
                self.abandon()
        self.seconds += time.monotonic() - began

    def finish(self) -> None:
        """Keep the record: all blocks were taken and led to the manifest's digest."""
        began = time.monotonic()
        if self._writer is not None and self._encoding is not None:
            with suppress(StoreError):
                self._encoding.finish()
                self._writer.finish(self._encoding.manifest_like(self._pack.manifest))
        self.abandon()
        self.seconds += time.monotonic() - began

    def abandon(self) -> None:
        """Drop the record; no effect after `finish`."""
        if self._writer is not None:
            self._writer.abandon()
        self._writer = self._encoding = None


class DeltaRecords:
    """The delta records of one trainer, in a directory."""

    def __init__(self, root: Path) -> None:
        """Raises `StoreError` if `root` cannot be made."""
        self._root = root
        make_directory(root)
        with disk_errors(root):
            for path in root.iterdir():
                if not _NAME.fullmatch(path.name):  # half written when a process ended
                    clear(path)

    def start(self, pack: Pack) -> DeltaRecordWriter | None:
        """Begin the record of a delta; returns None if it needs none, or has one."""
        m = pack.manifest
        if (
            m.base is None
            or m.profile in BASE_FREE_PROFILES
            or m.block_units != DELTA_BLOCK_UNITS
            or self._path(pack).exists()
        ):
            return None
        return DeltaRecordWriter(self._path(pack), pack)

    def open(self, pack: Pack) -> DeltaReader | None:
        """Returns a pack's delta, readable without weights; the caller closes it. None if there is no record of it."""
        if pack.manifest.profile in BASE_FREE_PROFILES:
            return PackDelta(pack)
        try:
            found = DeltaFile(self._path(pack))
        except P2PSyncError:
            return None
        m, kept = pack.manifest, found.manifest
        if (kept.base_digest, kept.digest, kept.table) == (m.base_digest, m.digest, m.table):
            return found
        found.close()
        return None

    def prune(self, store: Store) -> None:
        """Drop the records of packs that the store no longer has. Raises `StoreError`."""
        held = {pack.path.name for pack in store.packs()}
        with disk_errors(self._root):
            for path in self._root.iterdir():
                if _NAME.fullmatch(path.name) and path.name not in held:
                    clear(path)

    def _path(self, pack: Pack) -> Path:
        return self._root / pack.path.name
