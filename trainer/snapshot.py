"""The trainer's one copy of the bits that it published last, in a flat file under a memory map.

    ROOT/state            which file is current, its tensors, its position, and the delta being applied, if any
    ROOT/bits-<n>         every tensor, one after the other, each at a multiple of 64 bytes

A delta is applied in place once it is durable in the store; the state names it before the first write, so a crash in
the middle is seen at the next start. Then, or when the machine lost power (another boot, and the digest is not the
one signed), the snapshot is made anew from the store's anchor and deltas: it is never guessed at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
import numpy as np

from p2psync.delta.algebra import apply_with_digest
from p2psync.delta.block import Block
from p2psync.delta.container import iter_chunk
from p2psync.delta.digest import MODULUS, digest_bytes, digest_from_bytes, digest_units
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.engines.state import boot_id
from p2psync.errors import DamagedError, DigestMismatchError
from p2psync.parallel import in_parallel
from p2psync.protocol.manifest import Manifest
from p2psync.protocol.versions import Position
from p2psync.store.disk import disk_errors, reserve
from p2psync.store.guarded_map import GuardedMap
from p2psync.store.records import clear, load_record, make_directory, save_record, set_aside

_ALIGN = 64
#: Gives chunk `index` of the manifest being applied.
Chunks = Callable[[int], bytes]


class _State(msgspec.Struct, frozen=True):
    """file: name of the bits. applying: a change was begun and not ended, so the bits are neither version."""

    boot: str
    file: Annotated[str, msgspec.Meta(pattern=r"^(bits-[0-9]+)?$")]
    specs: list[TensorSpec]
    position: Position | None
    applying: bool = False


class Keeper(Protocol):
    """What keeps the bits that were published last: `Snapshot`, or the module itself (`trainer.resident`)."""

    @property
    def position(self) -> Position | None: ...
    @property
    def specs(self) -> Sequence[TensorSpec]: ...
    def units(self, spec: TensorSpec) -> Units: ...
    def sound(self) -> bool: ...
    def whole(self) -> bool: ...
    def reopen(self) -> None: ...
    def distrust(self) -> None: ...
    def advance(
        self, manifest: Manifest, chunks: Chunks, position: Position, take: Callable[[Block], None] | None = None
    ) -> None: ...
    def close(self) -> None: ...


class Snapshot:
    """The bits of the last published version."""

    def __init__(self, root: Path) -> None:
        """Open the snapshot at `root`, made if need be. Raises `StoreError`."""
        self._root = root
        self._map: GuardedMap | None = None
        self._inode = 0
        self._offsets: dict[TensorSpec, int] = {}
        self.reopen()

    def reopen(self) -> None:
        """Take what is on disk; whatever an error left in memory is forgotten. Raises `StoreError`."""
        self._map = None
        make_directory(self._root)
        with disk_errors(self._root):
            self._state = self._load()
            for stale in self._root.glob("bits-*"):
                if stale.name != self._state.file:
                    clear(stale)
            self._open()
        self._recheck()

    def sound(self) -> bool:
        """Whether the bits may be compared with."""
        return self.whole()

    def whole(self) -> bool:
        """Whether the file is still there, and as long as it was. Cheap: to be asked before and after use."""
        if self._map is None:
            return True
        try:
            found = (self._root / self._state.file).lstat()
        except OSError:
            return False
        return found.st_ino == self._inode and found.st_size == len(self._map.map) and not self._map.torn

    def distrust(self) -> None:
        """The bits turned out not to be what they should be: nothing is vouched for until the next anchor."""
        self._save(msgspec.structs.replace(self._state, applying=True))

    @property
    def position(self) -> Position | None:
        """What the bits are; None if there are none or they cannot be vouched for."""
        return None if self._state.applying else self._state.position

    @property
    def specs(self) -> Sequence[TensorSpec]:
        """The tensors, sorted."""
        return self._state.specs if self.position is not None else []

    def units(self, spec: TensorSpec) -> Units:
        """The bits of one tensor; changed in place by `advance`."""
        if spec.count == 0 or self._map is None:
            return np.empty(0, spec.unit)
        return np.frombuffer(self._map.map, spec.unit, spec.count, self._offsets[spec])

    def advance(
        self, manifest: Manifest, chunks: Chunks, position: Position, take: Callable[[Block], None] | None = None
    ) -> None:
        """Go along one manifest: an anchor replaces everything, a delta changes in place where the tensors stay.

        take: is given each block, in order. Raises `DigestMismatchError` if the outcome is not what the
        manifest says; then nothing is vouched for.
        """
        rows = manifest.rows()
        after = [row.spec for row in rows if row.after]
        if manifest.base is None or any(row.before != row.after for row in rows):
            self._rebuild(manifest, chunks, position, after, take)
            return
        self._save(msgspec.structs.replace(self._state, applying=True))
        with disk_errors(self._root):
            change = self._apply(manifest, chunks, take)
        self._check(manifest, (digest_from_bytes(manifest.base_digest) + change) % MODULUS)
        self._save(msgspec.structs.replace(self._state, applying=False, position=position, boot=boot_id()))

    def close(self) -> None:
        """Let go of the map."""
        self._map = None

    def _rebuild(
        self,
        manifest: Manifest,
        chunks: Chunks,
        position: Position,
        after: list[TensorSpec],
        take: Callable[[Block], None] | None,
    ) -> None:
        """The tensors change: lay out a new file, take over what stays, apply, and only then let the old one go."""
        old, kept = self._state, {spec: self.units(spec) for spec in self.specs} if manifest.base is not None else {}
        number = int(old.file.removeprefix("bits-") or 0) + 1
        every = sorted({row.spec for row in manifest.rows()})
        self._state = _State(boot_id(), f"bits-{number}", every, old.position, applying=True)
        with disk_errors(self._root):
            self._create()
            for spec, units in kept.items():
                self.units(spec)[:] = units
            self._apply(manifest, chunks, take)
        removed = [row.spec for row in manifest.rows() if not row.after]
        if any(self.units(spec).any() for spec in removed):
            raise DigestMismatchError(f"version {manifest.version} removes a tensor that is not what it says")
        self._check(manifest, self._digest(after))
        offsets = self._offsets
        self._state = _State(boot_id(), self._state.file, every, position)
        if removed:
            # Removed tensors were needed to apply; the file is laid out once more without them.
            self._compact(after, offsets)
        self._save(self._state)
        if old.file:
            (self._root / old.file).unlink(missing_ok=True)

    def _compact(self, after: list[TensorSpec], offsets: dict[TensorSpec, int]) -> None:
        kept = {spec: self.units(spec) for spec in after if spec in offsets}
        stale = self._state.file
        number = int(stale.removeprefix("bits-")) + 1
        self._state = msgspec.structs.replace(self._state, file=f"bits-{number}", specs=after)
        with disk_errors(self._root):
            self._create()
            for spec, units in kept.items():
                self.units(spec)[:] = units
            (self._root / stale).unlink(missing_ok=True)

    def _digest(self, specs: Sequence[TensorSpec]) -> int:
        return sum(digest_units(spec, self.units(spec)) for spec in specs) % MODULUS

    def _apply(self, manifest: Manifest, chunks: Chunks, take: Callable[[Block], None] | None) -> int:
        rows = manifest.rows()
        change = 0

        def base(row: int) -> Units:
            # A block is read against its own range alone, and no two blocks of a step meet.
            return self.units(rows[row].spec)

        def add(data: bytes) -> tuple[list[Block], int]:
            blocks, added = [], 0
            for block in iter_chunk(data, rows, manifest.block_units, base):
                spec = rows[block.row].spec
                added += apply_with_digest(spec, self.units(spec), block)
                if take is not None:
                    blocks.append(block)
            return blocks, added

        for blocks, added in in_parallel(add, map(chunks, range(manifest.chunks))):
            change += added
            for block in blocks:
                assert take is not None
                take(block)
        return change

    def _check(self, manifest: Manifest, digest: int) -> None:
        if digest_bytes(digest) != manifest.digest:
            raise DigestMismatchError(
                f"version {manifest.version} decodes to other bits than were encoded: not announced"
            )

    def _load(self) -> _State:
        """The state; none where it is damaged: then the bits are made anew from the store."""
        nothing = _State(boot_id(), "", [], None)
        try:
            return load_record(self._root / "state", _State) or nothing
        except DamagedError:
            set_aside(self._root / "state")
            return nothing

    def _save(self, state: _State) -> None:
        save_record(self._root / "state", state)
        self._state = state

    def _open(self) -> None:
        if not self._state.file:
            return
        path = self._root / self._state.file
        size = self._lay_out()
        if path.is_symlink() or not path.is_file() or path.stat().st_size != size:
            self._state = _State(boot_id(), "", [], None)
            return
        self._map_file(path, size)

    def _create(self) -> None:
        size = self._lay_out()
        path = self._root / self._state.file
        clear(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            reserve(descriptor, size, path)
        finally:
            os.close(descriptor)
        self._map_file(path, size)

    def _map_file(self, path: Path, size: int) -> None:
        if not size:
            self._map = None
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._inode = os.fstat(descriptor).st_ino
            self._map = GuardedMap(descriptor, size, writable=True)
        finally:
            os.close(descriptor)

    def _lay_out(self) -> int:
        offset = 0
        self._offsets = {}
        for spec in self._state.specs:
            self._offsets[spec] = offset
            offset += -(-spec.nbytes // _ALIGN) * _ALIGN
        return offset

    def _recheck(self) -> None:
        """After another boot the pages may not have reached the disk: believe the digest alone."""
        position = self.position
        if position is None or self._state.boot == boot_id():
            return
        good = digest_bytes(self._digest(self._state.specs)) == position.digest
        self._save(msgspec.structs.replace(self._state, applying=not good, boot=boot_id()))
