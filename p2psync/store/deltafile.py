"""A delta or an anchor in one file.

The manifest is known only when the last chunk is, so it stands at the end:

    offset 0        magic, 8 bytes: "P2PDELTA"
    8               the chunks, one after the other, in the manifest's order
    8 + payload     a signed manifest (msgpack); key and signature are empty if it is not signed
    size - 48       BLAKE3 of the signed manifest, 32 bytes: it detects flipped bits of unsigned manifests, too
    size - 16       bytes of the signed manifest, u64 little-endian
    size - 8        the magic again: it detects a file that was cut short
"""

from __future__ import annotations

import itertools
import os
import stat
import struct
from pathlib import Path
from types import TracebackType

import msgspec
from blake3 import blake3

from p2psync.errors import FormatError, StoreError
from p2psync.protocol.manifest import MAX_BODY_BYTES, Manifest, SignedManifest, decode_body
from p2psync.store.disk import BytesLike, disk_errors, read_exactly, write_all
from p2psync.store.staging import StagedPath

MAGIC = b"P2PDELTA"
_FOOTER = struct.Struct("<32sQ8s")


class DeltaFileWriter:
    """Writes a delta file beside its path, and moves it there when it is complete; else leaves nothing behind.

    Use it as a context manager: `append` each chunk in order, then `finish`.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        """Begin a file that will stand at `path`. force: replace a file there. Raises `StoreError`."""
        self.path = path
        self._staging = StagedPath(path, directory=False, force=force)
        self._file, self._size = -1, 0
        try:
            with disk_errors(path):
                self._file = os.open(self._staging.path, os.O_WRONLY | os.O_CLOEXEC)
            self.append(MAGIC)
        except BaseException:
            self.abandon()
            raise

    def __enter__(self) -> DeltaFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def append(self, data: BytesLike) -> None:
        """Write the next chunk. Raises `StoreError`."""
        with disk_errors(self.path):
            self._append(data)

    def finish(self, manifest: Manifest, signed: SignedManifest | None = None) -> None:
        """Write the manifest, make the file durable and move it to its place. Raises `StoreError`."""
        if self._size != len(MAGIC) + manifest.payload_bytes:
            raise StoreError(f"{self.path}: {self._size - len(MAGIC)} bytes of chunks, not {manifest.payload_bytes}")
        tail = (signed or SignedManifest(msgspec.msgpack.encode(manifest), b"", b"")).to_bytes()
        with disk_errors(self.path):
            self._append(tail)
            self._append(_FOOTER.pack(blake3(tail).digest(), len(tail), MAGIC))
        self._staging.place()
        self.abandon()

    def abandon(self) -> None:
        """Drop the unfinished file; no effect after `finish`."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._staging.close()

    def _append(self, data: BytesLike) -> None:
        write_all(self._file, data, self._size)
        self._size += memoryview(data).nbytes


class DeltaFile:
    """An open delta file; a context manager. signed: None if it is not signed; see `open_signed` for trust."""

    def __init__(self, path: Path) -> None:
        """Open a file and check its frame and manifest. Raises `FormatError`, or `StoreError` if it cannot be read."""
        self.path = path
        with disk_errors(path):
            # A fifo without a writer would block for ever.
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(self._file)
            self._size = status.st_size
            if not stat.S_ISREG(status.st_mode):
                raise FormatError(f"{path} is not a plain file")
            if self._size < len(MAGIC) + _FOOTER.size:
                raise FormatError(f"{path}: {self._size} bytes, too short for a delta file")
            self.manifest, self.signed = self._open_tail()
        except BaseException:
            self.close()
            raise
        self._offsets = list(itertools.accumulate(self.manifest.sizes, initial=len(MAGIC)))

    def __enter__(self) -> DeltaFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def chunk(self, index: int) -> bytes:
        """Chunk `index`, verified against the manifest. Raises `FormatError` if it is damaged."""
        data = self._read(self._offsets[index], self._offsets[index + 1])
        if not self.manifest.verify_chunk(index, data):
            raise FormatError(f"{self.path}: chunk {index} is damaged: get the file again")
        return data

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self, start: int, end: int) -> bytes:
        """Read bytes, fewer if the file ends before. A map would raise SIGBUS if the file was cut short."""
        with disk_errors(self.path):
            return read_exactly(self._file, end - start, start)

    def _open_tail(self) -> tuple[Manifest, SignedManifest | None]:
        footer = self._read(self._size - _FOOTER.size, self._size)
        if len(footer) != _FOOTER.size:
            raise FormatError(f"{self.path} was cut short while it was read")
        fingerprint, length, magic = _FOOTER.unpack(footer)
        if magic != MAGIC or self._read(0, len(MAGIC)) != MAGIC:
            raise FormatError(f"{self.path} is not a delta file, or was cut short")
        start = self._size - _FOOTER.size - length
        if length > MAX_BODY_BYTES or start < len(MAGIC):
            raise FormatError(f"{self.path}: a manifest of {length} bytes does not fit")
        tail = self._read(start, start + length)
        if blake3(tail).digest() != fingerprint:
            raise FormatError(f"{self.path}: its manifest is damaged: get the file again")
        try:
            signed = msgspec.msgpack.decode(tail, type=SignedManifest)
            manifest = decode_body(signed.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, FormatError) as error:
            raise FormatError(f"{self.path}: {error}") from None
        if start - len(MAGIC) != manifest.payload_bytes:
            raise FormatError(f"{self.path}: {start - len(MAGIC)} bytes of chunks, not {manifest.payload_bytes}")
        return manifest, signed if signed.key or signed.signature else None
