"""The store of packs on disk: content-addressed, crash-safe, owned by one process at a time.

Theory of operation. A *pack* is one manifest and its chunks:

    root/lock                       held by the one process that owns the store
    root/<manifest id, hex>/
        manifest                    the signed manifest
        payload                     all chunks at their offsets; its blocks are reserved when the pack is made
        part                        only in a pack for some of the chunks: a byte for each chunk, 1 if it is kept here
        done                        exists once every chunk to be kept is durable
    root/<name>.new/                a pack being made; removed when a store is opened

A pack appears by a rename, with a whole manifest and a payload of full size, so a full disk is detected before anything
is changed. Adding a pack does not wait for the disk, since its first chunks are on their way: a pack becomes durable
when it is sealed. The store forgets a pack whose manifest a power loss cut short.

Which chunks a pack holds is derived from content alone: a pack without `done` is hashed chunk by chunk when it is
opened, one with `done` is trusted until a chunk is first read, and every first read is hashed. So neither a crash nor
damage to the disk can make the store return a chunk that is not the manifest's.

A pack's payload is opened when it is used, and closed once enough others were used since, so that few files are open at
a time (`payloads`).

Damage. A pack's files are opened only if they are plain files. A damaged pack is removed, and reported in
`Store.diagnostics`. Other processes may cut, overwrite or remove a payload while the store is open. So each read first
checks the file's size and time (`Pack._check_unchanged`); if they are not those of the last write here, every chunk is
hashed again before it is returned.

The store verifies that content matches its hashes. Trust in a signature is checked by the caller: see `open_signed`.
"""

from __future__ import annotations

import itertools
import os
import re
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from p2psync.errors import DamagedError, StoreError
from p2psync.protocol.manifest import Manifest, SignedManifest
from p2psync.store.disk import disk_errors, lock, sync_directory
from p2psync.store.draft import Draft
from p2psync.store.pack import Pack, open_pack
from p2psync.store.pack_files import MANIFEST, PAYLOAD, discard, reserve_payload, write_new
from p2psync.store.payloads import OpenPayloads
from p2psync.store.records import clear, make_directory, set_aside

_PACK_NAME = re.compile(r"[0-9a-f]{64}")
_NEW_NAME = re.compile(r"([0-9a-f]{64}|draft-[0-9]+)\.new")


class Store:
    """All packs under one directory."""

    def __init__(self, root: Path) -> None:
        """Open the store at `root`, made if need be. Raises `StoreError` if another process has it open.

        Unsealed packs are read and hashed here: seconds per 10 GB.
        """
        self.root = root
        #: One line for each pack that was damaged or unusable when the store was opened.
        self.diagnostics: list[str] = []
        self._drafts = itertools.count()
        make_directory(root)
        with disk_errors(root):
            held = lock(root / "lock")
        if held is None:
            own = "stop that one, or give this one a directory of its own"
            raise StoreError(f"{root} is in use by another process: {own}")
        self._lock_descriptor: int | None = held
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
        """The existing pack of a manifest, or a new one without chunks, whose bytes are reserved on disk.

        A new pack is not durable before it is sealed. Raises `StoreError`, and changes nothing, if the disk is full.
        """
        found = self._packs.get(signed.id)
        if found is not None:
            return found
        path = self._fresh(signed.id.hex())
        try:
            with disk_errors(self.root):
                reserve_payload(path / PAYLOAD, manifest.payload_bytes)
                write_new(path / MANIFEST, signed.to_bytes())
                return self._install(path, signed, manifest, new=True)
        except BaseException:
            discard(path)
            raise

    def draft(self) -> Draft:
        """Begin a pack whose manifest is made last. Raises `StoreError`."""
        path = self._fresh(f"draft-{next(self._drafts)}")
        with disk_errors(self.root):
            return Draft(path, self._accept)

    def get(self, manifest_id: bytes) -> Pack | None:
        """The pack of a manifest by its id (32 bytes), or None."""
        return self._packs.get(manifest_id)

    def packs(self) -> list[Pack]:
        """All packs, in order of run and version."""
        return sorted(self._packs.values(), key=lambda p: (p.manifest.run, p.manifest.version, p.manifest.base or -1))

    def remove(self, manifest_id: bytes) -> None:
        """Remove a pack and free its bytes; no effect if there is none. Raises `StoreError`."""
        pack = self._packs.pop(manifest_id, None)
        if pack is None:
            return
        pack.close()
        with disk_errors(pack.path):
            # Renamed first: after a crash in between, the next start removes the rest.
            doomed = pack.path.with_name(pack.path.name + ".new")
            with suppress(FileNotFoundError):  # removed by another process: there is nothing left to do
                pack.path.replace(doomed)
            discard(doomed)

    def close(self) -> None:
        """Close all packs and release the lock, so that another process may open the store."""
        for pack in self._packs.values():
            pack.close()
        self._packs = {}
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None

    def _open_packs(self) -> None:
        for path in sorted(self.root.iterdir()):
            if _NEW_NAME.fullmatch(path.name) and path.is_dir():
                discard(path)
            elif _PACK_NAME.fullmatch(path.name):
                pack = self._load(path)
                if pack is not None:
                    self._packs[pack.id] = pack

    def _load(self, path: Path) -> Pack | None:
        """The pack at `path`; None if it cannot be used: a damaged one is removed, an unreadable one is left alone."""
        try:
            pack = open_pack(path, self._payloads)
            if pack is not None:
                return pack
        except DamagedError as error:
            self.diagnostics.append(f"{path}: {error}: forgotten; it is fetched or made again where it is needed")
        except OSError as error:
            self.diagnostics.append(f"{path}: {error.strerror or error}: left alone; check its permissions")
            return None
        if path.is_dir():
            discard(path)
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
            pack = self._install(draft.path, signed, manifest, new=False)
        draft.close()
        return pack

    def _install(self, path: Path, signed: SignedManifest, manifest: Manifest, *, new: bool) -> Pack:
        """Move a pack to its place and open it. new: it has no chunk yet, so it need not be durable."""
        pack_path = self.root / signed.id.hex()
        set_aside(pack_path)
        path.replace(pack_path)
        if not new:
            sync_directory(self.root)
        pack = Pack(pack_path, signed, manifest, empty=new, payloads=self._payloads)
        self._packs[signed.id] = pack
        return pack
