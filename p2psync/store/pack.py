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
        """Open the pack at `path`, made before; hashes its chunks unless it is sealed or `empty`. Raises OSError.

        payloads: keeps those of packs in use open.
        """
        self.path = path
        self.signed = signed
        self.manifest = manifest
        #: One byte per chunk: 1 if held. Read it, never write it.
        self.have = bytearray(manifest.chunks)
        #: How many chunks are held.
        self.count = 0
        #: Which chunks are to be held, one byte per chunk.
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
        self._seen = self._payload().size_and_time()
        if not empty:
            self._take_stock()

    @property
    def id(self) -> bytes:
        """The manifest's id, 32 bytes."""
        return bytes.fromhex(self.path.name)

    @property
    def complete(self) -> bool:
        """Whether every chunk is held that is to be."""
        return self.count == self._wanted

    @property
    def sealed(self) -> bool:
        """Whether every chunk that is to be held is held and durable."""
        return self._sealed

    @property
    def bytes_used(self) -> int:
        """Bytes reserved for the payload, and those of the manifest."""
        return self.offsets[-1] + len(self.signed.body)

    def write(self, index: int, data: BytesLike) -> None:
        """Keep chunk `index`, verified by the caller against the manifest. Again: no effect. Raises `StoreError`."""
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
                self._notice(payload)
                write_all(payload.file, view, self.offsets[index])
                self._seen = payload.size_and_time()
        except OSError as error:
            raise disk_error(self.path, error) from error
        self._mark(index)

    def read(self, index: int) -> bytes | None:
        """Chunk `index`, or None if it is not held or was found damaged (then it is no longer held)."""
        if not self.have[index]:
            return None
        with disk_errors(self.path):
            payload = self._payload()
            with self._lock:
                self._notice(payload)
            data = read_exactly(payload.file, self.manifest.sizes[index], self.offsets[index])
        return data if self._checks_out(index, data) else None

    def view(self, index: int) -> memoryview | None:
        """Like `read`, without a copy: a read-only view into the page cache, good even after the pack is removed.

        Hand it to the kernel only, which answers EFAULT for pages that were cut off since; a program that reads such a
        page is ended by SIGBUS. So what must be hashed is read instead.
        """
        if not self.have[index]:
            return None
        with disk_errors(self.path):
            payload = self._payload()
            with self._lock:
                self._notice(payload)
                whole = self._seen[0] >= self.offsets[-1]
            if not self._checked[index] or not whole:
                data = self.read(index)
                return memoryview(data) if data is not None else None
            mapped = payload.map(self.offsets[-1])
        return memoryview(mapped)[self.offsets[index] : self.offsets[index + 1]]

    def recheck(self) -> None:
        """Have every chunk hashed again when it is next read: it may have rotted since it was hashed."""
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
        """Give the file back. Views that were handed out stay good."""
        self._handle.close()

    def _payload(self) -> PayloadFile:
        """The open payload: to be held in a variable for as long as its descriptor is used.

        Raises OSError; and `DamagedError` where it is gone or no plain file: then no chunk is held any more.
        """
        try:
            return self._handle.open()
        except DamagedError:
            with self._lock:
                self.count, self.have = 0, bytearray(self.manifest.chunks)
            self._unseal()
            raise

    def _payload_to_write(self) -> PayloadFile:
        """The open payload, made anew where it is gone. Raises OSError, `StoreError`."""
        try:
            return self._payload()
        except DamagedError:
            clear(self.path / PAYLOAD)
            reserve_payload(self.path / PAYLOAD, self.offsets[-1])
            return self._payload()

    def _take_stock(self) -> None:
        payload = self._payload()
        if self._seen[0] != self.offsets[-1]:
            os.truncate(payload.file, self.offsets[-1])
            self._seen = payload.size_and_time()
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

    def _checks_out(self, index: int, data: bytes | memoryview) -> bool:
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

    def _notice(self, payload: PayloadFile) -> None:
        """Where someone else wrote to the payload or cut it, believe no chunk until it is hashed again."""
        seen = payload.size_and_time()
        if seen != self._seen:
            self._seen = seen
            self._checked = bytearray(self.manifest.chunks)
            payload.forget_map()

    def _unseal(self) -> None:
        self._sealed = False
        with suppress(OSError):  # the pack's directory may be gone, too: then there is nothing that could be believed
            clear(self.path / DONE)


def open_pack(path: Path, payloads: OpenPayloads) -> Pack | None:
    """The pack at `path`; None if it was begun only. Raises `DamagedError`, OSError."""
    if not path.is_dir():
        raise DamagedError("not a directory")
    data = read_plain(path / MANIFEST, _MAX_MANIFEST_BYTES)
    if not data:
        # After a power loss there may be less than a manifest of what was begun only.
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
    """Which chunks a pack is to hold, a byte for each: all of them, unless it says so. Raises `DamagedError`."""
    part = read_plain(path / PART)
    if part is None:
        return b"\1" * chunks
    # Of a part that is not what was written nothing is believed: what there is must be told by hashes, and is not.
    return part if len(part) == chunks and set(part) <= {0, 1} else bytes(chunks)
