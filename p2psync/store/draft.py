"""A draft: a pack that a publisher fills before its manifest is known."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from p2psync.errors import StoreError
from p2psync.protocol.manifest import Manifest, SignedManifest
from p2psync.store.disk import BytesLike, disk_errors, sync_directory, sync_file, write_all
from p2psync.store.pack import Pack
from p2psync.store.pack_files import DONE, MANIFEST, PART, PAYLOAD, discard, touch_durably, write_new


class Draft:
    """A pack whose manifest is not known yet: a publisher appends chunks, then seals it with the signed manifest."""

    def __init__(self, path: Path, accept: Callable[[Draft, SignedManifest, Manifest], Pack]) -> None:
        """path: the pack's directory, made before. accept: takes the sealed draft into the store. Raises OSError."""
        self._accept = accept
        self.path = path
        self._file = os.open(path / PAYLOAD, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._size = 0

    def append(self, data: BytesLike) -> None:
        """Keep the next chunk. Raises `StoreError`; then call `abandon`."""
        with disk_errors(self.path.parent):
            write_all(self._file, data, self._size)
        self._size += memoryview(data).nbytes

    def seal(self, signed: SignedManifest, manifest: Manifest, part: bytes | None = None) -> Pack:
        """Make the pack durable under its manifest, and open it. The chunks must be the manifest's, in its order.

        part: if only some of the chunks were appended, a byte for each chunk, 1 for these. Raises `StoreError`.
        """
        wanted = sum(size for k, size in enumerate(manifest.sizes) if part is None or part[k])
        if self._size != wanted:
            raise StoreError(f"{self._size} bytes were drafted, the manifest names {wanted}")
        with disk_errors(self.path.parent):
            os.fsync(self._file)
            if part is not None:
                write_new(self.path / PART, part)
                sync_file(self.path / PART)
            write_new(self.path / MANIFEST, signed.to_bytes())
            sync_file(self.path / MANIFEST)
            touch_durably(self.path / DONE)
            sync_directory(self.path)
        return self._accept(self, signed, manifest)

    def close(self) -> None:
        """Close the payload file and keep what was written. A second call has no effect."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def abandon(self) -> None:
        """Drop all appended chunks; no effect after `seal`."""
        if self._file >= 0:
            self.close()
            discard(self.path)
