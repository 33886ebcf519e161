"""Applies a delta to a checkpoint and writes the new checkpoint elsewhere, in one pass; the old one stays as it is.

Theory of operation. Headers come first in every table: they are updated in memory, and give the layout of the new
checkpoint. Its files are created at full size. Every tensor is copied from the old file to the new one in windows:
read, digested, changed by its blocks, written. Windows are independent, so several threads process a bounded number of
them at a time. Memory: some megabytes for each thread, and the headers.

Two digests are computed from the bits that are read and written: of the base and of the new checkpoint. So a wrong base
is detected only at the end: the output must not be used before `rebuild_checkpoint` returns.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from p2psync.delta import algebra
from p2psync.delta.block import Block, block_span
from p2psync.delta.digest import MODULUS, digest_bytes, digest_change, digest_units
from p2psync.delta.tensors import TableRow, TensorKind, Units
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.checkpoint.layout import CheckpointLayout, check_rows, compute_layout
from p2psync.engines.compose import iter_blocks
from p2psync.errors import BaseMismatchError, DigestMismatchError, FormatError, StoreError
from p2psync.parallel import in_parallel
from p2psync.store.deltafile import DeltaFile
from p2psync.store.disk import disk_errors, free_bytes, reserve, write_all

#: Called with the bytes done and the bytes in all.
ReportProgress = Callable[[int, int], None]

#: Maximum bytes of all headers of a checkpoint: 2,000 files of 100 kB each.
MAX_HEADERS_BYTES = 256 << 20
_WINDOW_BYTES = 4 << 20
_ALREADY = "{} is what {} leads to already: there is nothing to apply"


@dataclass(frozen=True, slots=True)
class _Window:
    """Consecutive whole blocks of one tensor: units [start, start + count). blocks: those of them that change."""

    row: TableRow
    start: int
    count: int
    blocks: list[Block]


@dataclass(slots=True)
class _DigestSums:
    """Digests so far, not yet reduced mod 2^128. left: a removed tensor that the delta does not change to zeros."""

    base: int = 0
    outcome: int = 0
    left: str = ""

    def add(self, other: _DigestSums) -> None:
        self.base += other.base
        self.outcome += other.outcome
        self.left = self.left or other.left


def rebuild_checkpoint(
    base: Checkpoint, delta: DeltaFile, target: Path, *, single: str | None, progress: ReportProgress
) -> CheckpointLayout:
    """Applies `delta` to `base` and writes the new checkpoint to `target`; returns its layout.

    target: an empty directory; or an empty file, if the new checkpoint is the one file `single`. progress: called after
    each window. Raises `BaseMismatchError`, `DigestMismatchError`, `FormatError` or `StoreError`; the contents of
    `target` are then invalid.
    """
    manifest = delta.manifest
    check_base_table(base, delta)
    blocks = _BlockReader(iter_blocks(delta, _old_units(base, manifest.rows())))
    try:
        plan, headers, sums = _compute_new_layout(base, delta, blocks, single)
    except FormatError:
        # Headers of a wrong base come out invalid: report the wrong base instead.
        _check_base(base, delta, base.digest())
        raise
    files = {name: target if single else target / name for name in plan.sizes}
    with disk_errors(target):
        _create(files, plan, target)
        for name, header in headers.items():
            _write(files[name], memoryview(header), 0)
    done, total = sum(map(len, headers.values())), sum(row.spec.nbytes for row in manifest.rows())
    rebuild_window = _WindowRebuilder(base, plan, files)
    for window, found in in_parallel(rebuild_window, _windows(manifest.rows(), blocks, manifest.block_units)):
        sums.add(found)
        done += window.count * window.row.spec.width
        progress(done, total)
    _check_base(base, delta, digest_bytes(sums.base))
    if digest_bytes(sums.outcome) != manifest.digest or sums.left:
        raise DigestMismatchError(f"{delta.path} does not lead to the digest that it states: make it again")
    return plan


def check_base_table(base: Checkpoint, delta: DeltaFile) -> None:
    """Raises `BaseMismatchError` unless the delta starts from tensors of the base's names, dtypes and shapes."""
    rows, held = delta.manifest.rows(), set(base.specs)
    wanted = {row.spec for row in rows if row.before}
    if wanted == held:
        return
    if held == {row.spec for row in rows if row.after} and base.digest() == delta.manifest.digest:
        raise BaseMismatchError(_ALREADY.format(base.root, delta.path))
    odd = min(wanted ^ held)
    what = f"{odd.dtype} of shape {list(odd.shape)}" if odd.kind == TensorKind.TENSOR else f"{odd.count} bytes"
    raise BaseMismatchError(
        f"{base.root} is not the base of {delta.path}: {'only the base' if odd in wanted else 'it'} has a "
        f"{TensorKind(odd.kind).name.lower()} {odd.name!r} of {what}; apply it to the checkpoint that it was made from"
    )


def _check_base(base: Checkpoint, delta: DeltaFile, digest: bytes) -> None:
    manifest = delta.manifest
    if digest == manifest.base_digest:
        return
    if digest == manifest.digest:
        raise BaseMismatchError(_ALREADY.format(base.root, delta.path))
    raise BaseMismatchError(
        f"{base.root} is not the base of {delta.path}: its digest is {digest.hex()}, {manifest.base_digest.hex()} is "
        "wanted; apply it to the checkpoint that it was made from"
    )


