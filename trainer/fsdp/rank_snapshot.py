"""A rank's snapshot: the bits that were published last of the units that the rank holds or owns, and of no others.

    ROOT/state     which version it is, and of which unit ranges
    ROOT/bits      every tensor of the model, one after the other, each at a multiple of a page

The file is laid out as for the whole model, so that all code that reads and writes tensors works as it is, but it has
holes: only this rank's unit ranges have blocks on the disk, and only they are touched. It takes the address space of a
model, and the disk and memory of a part.

It is changed in place once a version is durable at all ranks. The state names a change before its first write. A
snapshot that was being changed when the process ended, or of another boot, or of other unit ranges, is of no version,
and the next version is written out whole.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from blake3 import blake3

from p2psync.delta.digest import MODULUS, digest_units
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.engines.directory.state import boot_id
from p2psync.protocol.versions import Position
from p2psync.store.disk import disk_errors, reserve
from p2psync.store.records import clear, make_directory, recover_record, save_record
from p2psync.trainer.fsdp.unit_ranges import UnitRanges
from p2psync.trainer.versions.snapshot import lay_out


class _RankSnapshotState(msgspec.Struct, frozen=True):
    """layout: a hash of tensors and unit ranges. position: None while the bits are of no version. newest: number of
    the newest version that was ever begun, -1: none."""

    boot: str
    layout: str
    position: Position | None
    newest: int = -1


class RankSnapshot:
    """The published bits of one rank's unit ranges."""

    def __init__(self, root: Path, specs: Sequence[TensorSpec], unit_ranges: UnitRanges) -> None:
        """Open the snapshot at `root`, or make an empty one. Raises `StoreError`, also if the disk is too full."""
        self._root = root
        self._offsets, self._size = lay_out(specs, mmap.PAGESIZE)
        layout = blake3(msgspec.msgpack.encode((list(specs), list(unit_ranges)))).hexdigest()
        make_directory(root)
        with disk_errors(root):
            state = _load(root / "state")
            known = state.layout == layout and state.boot == boot_id() and self._is_whole()
            self._state = _RankSnapshotState(boot_id(), layout, state.position if known else None, state.newest)
            self._map = self._open(specs, unit_ranges, fresh=not known)

    @property
    def position(self) -> Position | None:
        """The version that the bits are; None if they are of none."""
        return self._state.position

    @property
    def newest(self) -> int:
        """The number of the newest version that was ever begun here; -1: none."""
        return self._state.newest

    def units(self, spec: TensorSpec) -> Units:
        """Returns the bits of one whole tensor, flat; only this rank's unit ranges may be read or written."""
        if spec.count == 0 or self._map is None:
            return np.empty(0, spec.unit)
        return np.frombuffer(self._map, spec.unit, spec.count, self._offsets[spec])

    def digest(self, specs: Sequence[TensorSpec], unit_ranges: UnitRanges) -> int:
        """Returns what these unit ranges add to a version's digest, mod 2^128."""
        parts = (
            digest_units(specs[row], self.units(specs[row])[start:stop], start) for row, start, stop in unit_ranges
        )
        return sum(parts) % MODULUS

    def begin_change(self, version: int) -> None:
        """Record that the bits change to this version: until `end_change` they are of none. Raises `StoreError`."""
        self._save(msgspec.structs.replace(self._state, position=None, newest=max(version, self.newest)))

    def end_change(self, position: Position) -> None:
        """Record that the bits are this version. Raises `StoreError`."""
        self._save(msgspec.structs.replace(self._state, position=position, newest=max(position.version, self.newest)))

    def invalidate(self) -> None:
        """Record that the bits are of no version. Raises `StoreError`."""
        if self._state.position is not None:
            self._save(msgspec.structs.replace(self._state, position=None))

    def close(self) -> None:
        """Close the memory map."""
        self._map = None

    def _save(self, state: _RankSnapshotState) -> None:
        save_record(self._root / "state", state)
        self._state = state

    def _is_whole(self) -> bool:
        path = self._root / "bits"
        return path.is_file() and not path.is_symlink() and path.stat().st_size == self._size

    def _open(self, specs: Sequence[TensorSpec], unit_ranges: UnitRanges, *, fresh: bool) -> mmap.mmap | None:
        path = self._root / "bits"
        if fresh:
            self._save(self._state)  # before the bits go
            clear(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, self._size)
            if fresh:
                for row, start, stop in unit_ranges:
                    # Real blocks: a write to a page for which the disk is too full would end the process.
                    width = specs[row].width
                    reserve(descriptor, (stop - start) * width, path, self._offsets[specs[row]] + start * width)
            if not self._size:
                return None
            return mmap.mmap(descriptor, self._size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(descriptor)


def _load(path: Path) -> _RankSnapshotState:
    """Returns the state on disk; an empty one where it is damaged: then the next version is written out whole."""
    return recover_record(path, _RankSnapshotState, lambda line: None, "") or _RankSnapshotState(boot_id(), "", None)
