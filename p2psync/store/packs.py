"""Chunks and versions on disk: content-addressed, crash-safe, one process at a time.

Theory of operation. A *pack* is one manifest and its chunks:

    root/lock                       held by the one process that owns the store
    root/<manifest id, hex>/
        manifest                    the signed manifest
        payload                     all chunks at their offsets; its blocks are reserved when the pack is made
        part                        in a pack that is to hold some of the chunks only: a byte for each, 1: these
        done                        exists once every chunk, or every one of the part, is durable
    root/<name>.new/                a pack being made; removed when a store is opened

A pack appears by a rename, with a whole manifest and a payload of full size, so a full disk is known before anything
is changed. Nothing waits for the disk then, since the first chunks are on their way: a pack becomes durable as it is
sealed, and one of which a power loss left less than its manifest is forgotten.

Which chunks a pack holds is derived from content alone: a pack without `done` is hashed chunk by chunk when it is
opened, one with `done` is trusted until a chunk is first read, and every first read is hashed. So no crash, and no
damage to the disk, can make the store hand out a chunk that is not the manifest's.

The store checks that bytes are what their names say. Whom to trust is the caller's matter: `open_signed` comes first.
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
import threading
from pathlib import Path
from types import TracebackType

import msgspec

from p2psync.errors import FormatError, StoreError
from p2psync.protocol.manifest import Manifest, SignedManifest, decode_body
from p2psync.store.disk import (
    Bytes,
    disk_error,
    disk_errors,
    lock,
    read_exactly,
    reserve,
    sync_directory,
    sync_file,
    write_all,
)

_MANIFEST, _PAYLOAD, _PART, _DONE = "manifest", "payload", "part", "done"
_PACK_NAME = re.compile(r"[0-9a-f]{64}")
_NEW_NAME = re.compile(r"([0-9a-f]{64}|draft-[0-9]+)\.new")


class Pack:
    """One manifest's chunks. `write`, `read`, `view` and `seal` may be called from any thread."""

    def __init__(self, path: Path, signed: SignedManifest, manifest: Manifest, *, empty: bool = False) -> None:
        """Open the pack at `path`, made before; hashes its chunks unless it is sealed or `empty`. Raises OSError."""
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
        self._file = os.open(path / _PAYLOAD, os.O_RDWR | os.O_CLOEXEC)
        self._map: mmap.mmap | None = None
        self._sealed = (path / _DONE).exists()
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

    def write(self, index: int, data: Bytes) -> None:
        """Keep chunk `index`, verified by the caller against the manifest. Again: no effect. Raises `StoreError`."""
        view = memoryview(data).cast("B")
        if len(view) != self.manifest.sizes[index]:
            raise StoreError(f"chunk {index} has {self.manifest.sizes[index]} bytes, not {len(view)}: verify it first")
        if not self.part[index]:
            raise StoreError(f"{self.path}: chunk {index} is not of the part that is kept here")
        if self.have[index]:
            return
        try:
            write_all(self._file, view, self.offsets[index])
        except OSError as error:
            raise disk_error(self.path, error) from error
        self._mark(index)

    def read(self, index: int) -> bytes | None:
        """Chunk `index`, or None if it is not held or was found damaged (then it is no longer held)."""
        if not self.have[index]:
            return None
        with disk_errors(self.path):
            data = read_exactly(self._file, self.manifest.sizes[index], self.offsets[index])
        return data if self._checks_out(index, data) else None

    def view(self, index: int) -> memoryview | None:
        """Like `read`, without a copy: a read-only view into the page cache, good even after the pack is removed."""
        if not self.have[index]:
            return None
        if self._map is None:
            with disk_errors(self.path):
                self._map = mmap.mmap(self._file, self.offsets[-1], mmap.MAP_SHARED, mmap.PROT_READ)
        data = memoryview(self._map)[self.offsets[index] : self.offsets[index + 1]]
        return data if self._checks_out(index, data) else None

    def doubt(self) -> None:
        """Have every chunk hashed again when it is next read: it may have rotted since it was hashed."""
        self._checked = bytearray(self.manifest.chunks)

    def seal(self) -> None:
        """Make a complete pack durable. Raises `StoreError` if a chunk is missing or the disk refuses."""
        if self._sealed:
            return
        if not self.complete:
            raise StoreError(f"{self.path}: {self._wanted - self.count} chunks are missing: fetch them first")
        with disk_errors(self.path):
            os.fsync(self._file)
            sync_file(self.path / _MANIFEST)
            sync_directory(self.path)
            sync_directory(self.path.parent)
            _touch_durably(self.path / _DONE)
            sync_directory(self.path)
        self._sealed = True

    def close(self) -> None:
        """Give the file back. Views that were handed out stay good."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._map = None

    def _take_stock(self) -> None:
        if os.fstat(self._file).st_size != self.offsets[-1]:
            os.truncate(self._file, self.offsets[-1])
            self._unseal()
        if self._sealed:
            self.have = bytearray(self.part)
            self.count = self._wanted
            return
        for index, size in enumerate(self.manifest.sizes):
            if self.part[index] and self.manifest.verify_chunk(
                index, read_exactly(self._file, size, self.offsets[index])
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

    def _unseal(self) -> None:
        (self.path / _DONE).unlink(missing_ok=True)
        self._sealed = False


class Draft:
    """A pack whose manifest is not known yet: a publisher appends chunks, then names them all by signing."""

    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self._path = path
        self._file = os.open(path / _PAYLOAD, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._size = 0

    def append(self, data: Bytes) -> None:
        """Keep the next chunk. Raises `StoreError`; then call `abandon`."""
        with disk_errors(self._path.parent):
            write_all(self._file, data, self._size)
        self._size += memoryview(data).nbytes

    def seal(self, signed: SignedManifest, manifest: Manifest, part: bytes | None = None) -> Pack:
        """Make the pack durable under its manifest and open it; the chunks must be the manifest's, in its order.

        part: where only some of its chunks were drafted, which: a byte for each chunk, 1 for these.
        """
        wanted = sum(size for k, size in enumerate(manifest.sizes) if part is None or part[k])
        if self._size != wanted:
            raise StoreError(f"{self._size} bytes were drafted, the manifest names {wanted}")
        with disk_errors(self._path.parent):
            os.fsync(self._file)
            if part is not None:
                _write_new(self._path / _PART, part)
                sync_file(self._path / _PART)
            _write_new(self._path / _MANIFEST, signed.to_bytes())
            sync_file(self._path / _MANIFEST)
            _touch_durably(self._path / _DONE)
            sync_directory(self._path)
        return self._store._accept(self, signed, manifest)

    def abandon(self) -> None:
        """Drop what was appended; no effect after `seal`."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            _discard(self._path)