def _compute_new_layout(
    base: Checkpoint, delta: DeltaFile, blocks: _BlockReader, single: str | None
) -> tuple[CheckpointLayout, dict[str, bytes], _DigestSums]:
    """Updates the headers; returns the new layout, the new headers by file, and the digests of the headers."""
    rows = delta.manifest.rows()
    after = [row.spec for row in rows if row.after]
    check_rows(after)
    sizes = [row.spec.count for row in rows if row.spec.kind == TensorKind.HEADER and row.after]
    if sum(sizes) > MAX_HEADERS_BYTES:
        raise FormatError(f"{delta.path}: {sum(sizes)} bytes of headers are over the limit of {MAX_HEADERS_BYTES}")
    headers: dict[str, bytes] = {}
    sums = _DigestSums()
    for index, row in enumerate(rows):
        if row.spec.kind != TensorKind.HEADER:
            break
        units = np.array(base.units(row.spec)) if row.before else np.zeros(row.spec.count, row.spec.unit)
        sums.add(_apply_window(_Window(row, 0, row.spec.count, blocks.until(index, row.spec.count)), units))
        if row.after:
            headers[row.spec.name] = units.tobytes()
    plan = compute_layout(headers, {spec.name: spec.count for spec in after if spec.kind == TensorKind.FILE})
    if set(plan.offsets) != set(after):
        odd = min(set(plan.offsets).symmetric_difference(after))
        raise FormatError(f"{delta.path}: its headers do not describe its tensors: {odd.name!r}")
    if single and set(plan.sizes) != {single}:
        raise BaseMismatchError(
            f"{delta.path} leads to a directory, {base.root} is a single file: apply it to its base"
        )
    return plan, headers, sums


def _windows(rows: Sequence[TableRow], blocks: _BlockReader, block_units: int) -> Iterator[_Window]:
    for index, row in enumerate(rows):
        if row.spec.kind == TensorKind.HEADER:
            continue
        width, count = row.spec.width, row.spec.count
        span = block_span(width, block_units)
        step = max(1, _WINDOW_BYTES // (span * width)) * span
        for start in range(0, count, step):
            end = min(start + step, count)
            yield _Window(row, start, end - start, blocks.until(index, end))


class _WindowRebuilder:
    """Rebuilds one window; several threads call it."""

    def __init__(self, base: Checkpoint, plan: CheckpointLayout, files: Mapping[str, Path]) -> None:
        self._base, self._plan, self._files = base, plan, files
        self._local = threading.local()

    def __call__(self, window: _Window) -> tuple[_Window, _DigestSums]:
        row = window.row
        nbytes, skip = window.count * row.spec.width, window.start * row.spec.width
        view = self._scratch(nbytes)
        units = np.frombuffer(view, row.spec.unit)
        if row.before:
            path, offset = self._base.locate(row.spec)
            _read(path, view, offset + skip)
        else:
            units[:] = 0
        sums = _apply_window(window, units)
        if row.after:
            target = self._plan.offsets[row.spec]
            with disk_errors(self._files[target.file]):
                _write(self._files[target.file], view, target.offset + skip)
        return window, sums

    def _scratch(self, nbytes: int) -> memoryview:
        held: bytearray | None = getattr(self._local, "held", None)
        if held is None or len(held) < nbytes:
            held = self._local.held = bytearray(max(nbytes, _WINDOW_BYTES))
        return memoryview(held)[:nbytes]


def _apply_window(window: _Window, units: Units) -> _DigestSums:
    """Applies a window's blocks to its units, in place; returns its part of the two digests."""
    row = window.row
    base = digest_units(row.spec, units, window.start) if row.before else 0
    change = 0
    for block in window.blocks:
        here = dataclasses.replace(block, start=block.start - window.start)
        old = algebra.gather(units, here)
        new = old + block.steps
        algebra.scatter(units, here, new)
        if row.before and row.after:
            change += digest_change(row.spec, block.start, block.positions, old, new)
    if not row.after:
        return _DigestSums(base, 0, row.spec.name if units.any() else "")
    if not row.before:
        return _DigestSums(0, digest_units(row.spec, units, window.start))
    return _DigestSums(base, (base + change) % MODULUS)


class _BlockReader:
    """Reads blocks in rising order, up to a given unit."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self._next = next(blocks, None)

    def until(self, row: int, end: int) -> list[Block]:
        """Returns the next blocks of this row that start before unit `end`."""
        taken = []
        while self._next is not None and self._next.row == row and self._next.start < end:
            taken.append(self._next)
            self._next = next(self._blocks, None)
        return taken


def _old_units(base: Checkpoint, rows: Sequence[TableRow]) -> Callable[[int], Units]:
    def units(index: int) -> Units:
        if not rows[index].before:
            raise FormatError(f"it asks for old bits of {rows[index].spec.name}, which has none")
        return base.units(rows[index].spec)

    return units


def _create(files: Mapping[str, Path], plan: CheckpointLayout, target: Path) -> None:
    """Creates every file, fully allocated, so that a full disk is detected before anything is read."""
    free = free_bytes(target)
    if plan.nbytes > free:
        raise StoreError(
            f"{target.parent}: {plan.nbytes - free} bytes are missing for {plan.nbytes}: free disk space there"
        )
    for name, path in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            reserve(descriptor, plan.sizes[name], path)
        finally:
            os.close(descriptor)


def _read(path: Path, view: memoryview, offset: int) -> None:
    """Fills `view`. Raises `FormatError` if the file has become shorter, or cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while len(view):
                got = os.preadv(descriptor, [view], offset)
                if not got:
                    raise FormatError(f"{path} became shorter while it was read: leave it alone, and try again")
                view, offset = view[got:], offset + got
        finally:
            os.close(descriptor)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror} while it was read") from None


def _write(path: Path, view: memoryview, offset: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        write_all(descriptor, view, offset)
    finally:
        os.close(descriptor)
