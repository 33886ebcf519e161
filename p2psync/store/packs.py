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

A pack's payload is opened when it is first used, and closed again once enough others were used since: however many
packs there are, and however old the process, a few of them are open at a time: see `payloads`.

Damage. A pack's file is opened as a plain file of ours or not at all. A pack that cannot be opened is moved away, and
told in `Store.remarks`. Others may also cut or write to a payload, or remove it, while the store is open: each read
looks at the file's size and time first (`Pack._notice`), and where they are not those of the last write here, every
chunk is hashed again before it is handed out.

The store checks that bytes are what their names say. Whom to trust is the caller's matter: `open_signed` comes first.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec

from p2psync.errors import DamagedError, FormatError, StoreError
from p2psync.protocol.manifest import MAX_BODY_BYTES, Manifest, SignedManifest, decode_body
from p2psync.store.disk import (
    BytesLike,
    disk_error,
    disk_errors,
    lock,
    read_exactly,
    reserve,
    sync_directory,
    sync_file,
    write_all,
)
from p2psync.store.payloads import OpenPayloads, PayloadFile
from p2psync.store.records import clear, make_directory, read_plain, set_aside

_MANIFEST, _PAYLOAD, _PART, _DONE = "manifest", "payload", "part", "done"
#: A signed manifest on disk (bytes): the largest body, and key and signature.
_MAX_MANIFEST = MAX_BODY_BYTES + 4096
_PACK_NAME = re.compile(r"[0-9a-f]{64}")
_NEW_NAME = re.compile(r"([0-9a-f]{64}|draft-[0-9]+)\.new")


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
        self._handle = payloads.handle(path / _PAYLOAD)
        self._sealed = (path / _DONE).exists()
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
            payload = self._payload()
            os.fsync(payload.file)
            sync_file(self.path / _MANIFEST)
            sync_directory(self.path)
            sync_directory(self.path.parent)
            _touch_durably(self.path / _DONE)
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
            clear(self.path / _PAYLOAD)
            _reserve_payload(self.path / _PAYLOAD, self.offsets[-1])
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
            clear(self.path / _DONE)


class Draft:
    """A pack whose manifest is not known yet: a publisher appends chunks, then names them all by signing."""

    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self._path = path
        self._file = os.open(path / _PAYLOAD, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._size = 0

    def append(self, data: BytesLike) -> None:
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
        #: What was found damaged when the store was opened, a line each.
        self.remarks: list[str] = []
        self._drafts = itertools.count()
        make_directory(root)
        with disk_errors(root):
            held = lock(root / "lock")
        if held is None:
            raise StoreError(f"{root} is in use by another process: stop it, or choose another --store")
        self._held: int | None = held
        self._packs: dict[bytes, Pack] = {}
        self._payloads = OpenPayloads()
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
            with suppress(FileNotFoundError):  # somebody removed it: there is nothing left to do
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
            elif _PACK_NAME.fullmatch(path.name):
                pack = self._load(path)
                if pack is not None:
                    self._packs[pack.id] = pack

    def _load(self, path: Path) -> Pack | None:
        """The pack at `path`, or None if it cannot be used: removed if it is damaged, or left alone."""
        try:
            pack = _open_pack(path, self._payloads)
            if pack is not None:
                return pack
        except DamagedError as error:
            self.remarks.append(f"{path}: {error}: forgotten; it is fetched or made anew where it is needed")
        except OSError as error:
            self.remarks.append(f"{path}: {error.strerror or error}: left alone; check its permissions")
            return None
        if path.is_dir():
            _discard(path)
        return None

    def _fresh(self, name: str) -> Path:
        path = self.root / f"{name}.new"
        make_directory(self.root)
        with disk_errors(self.root):
            clear(path)
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
        set_aside(place)
        path.replace(place)
        if not new:
            sync_directory(self.root)
        pack = Pack(place, signed, manifest, empty=new, payloads=self._payloads)
        self._packs[signed.id] = pack
        return pack


def _open_pack(path: Path, payloads: OpenPayloads) -> Pack | None:
    """The pack at `path`; None if it was begun only. Raises `DamagedError`, OSError."""
    if not path.is_dir():
        raise DamagedError("not a directory")
    data = read_plain(path / _MANIFEST, _MAX_MANIFEST)
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
    part = read_plain(path / _PART)
    if part is None:
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
        clear(path / name)
    try:
        path.rmdir()
    except FileNotFoundError:
        pass
    except OSError:
        if not any(path.iterdir()):
            raise