class Store:
    """All packs under one directory."""

    def __init__(self, root: Path) -> None:
        """Open the store at `root`, made if need be. Raises `StoreError` if another process has it open.

        Unsealed packs are read and hashed here: seconds per 10 GB.
        """
        self.root = root
        self._drafts = itertools.count()
        with disk_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            held = lock(root / "lock")
        if held is None:
            raise StoreError(f"{root} is in use by another process: stop it, or choose another --store")
        self._held: int | None = held
        self._packs: dict[bytes, Pack] = {}
        try:
            with disk_errors(root):
                self._open_packs()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bytes_used(self) -> int:
        """Bytes of all packs."""
        return sum(pack.bytes_used for pack in self._packs.values())

    def add(self, signed: SignedManifest, manifest: Manifest) -> Pack:
        """The pack of a manifest: the one there is, or a new one with no chunks whose bytes are reserved on disk.

        It is not durable before it is sealed.

        Raises `StoreError` if the disk has no room for all of it; then nothing was changed.
        """
        found = self._packs.get(signed.id)
        if found is not None:
            return found
        path = self._fresh(signed.id.hex())
        try:
            with disk_errors(self.root):
                _reserve_payload(path / _PAYLOAD, manifest.payload_bytes)
                _write_new(path / _MANIFEST, signed.to_bytes())
                return self._install(path, signed, manifest, new=True)
        except BaseException:
            _discard(path)
            raise

    def draft(self) -> Draft:
        """Begin a pack whose manifest comes last. Raises `StoreError`."""
        path = self._fresh(f"draft-{next(self._drafts)}")
        with disk_errors(self.root):
            return Draft(self, path)

    def get(self, manifest_id: bytes) -> Pack | None:
        """The pack of a manifest, by its id."""
        return self._packs.get(manifest_id)

    def packs(self) -> list[Pack]:
        """All packs, in order of run and version."""
        return sorted(self._packs.values(), key=lambda p: (p.manifest.run, p.manifest.version, p.manifest.base or -1))

    def remove(self, manifest_id: bytes) -> None:
        """Forget a pack and free its bytes; no effect if there is none. Raises `StoreError`."""
        pack = self._packs.pop(manifest_id, None)
        if pack is None:
            return
        pack.close()
        with disk_errors(pack.path):
            # Renamed first: a crash in the middle leaves something that the next start clears away.
            doomed = pack.path.with_name(pack.path.name + ".new")
            pack.path.replace(doomed)
            _discard(doomed)

    def close(self) -> None:
        """Give the store back; another process may open it."""
        for pack in self._packs.values():
            pack.close()
        self._packs = {}
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _open_packs(self) -> None:
        for path in sorted(self.root.iterdir()):
            if _NEW_NAME.fullmatch(path.name) and path.is_dir():
                _discard(path)
            elif _PACK_NAME.fullmatch(path.name) and path.is_dir():
                pack = _open_pack(path)
                if pack is None:
                    _discard(path)
                else:
                    self._packs[pack.id] = pack

    def _fresh(self, name: str) -> Path:
        path = self.root / f"{name}.new"
        with disk_errors(self.root):
            _discard(path)
            path.mkdir()
        return path

    def _accept(self, draft: Draft, signed: SignedManifest, manifest: Manifest) -> Pack:
        found = self._packs.get(signed.id)
        if found is not None and found.sealed:
            draft.abandon()
            return found
        if found is not None:
            self.remove(signed.id)
        with disk_errors(self.root):
            pack = self._install(draft._path, signed, manifest, new=False)
        os.close(draft._file)
        draft._file = -1
        return pack

    def _install(self, path: Path, signed: SignedManifest, manifest: Manifest, *, new: bool) -> Pack:
        """new: there is no chunk in it yet, so that nothing of it need be durable."""
        place = self.root / signed.id.hex()
        _discard(place)
        path.replace(place)
        if not new:
            sync_directory(self.root)
        pack = Pack(place, signed, manifest, empty=new)
        self._packs[signed.id] = pack
        return pack


