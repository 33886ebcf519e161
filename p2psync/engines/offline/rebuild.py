"""Applying a delta to a checkpoint that stays as it is: the new checkpoint is written elsewhere, in one pass.

Theory of operation. Headers come first in every table: they are patched in memory, and tell where each tensor of the
new checkpoint lives. Its files are then made at full size, and every tensor goes from the old file to the new one in
windows: read, digested, changed by its blocks, written. Windows are independent, so they are worked on by several
threads, a bounded number at a time. Memory: some megabytes a thread, and the headers.

Two digests are summed on the way, from the very bits that are read and written: of the base and of the outcome. So it
is only known at the end whether the base was the right one; nobody may use what was written before `rebuild_checkpoint`
returns.
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
from p2psync.delta.tensors import Kind, Row, Units
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.checkpoint.layout import CheckpointLayout, check_rows, compute_layout
from p2psync.engines.compose import iter_blocks
from p2psync.errors import BaseMismatchError, DigestMismatchError, FormatError, StoreError
from p2psync.parallel import in_parallel
from p2psync.store.deltafile import DeltaFile
from p2psync.store.disk import disk_errors, free_bytes, reserve, write_all

#: Told how many bytes of how many are done.
Progress = Callable[[int, int], None]

#: All headers of a checkpoint together: 2,000 files of 100 kB each.
MAX_HEADERS_BYTES = 256 << 20
_WINDOW_BYTES = 4 << 20
_ALREADY = "{} is what {} leads to already: there is nothing to apply"


@dataclass(frozen=True, slots=True)
class _Window:
    """A run of whole blocks of one tensor, and those of its blocks that change."""

    row: Row
    start: int
    count: int
    blocks: list[Block]


@dataclass(slots=True)
class _Sums:
    """Digests so far, not yet reduced mod 2^128; left: a removed tensor that the delta does not lead to zeros."""

    base: int = 0
    outcome: int = 0
    left: str = ""

    def add(self, other: _Sums) -> None:
        self.base += other.base
        self.outcome += other.outcome
        self.left = self.left or other.left


def rebuild_checkpoint(
    base: Checkpoint, delta: DeltaFile, place: Path, *, single: str | None, progress: Progress
) -> CheckpointLayout:
    """Write what `delta` makes of `base` to `place`; returns what was laid out there.

    place: an empty directory; or an empty file, if the outcome is the one file `single`. Raises `BaseMismatchError`,
    `DigestMismatchError`, `FormatError` or `StoreError`; then what lies at `place` is rubbish.
    """
    manifest = delta.manifest
    check_base_table(base, delta)
    blocks = _Peekable(iter_blocks(delta, _old_units(base, manifest.rows())))
    try:
        plan, headers, sums = _lay_out(base, delta, blocks, single)
    except FormatError:
        # Patching headers that are not the base's makes rubbish of them: say what is really wrong.
        _check_base(base, delta, base.digest())
        raise
    files = {name: place if single else place / name for name in plan.sizes}
    with disk_errors(place):
        _create(files, plan, place)
        for name, header in headers.items():
            _write(files[name], memoryview(header), 0)
    done, total = sum(map(len, headers.values())), sum(row.spec.nbytes for row in manifest.rows())
    work = _Work(base, plan, files)
    for window, found in in_parallel(work, _windows(manifest.rows(), blocks, manifest.block_units)):
        sums.add(found)
        done += window.count * window.row.spec.width
        progress(done, total)
    _check_base(base, delta, digest_bytes(sums.base))
    if digest_bytes(sums.outcome) != manifest.digest or sums.left:
        raise DigestMismatchError(f"{delta.path} does not lead to the digest that it states: make it again")
    return plan


def check_base_table(base: Checkpoint, delta: DeltaFile) -> None:
    """Raise `BaseMismatchError` unless the delta starts from tensors of these names, dtypes and shapes."""
    rows, held = delta.manifest.rows(), set(base.specs)
    wanted = {row.spec for row in rows if row.before}
    if wanted == held:
        return
    if held == {row.spec for row in rows if row.after} and base.digest() == delta.manifest.digest:
        raise BaseMismatchError(_ALREADY.format(base.root, delta.path))
    odd = min(wanted ^ held)
    what = f"{odd.dtype} of shape {list(odd.shape)}" if odd.kind == Kind.TENSOR else f"{odd.count} bytes"
    raise BaseMismatchError(
        f"{base.root} is not the base of {delta.path}: {'only the base' if odd in wanted else 'it'} has a "
        f"{Kind(odd.kind).name.lower()} {odd.name!r} of {what}; apply it to the checkpoint that it was made from"
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


def _lay_out(
    base: Checkpoint, delta: DeltaFile, blocks: _Peekable, single: str | None
) -> tuple[CheckpointLayout, dict[str, bytes], _Sums]:
    """Patch the headers; returns the new layout, the new headers, and the digests of the headers."""
    rows = delta.manifest.rows()
    after = [row.spec for row in rows if row.after]
    check_rows(after)
    sizes = [row.spec.count for row in rows if row.spec.kind == Kind.HEADER and row.after]
    if sum(sizes) > MAX_HEADERS_BYTES:
        raise FormatError(f"{delta.path}: {sum(sizes)} bytes of headers are over the limit of {MAX_HEADERS_BYTES}")
    headers: dict[str, bytes] = {}
    sums = _Sums()
    for index, row in enumerate(rows):
        if row.spec.kind != Kind.HEADER:
            break
        units = np.array(base.units(row.spec)) if row.before else np.zeros(row.spec.count, row.spec.unit)
        sums.add(_change(_Window(row, 0, row.spec.count, blocks.until(index, row.spec.count)), units))
        if row.after:
            headers[row.spec.name] = units.tobytes()
    plan = compute_layout(headers, {spec.name: spec.count for spec in after if spec.kind == Kind.FILE})
    if set(plan.places) != set(after):
        odd = min(set(plan.places).symmetric_difference(after))
        raise FormatError(f"{delta.path}: its headers do not describe its tensors: {odd.name!r}")
    if single and set(plan.sizes) != {single}:
        raise BaseMismatchError(
            f"{delta.path} leads to a directory, {base.root} is a single file: apply it to its base"
        )
    return plan, headers, sums


def _windows(rows: Sequence[Row], blocks: _Peekable, block_units: int) -> Iterator[_Window]:
    for index, row in enumerate(rows):
        if row.spec.kind == Kind.HEADER:
            continue
        width, count = row.spec.width, row.spec.count
        span = block_span(width, block_units)
        step = max(1, _WINDOW_BYTES // (span * width)) * span
        for start in range(0, count, step):
            end = min(start + step, count)
            yield _Window(row, start, end - start, blocks.until(index, end))


class _Work:
    """What is done with one window; called by several threads."""

    def __init__(self, base: Checkpoint, plan: CheckpointLayout, files: Mapping[str, Path]) -> None:
        self._base, self._plan, self._files = base, plan, files
        self._local = threading.local()

    def __call__(self, window: _Window) -> tuple[_Window, _Sums]:
        row = window.row
        nbytes, skip = window.count * row.spec.width, window.start * row.spec.width
        view = self._scratch(nbytes)
        units = np.frombuffer(view, row.spec.unit)
        if row.before:
            path, offset = self._base.place(row.spec)
            _read(path, view, offset + skip)
        else:
            units[:] = 0
        sums = _change(window, units)
        if row.after:
            target = self._plan.places[row.spec]
            with disk_errors(self._files[target.file]):
                _write(self._files[target.file], view, target.offset + skip)
        return window, sums

    def _scratch(self, nbytes: int) -> memoryview:
        held: bytearray | None = getattr(self._local, "held", None)
        if held is None or len(held) < nbytes:
            held = self._local.held = bytearray(max(nbytes, _WINDOW_BYTES))
        return memoryview(held)[:nbytes]


def _change(window: _Window, units: Units) -> _Sums:
    """Apply a window's blocks to its units in place; returns what it adds to the digests of base and outcome."""
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
        return _Sums(base, 0, row.spec.name if units.any() else "")
    if not row.before:
        return _Sums(0, digest_units(row.spec, units, window.start))
    return _Sums(base, (base + change) % MODULUS)


