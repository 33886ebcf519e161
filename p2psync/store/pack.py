"""A pack: one manifest and its chunks, in a directory of its own. `packs` describes its files and its guarantees."""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from p2psync.errors import DamagedError, FormatError, StoreError
from p2psync.protocol.manifest import MAX_BODY_BYTES, Manifest, SignedManifest, decode_body
from p2psync.store.disk import BytesLike, disk_error, disk_errors, read_exactly, sync_directory, sync_file, write_all
from p2psync.store.pack_files import DONE, MANIFEST, PART, PAYLOAD, reserve_payload, touch_durably
from p2psync.store.payloads import OpenPayloads, PayloadFile
from p2psync.store.records import clear, read_plain

#: A signed manifest on disk (bytes): the largest body, and key and signature.
_MAX_MANIFEST_BYTES = MAX_BODY_BYTES + 4096


class Pack:
    """One manifest's chunks. `write`, `read`, `view` and `seal` may be called from any thread."""

    def __init__(
        self,
        path: Path,
        signed: SignedManifest,
        manifest: Manifest,
        *,
        payloads: OpenPayloads,
        empty: bool = False,
    ) -> None:
        """Open the existing pack at `path`; hashes its chunks unless it is sealed or `empty`. Raises OSError.

        payloads: keeps the payloads of packs in use open.
        """
        self.path = path
        self.signed = signed
        self.manifest = manifest
        #: One byte for each chunk: 1 if it is held. Read-only for others.
        self.have = bytearray(manifest.chunks)
        #: Number of chunks held.
        self.count = 0
        #: One byte for each chunk: 1 if this pack is to hold it.
        self.part = _read_part(path, manifest.chunks)
        self._wanted = sum(self.part)
        #: Byte offset of each chunk in the payload.
        sizes = (size if mine else 0 for size, mine in zip(manifest.sizes, self.part, strict=True))
        self.offsets = list(itertools.accumulate(sizes, initial=0))
        self._checked = bytearray(manifest.chunks)
        self._lock = threading.Lock()
        self._handle = payloads.handle(path / PAYLOAD)
        self._sealed = (path / DONE).exists()
        #: Size and time of the payload (bytes, ns) when it was last looked at or written to here.
        self._known_size_and_time = self._payload().size_and_time()
        if not empty:
            self._find_held_chunks()

    @property
    def id(self) -> bytes:
        """The manifest's id, 32 bytes."""
        return bytes.fromhex(self.path.name)

    @property
    def complete(self) -> bool:
        """Whether all chunks of this pack's part are held."""
        return self.count == self._wanted

    @property
    def sealed(self) -> bool:
        """Whether all chunks of this pack's part are held and durable."""
        return self._sealed

    @property
    def bytes_used(self) -> int:
        """Bytes of the reserved payload and of the manifest."""
        return self.offsets[-1] + len(self.signed.body)

    def write(self, index: int, data: BytesLike) -> None:
        """Keep chunk `index`, which the caller verified; no effect if it is held. Raises `StoreError`."""
        view = memoryview(data).cast("B")
        if len(view) != self.manifest.sizes[index]:
            raise StoreError(f"chunk {index} has {self.manifest.sizes[index]} bytes, not {len(view)}: verify it first")
        if not self.part[index]:
            raise StoreError(f"{self.path}: chunk {index} is not of the part that is kept here")
        if self.have[index]:
            return
        try:
            payload = self._payload_to_write()
            with self._lock:
                self._check_unchanged(payload)
                write_all(payload.file, view, self.offsets[index])
                self._known_size_and_time = payload.size_and_time()
        except OSError as error:
            raise disk_error(self.path, error) from error
        self._mark(index)

    def read(self, index: int) -> bytes | None:
        """Chunk `index`; None if it is not held, or is damaged and therefore no longer held. Raises `StoreError`."""
        if not self.have[index]:
            return None
        with disk_errors(self.path):
            payload = self._payload()
            with self._lock:
                self._check_unchanged(payload)
            data = read_exactly(payload.file, self.manifest.sizes[index], self.offsets[index])
        return data if self._verify(index, data) else None

    def view(self, index: int) -> memoryview | None:
        """Like `read`, without a copy: a read-only view of the page cache, valid even after the pack is removed.

        Pass it to system calls only, which return EFAULT for pages that were cut off since; a program that reads such a
        page gets SIGBUS. So a chunk that must be hashed is read instead.
        """
        if not self.have[index]:
            return None
        with disk_errors(self.path):
            payload = self._payload()
            with self._lock:
                self._check_unchanged(payload)
                whole = self._known_size_and_time[0] >= self.offsets[-1]
            if not self._checked[index] or not whole:
                data = self.read(index)
                return memoryview(data) if data is not None else None
            mapped = payload.map(self.offsets[-1])
        return memoryview(mapped)[self.offsets[index] : self.offsets[index + 1]]

    def recheck(self) -> None:
        """Mark every chunk as unverified: it is hashed again when it is next read."""
        self._checked = bytearray(self.manifest.chunks)

    def seal(self) -> None:
        """Make a complete pack durable. Raises `StoreError` if a chunk is missing or the disk refuses."""
        if self._sealed:
            return
        if not self.complete:
            raise StoreError(f"{self.path}: {self._wanted - self.count} chunks are missing: fetch them first")
        with disk_errors(self.path):
            payload = self._payload()
            os.fsync(payload.file)
            sync_file(self.path / MANIFEST)
            sync_directory(self.path)
            sync_directory(self.path.parent)
            touch_durably(self.path / DONE)
            sync_directory(self.path)
        self._sealed = True

    def close(self) -> None:
        """Close the payload. Views that `view` returned stay valid."""
        self._handle.close()

    def _payload(self) -> PayloadFile:
        """The open payload; the caller keeps the reference for as long as it uses the descriptor.

        Raises OSError, and `DamagedError` if it is missing or no plain file; then no chunk is held any more.
        """
        try:
            return self._handle.open()
        except DamagedError:
            with self._lock:
                self.count, self.have = 0, bytearray(self.manifest.chunks)
            self._unseal()
            raise

    def _payload_to_write(self) -> PayloadFile:
        """The open payload, made again if it is missing. Raises OSError, `StoreError`."""
        try:
            return self._payload()
        except DamagedError:
            clear(self.path / PAYLOAD)
            reserve_payload(self.path / PAYLOAD, self.offsets[-1])
            return self._payload()

    def _find_held_chunks(self) -> None:
        payload = self._payload()
        if self._known_size_and_time[0] != self.offsets[-1]:
            os.truncate(payload.file, self.offsets[-1])
            self._known_size_and_time = payload.size_and_time()
            self._unseal()
        if self._sealed:
            self.have = bytearray(self.part)
            self.count = self._wanted
            return
        for index, size in enumerate(self.manifest.sizes):
            if self.part[index] and self.manifest.verify_chunk(
                index, read_exactly(payload.file, size, self.offsets[index])
            ):
                self._mark(index)

    def _mark(self, index: int) -> None:
        with self._lock:
            self.count += not self.have[index]
            self.have[index] = self._checked[index] = 1

    def _verify(self, index: int, data: bytes | memoryview) -> bool:
        if self._checked[index]:
            return True
        if self.manifest.verify_chunk(index, data):
            self._checked[index] = 1
            return True
        with self._lock:
            self.count -= self.have[index]
            self.have[index] = 0
        self._unseal()
        return False

    def _check_unchanged(self, payload: PayloadFile) -> None:
        """Mark every chunk as unverified if another process wrote to the payload or cut it."""
        current = payload.size_and_time()
        if current != self._known_size_and_time:
            self._known_size_and_time = current
            self._checked = bytearray(self.manifest.chunks)
            payload.forget_map()

    def _unseal(self) -> None:
        self._sealed = False
        with suppress(OSError):  # the pack's directory may be missing, too: then no chunk is held
            clear(self.path / DONE)


def open_pack(path: Path, payloads: OpenPayloads) -> Pack | None:
    """The pack at `path`; None if it has no manifest yet. Raises `DamagedError`, OSError."""
    if not path.is_dir():
        raise DamagedError("not a directory")
    data = read_plain(path / MANIFEST, _MAX_MANIFEST_BYTES)
    if not data:
        # A power loss may leave an empty manifest of a pack that was only begun.
        return None
    try:
        signed = msgspec.msgpack.decode(data, type=SignedManifest)
        manifest = decode_body(signed.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, FormatError) as error:
        raise DamagedError(f"the manifest is damaged ({error})") from None
    if signed.id.hex() != path.name:
        raise DamagedError("the manifest is that of another pack")
    return Pack(path, signed, manifest, payloads=payloads)


def _read_part(path: Path, chunks: int) -> bytes:
    """The chunks that a pack is to hold, a byte for each: all of them if it has no `part`. Raises `DamagedError`."""
    part = read_plain(path / PART)
    if part is None:
        return b"\1" * chunks
    # With a damaged part no chunk is held.
    return part if len(part) == chunks and set(part) <= {0, 1} else bytes(chunks)