def _open_pack(path: Path) -> Pack | None:
    """The pack at `path`, or None if its manifest is not the one that its name says."""
    try:
        signed = msgspec.msgpack.decode((path / _MANIFEST).read_bytes(), type=SignedManifest)
        manifest = decode_body(signed.body)
    except (FileNotFoundError, msgspec.MsgspecError, FormatError):
        return None
    if signed.id.hex() != path.name or not (path / _PAYLOAD).exists():
        return None
    return Pack(path, signed, manifest)


def _read_part(path: Path, chunks: int) -> bytes:
    """Which chunks a pack is to hold, a byte for each: all of them, unless it says so."""
    try:
        part = (path / _PART).read_bytes()
    except FileNotFoundError:
        return b"\1" * chunks
    # Of a part that is not what was written nothing is believed: what there is must be told by hashes, and is not.
    return part if len(part) == chunks and set(part) <= {0, 1} else bytes(chunks)


def _reserve_payload(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        reserve(descriptor, size, path)
    finally:
        os.close(descriptor)


def _write_new(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)


def _touch_durably(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(path: Path) -> None:
    """Remove a pack's own files and its directory; files that are not ours, and then the directory, stay."""
    for name in (_DONE, _MANIFEST, _PART, _PAYLOAD):
        (path / name).unlink(missing_ok=True)
    try:
        path.rmdir()
    except FileNotFoundError:
        pass
    except OSError:
        if not any(path.iterdir()):
            raise