class _Peekable:
    """Blocks in rising order, taken up to a place."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self._next = next(blocks, None)

    def until(self, row: int, end: int) -> list[Block]:
        """All blocks that come next, of this row, and begin before unit `end`."""
        taken = []
        while self._next is not None and self._next.row == row and self._next.start < end:
            taken.append(self._next)
            self._next = next(self._blocks, None)
        return taken


def _old_units(base: Checkpoint, rows: Sequence[Row]) -> Callable[[int], Units]:
    def units(index: int) -> Units:
        if not rows[index].before:
            raise FormatError(f"it asks for old bits of {rows[index].spec.name}, which has none")
        return base.units(rows[index].spec)

    return units


def _create(files: Mapping[str, Path], plan: CheckpointLayout, place: Path) -> None:
    """Make every file, all blocks allocated, so that a full disk is known before anything is read."""
    free = free_bytes(place)
    if plan.nbytes > free:
        raise StoreError(
            f"{place.parent}: {plan.nbytes - free} bytes are missing for {plan.nbytes}: free disk space there"
        )
    for name, path in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            reserve(descriptor, plan.sizes[name], path)
        finally:
            os.close(descriptor)


def _read(path: Path, view: memoryview, offset: int) -> None:
    """Fill `view`. Raises `FormatError` if the file has become shorter, or cannot be read."""
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
