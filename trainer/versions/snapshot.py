"""The trainer's one copy of the bits that it published last, in a flat file under a memory map.

    ROOT/state            which file is current, its tensors and its position
    ROOT/bits-<n>         every tensor, one after the other, each at a multiple of 64 bytes

A delta is applied in place once it is durable in the store. Nothing on disk says whether the bits are whole: whenever
the snapshot is opened, every bit is digested and the digest compared with the signed one. So a crash in the middle of a
change, a power loss and a flipped bit are one case: the builder rebuilds the snapshot from the store's anchor and
deltas. While it is open, a `BitRecord` beside the bits shows damage before a version is made from them.
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
from p2psync.delta.digest import MODULUS, digest_bytes, digest_from_bytes
from p2psync.delta.kernels.block_sums import ScanSums, sum_blocks
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.errors import DigestMismatchError
from p2psync.parallel import in_parallel
from p2psync.protocol.manifest import Manifest
from p2psync.protocol.versions import Position
from p2psync.store.disk import disk_errors, reserve
from p2psync.store.guarded_map import GuardedMap
from p2psync.store.records import clear, make_directory, recover_record, save_record
from p2psync.trainer.versions.bit_record import BitRecord, Scans
from p2psync.trainer.versions.decoding_checks import check_outcome

_ALIGN = 64
#: Returns chunk `index` of the manifest being applied.
ReadChunk = Callable[[int], bytes]


class _SnapshotState(msgspec.Struct, frozen=True):
    """file: name of the bits, "" if there are none. position: the version that they were when this was written."""

    file: Annotated[str, msgspec.Meta(pattern=r"^(bits-[0-9]+)?$")]
    specs: list[TensorSpec]
    position: Position | None


_NOTHING = _SnapshotState("", [], None)


def lay_out(specs: Sequence[TensorSpec], align: int) -> tuple[dict[TensorSpec, int], int]:
    """Returns where each tensor begins in a flat file, at multiples of `align`, and the size of the file (bytes)."""
    offsets, end = dict[TensorSpec, int](), 0
    for spec in specs:
        offsets[spec] = end
        end += -(-spec.nbytes // align) * align
    return offsets, end


class PublishedState(Protocol):
    """The bits that were published last: in a `Snapshot`, or in the module itself (`trainer.versions.resident`)."""

    @property
    def position(self) -> Position | None: ...
    @property
    def specs(self) -> Sequence[TensorSpec]: ...
    def units(self, spec: TensorSpec) -> Units: ...
    def is_sound(self) -> bool: ...
    def is_intact(self) -> bool: ...
    def check(self, spec: TensorSpec, scan: ScanSums | None) -> None: ...
    def scrub(self) -> int: ...
    def reopen(self) -> None: ...
    def verify(self) -> None: ...
    def distrust(self) -> None: ...
    def advance(
        self,
        manifest: Manifest,
        chunks: ReadChunk,
        position: Position,
        on_block: Callable[[Block], None] | None = None,
        scans: Scans | None = None,
    ) -> None: ...
    def close(self) -> None: ...


class Snapshot:
    """The bits of the last published version, in a file. After `reopen`, `position` tells which version they are."""

    def __init__(self, root: Path) -> None:
        """A snapshot at `root`, empty before `reopen`."""
        self._root = root
        self._map: GuardedMap | None = None
        self._inode = 0
        self._offsets: dict[TensorSpec, int] = {}
        self._state = _NOTHING
        self._vouched = False
        self._record: BitRecord | None = None

    def reopen(self) -> None:
        """Open the file on disk and digest all of it; state that an error left in memory is dropped.

        Raises `StoreError`.
        """
        self._map = None
        make_directory(self._root)
        with disk_errors(self._root):
            self._state = self._load()
            for stale in self._root.glob("bits-*"):
                if stale.name != self._state.file:
                    clear(stale)
            self._open()
        self.verify()

    def verify(self) -> None:
        """Digest all bits; `position` is None from then on unless the digest is the signed one."""
        self.distrust()
        position = self._state.position
        if position is None:
            return
        record = BitRecord(self._state.specs, self.units)
        if digest_bytes(record.digest) == position.digest:
            self._vouched, self._record = True, record

    def is_sound(self) -> bool:
        """Returns whether a version may be compared with the bits. Cheap: `check` finds damage while that is done."""
        return self.is_intact()

    def is_intact(self) -> bool:
        """Returns whether the file is still there and as long as it was. Cheap: call it before and after use."""
        if self._map is None:
            return True
        try:
            found = (self._root / self._state.file).lstat()
        except OSError:
            return False
        return found.st_ino == self._inode and found.st_size == len(self._map.map) and not self._map.torn

    def check(self, spec: TensorSpec, scan: ScanSums | None) -> None:
        """Compare the sums that a scan of a tensor took with the record; scan None: read the tensor for it.

        Raises `DigestMismatchError` if the snapshot is damaged there, or the scan missed a change.
        """
        record = self._recorded()
        if scan is not None:
            record.check(spec, scan)
        else:
            record.compare(spec, sum_blocks(spec, self.units(spec)))

    def scrub(self) -> int:
        """Digest one more block and return its bytes; 0 at the end of a round, or if the bits were not verified.

        Raises `DigestMismatchError` if the block is damaged.
        """
        return self._recorded().scrub(self.units) if self.position is not None else 0

    def distrust(self) -> None:
        """Take in that the bits are wrong: `position` is None until `reopen`."""
        self._vouched, self._record = False, None

    @property
    def position(self) -> Position | None:
        """The version that the bits are; None if there are none, or they were not verified."""
        return self._state.position if self._vouched else None

    @property
    def specs(self) -> Sequence[TensorSpec]:
        """The tensors, sorted."""
        return self._state.specs if self.position is not None else []

    def units(self, spec: TensorSpec) -> Units:
        """Returns the bits of one tensor, flat, of dtype `spec.unit`; `advance` changes them in place."""
        if spec.count == 0 or self._map is None:
            return np.empty(0, spec.unit)
        return np.frombuffer(self._map.map, spec.unit, spec.count, self._offsets[spec])

    def advance(
        self,
        manifest: Manifest,
        chunks: ReadChunk,
        position: Position,
        on_block: Callable[[Block], None] | None = None,
        scans: Scans | None = None,
    ) -> None:
        """Apply one manifest: an anchor replaces everything, a delta changes in place where the tensors stay.

        chunks: returns chunk `index`. on_block: called with each block, in order. scans: the sums that the scans for
        this delta took, of tensors that were scanned; None: it is an earlier delta, and `verify` must be called before
        a version is compared with the bits. Raises `DigestMismatchError` if the outcome is not what the manifest says;
        then `position` is None.
        """
        record = self._record if scans is not None else None
        self.distrust()
        rows = manifest.rows()
        after = [row.spec for row in rows if row.after]
        if manifest.base is None or any(row.before != row.after for row in rows):
            self._rebuild(manifest, chunks, position, after, on_block)
            return
        with disk_errors(self._root):
            change = self._apply(manifest, chunks, on_block, record)
        check_outcome(manifest, (digest_from_bytes(manifest.base_digest) + change) % MODULUS)
        self._save(msgspec.structs.replace(self._state, position=position))
        self._vouched = True
        if record is None or scans is None:
            return
        for spec in after:
            scan = scans.get(spec)
            record.set_sums(spec, scan.new if scan is not None else sum_blocks(spec, self.units(spec)))
        self._record = record

    def close(self) -> None:
        """Close the memory map."""
        self._map = None

    def _rebuild(
        self,
        manifest: Manifest,
        chunks: ReadChunk,
        position: Position,
        after: list[TensorSpec],
        on_block: Callable[[Block], None] | None,
    ) -> None:
        """Lay out a new file for other tensors, copy those that stay, apply, and only then remove the old file."""
        old, kept = self._state, self._kept(manifest)
        number = int(old.file.removeprefix("bits-") or 0) + 1
        every = sorted({row.spec for row in manifest.rows()})
        self._state = _SnapshotState(f"bits-{number}", every, old.position)
        with disk_errors(self._root):
            self._create()
            for spec, units in kept.items():
                self.units(spec)[:] = units
            self._apply(manifest, chunks, on_block)
        removed = [row.spec for row in manifest.rows() if not row.after]
        if any(self.units(spec).any() for spec in removed):
            raise DigestMismatchError(f"version {manifest.version} removes a tensor that is not what it says")
        offsets = self._offsets
        self._state = _SnapshotState(self._state.file, every, position)
        if removed:
            # Removed tensors were needed to apply; the file is laid out once more without them.
            self._compact(after, offsets)
        # This last check reads the very bits that are kept.
        record = BitRecord(after, self.units)
        check_outcome(manifest, record.digest)
        self._save(self._state)
        self._vouched, self._record = True, record
        if old.file:
            (self._root / old.file).unlink(missing_ok=True)

    def _kept(self, manifest: Manifest) -> dict[TensorSpec, Units]:
        """Returns the bits that a delta starts from."""
        if manifest.base is None:
            return {}
        return {spec: self.units(spec) for spec in self._state.specs}

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

    def _apply(
        self,
        manifest: Manifest,
        chunks: ReadChunk,
        on_block: Callable[[Block], None] | None,
        record: BitRecord | None = None,
    ) -> int:
        rows = manifest.rows()
        change = 0

        def base(row: int) -> Units:
            # A block is read against its own range alone, and no two blocks of a step meet.
            return self.units(rows[row].spec)

        def add(data: bytes) -> list[tuple[Block, int]]:
            added = []
            for block in iter_chunk(data, rows, manifest.block_units, base):
                spec = rows[block.row].spec
                more = apply_with_digest(spec, self.units(spec), block)
                added.append((block, more))
            return added

        for added in in_parallel(add, map(chunks, range(manifest.chunks))):
            for block, more in added:
                change += more
                if record is not None:
                    record.block_applied(rows[block.row].spec, block, more)
                if on_block is not None:
                    on_block(block)
        return change

    def _load(self) -> _SnapshotState:
        """Returns the state on disk; an empty one where it is damaged: then the bits are rebuilt from the store."""
        return recover_record(self._root / "state", _SnapshotState, lambda line: None, "") or _NOTHING

    def _save(self, state: _SnapshotState) -> None:
        save_record(self._root / "state", state)
        self._state = state

    def _open(self) -> None:
        if not self._state.file:
            return
        path = self._root / self._state.file
        size = self._lay_out()
        if path.is_symlink() or not path.is_file() or path.stat().st_size != size:
            self._state = _NOTHING
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
        self._offsets, size = lay_out(self._state.specs, _ALIGN)
        return size

    def _recorded(self) -> BitRecord:
        if self._record is None:
            raise DigestMismatchError(f"{self._root} is not verified")
        return self._record
