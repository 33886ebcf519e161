"""The commands on deltas between checkpoints on disk, without a trainer or a swarm: diff, apply, info, squash, invert.

A checkpoint is a .safetensors file or a directory of them; every file is part of it, byte for byte. Only its two
digests say between which checkpoints such a delta leads: its manifest is unsigned, of the run of 32 zeros, version 0 →
1, created at 0. So deltas can be squashed and inverted, and equal changes make equal files. Deltas that a trainer
published are read too; squashing or inverting loses their versions.

Nothing is overwritten in place: an output is written to a temporary path and moved when it is complete and checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from p2psync.delta.block import Block
from p2psync.delta.container import PROFILES
from p2psync.delta.digest import MODULUS, digest_bytes, digest_units
from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec, Units
from p2psync.engines.base_free import make_base_free, needs_base
from p2psync.engines.checkpoint.file_names import SAFETENSORS
from p2psync.engines.checkpoint.files import Checkpoint, files_signature
from p2psync.engines.compose import BASE_FREE_PROFILES, DeltaReader, compose_chain, invert_delta, iter_blocks
from p2psync.engines.offline.rebuild import ReportProgress, check_base_table, rebuild_checkpoint
from p2psync.errors import FormatError, StoreError, UsageError
from p2psync.parallel import InOrder
from p2psync.protocol.manifest import Manifest, open_signed
from p2psync.store.deltafile import DeltaFile, DeltaFileWriter
from p2psync.store.encoding import ChunkSink, Encoding, rows_between
from p2psync.store.staging import StagedPath, refuse_existing

#: The run of deltas that no trainer published.
OFFLINE_RUN = "0" * 32
#: The name of a single file within its checkpoint, so that its own name does not matter.
_SINGLE = "model" + SAFETENSORS
_DIGEST_BYTES = 4 << 20


class InfoReport(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a delta file.

    run, base, version: None if no trainer published it. signer: public key in hex. model_bytes: of all files after the
    delta. tensors: TENSOR rows after it; added, removed: those that it adds and removes. files: after it. changed:
    units that differ (for an added or removed tensor: units that are not 0). total: units in all. ratio: model_bytes to
    file_bytes. changed_fraction: changed to total. bits_per_changed: payload bits for each changed unit.
    """

    delta: str
    kind: str
    profile: str
    run: str | None
    base: int | None
    version: int | None
    signer: str | None
    base_digest: str
    digest: str
    file_bytes: int
    payload_bytes: int
    chunks: int
    block_units: int
    model_bytes: int
    files: int
    tensors: int
    added: int
    removed: int
    changed: int
    total: int
    changed_fraction: float
    bits_per_changed: float | None
    ratio: float


class DiffReport(InfoReport, frozen=True, kw_only=True):
    """A delta made from checkpoints. gb_per_second: 10^9 bytes of the larger checkpoint scanned a second."""

    old: str
    new: str
    seconds: float
    gb_per_second: float


class DerivedReport(InfoReport, frozen=True, kw_only=True):
    """A delta made from deltas. input_bytes: of their files."""

    inputs: list[str]
    input_bytes: int
    seconds: float


class ApplyReport(msgspec.Struct, frozen=True, kw_only=True):
    """A new checkpoint. model_bytes: of all its files. gb_per_second: 10^9 bytes of them written a second."""

    old: str
    delta: str
    out: str
    digest: str
    model_bytes: int
    files: int
    tensors: int
    changed: int
    seconds: float
    gb_per_second: float


def _no_progress(done: int, total: int) -> None:
    pass


def diff(
    old: Path,
    new: Path,
    out: Path,
    *,
    profile: str = "fast",
    force: bool = False,
    progress: ReportProgress = _no_progress,
) -> DiffReport:
    """Writes to `out` the delta that leads from checkpoint `old` to `new`. force: replace `out` if it exists.

    Raises `UsageError` for a file and a directory together or an unknown profile, `FormatError` for an invalid
    checkpoint or one that changes while it is read, `StoreError`.
    """
    began = time.monotonic()
    if profile not in PROFILES:
        raise UsageError(f"unknown profile {profile!r}; known: {', '.join(PROFILES)}")
    seen = files_signature(old), files_signature(new)
    with _checkpoint(old) as before, _checkpoint(new) as after:
        if old.is_dir() != new.is_dir():
            raise UsageError(f"{old} and {new}: name two .safetensors files, or two directories")
        _check_target(out, [old, new], force=force)
        rows = rows_between(before.specs, after.specs)
        with DeltaFileWriter(out, force=force) as writer:
            encoding, base = _encode(writer, rows, profile, before, after, progress)
            if (files_signature(old), files_signature(new)) != seen:
                raise FormatError(f"{old} or {new} changed while it was read: leave them alone, and try again")
            digest = digest_bytes((base + encoding.digest_change) % MODULUS)
            writer.finish(_manifest(encoding, digest_bytes(base), digest))
        size = max(before.layout.nbytes, after.layout.nbytes)
    seconds = time.monotonic() - began
    figures = msgspec.structs.asdict(_described(out))
    return DiffReport(**figures, old=str(old), new=str(new), seconds=seconds, gb_per_second=_rate(size, seconds))


def apply(
    old: Path, delta: Path, out: Path, *, force: bool = False, progress: ReportProgress = _no_progress
) -> ApplyReport:
    """Applies `delta` to checkpoint `old`, which stays as it is, and writes the new checkpoint to `out`.

    force: replace `out` if it exists and is a checkpoint. Raises `BaseMismatchError` if `old` is not the delta's base,
    `DigestMismatchError`, `FormatError`, `StoreError`, `UsageError`; then `out` is as it was.
    """
    began = time.monotonic()
    with _delta(delta) as opened, _checkpoint(old) as base:
        single = None if old.is_dir() else _SINGLE
        _check_target(out, [old, delta], force=force)
        if single and out.suffix != SAFETENSORS:
            raise UsageError(f"{out}: {old} is a {SAFETENSORS} file, so what comes out must be named like one")
        if force:
            _check_replaceable(out)
        check_base_table(base, opened)
        with StagedPath(out, directory=single is None, force=force) as staging:
            plan = rebuild_checkpoint(base, opened, staging.path, single=single, progress=progress)
            staging.place()
        manifest = opened.manifest
    seconds = time.monotonic() - began
    return ApplyReport(
        old=str(old),
        delta=str(delta),
        out=str(out),
        digest=manifest.digest.hex(),
        model_bytes=plan.nbytes,
        files=len(plan.sizes),
        tensors=sum(spec.kind == TensorKind.TENSOR for spec in plan.offsets),
        changed=manifest.changed,
        seconds=seconds,
        gb_per_second=_rate(plan.nbytes, seconds),
    )


def info(delta: Path) -> InfoReport:
    """Describes a delta (or anchor) file, after verifying every chunk, and decoding it if that needs no base.

    Raises `FormatError`, `TrustError` for a signature that is wrong, `StoreError`.
    """
    with _delta(delta, anchors=True) as opened:
        if opened.manifest.profile in BASE_FREE_PROFILES:
            for _ in iter_blocks(opened):
                pass
        else:
            for index in range(opened.manifest.chunks):
                opened.chunk(index)
    return _described(delta)


def squash(
    deltas: Sequence[Path],
    out: Path,
    *,
    base: Path | None = None,
    force: bool = False,
    progress: ReportProgress = _no_progress,
) -> DerivedReport:
    """Writes to `out` the one delta, of profile `fast`, that equals the chain of `deltas`.

    base: the checkpoint from which the first one starts, needed if one of them is of profile `tight`. Raises
    `BaseMismatchError` if a delta does not start where the one before it ends, or `base` is another checkpoint,
    `UsageError`, `FormatError`, `StoreError`.
    """
    if not deltas:
        raise UsageError("name the deltas of a chain, in order")
    return _derive(deltas, out, compose_chain, base, force=force, progress=progress)


def invert(
    delta: Path, out: Path, *, base: Path | None = None, force: bool = False, progress: ReportProgress = _no_progress
) -> DerivedReport:
    """Writes to `out` the inverse of `delta`. base and errors: as for `squash`."""
    return _derive([delta], out, lambda chain: invert_delta(chain[0]), base, force=force, progress=progress, swap=True)


def _derive(
    paths: Sequence[Path],
    out: Path,
    derive: Callable[[Sequence[DeltaReader]], tuple[list[TableRow], Iterator[Block]]],
    base: Path | None,
    *,
    force: bool,
    progress: ReportProgress,
    swap: bool = False,
) -> DerivedReport:
    began = time.monotonic()
    _check_target(out, [*paths, *([base] if base else [])], force=force)
    with ExitStack() as stack:
        given = [stack.enter_context(_delta(path)) for path in paths]
        chain: list[DeltaReader] = list(given)
        if needs_base(given):
            weights = stack.enter_context(_checkpoint(base)) if base is not None else None
            scratch = stack.enter_context(StagedPath(out.with_name(f"{out.name}.steps"), directory=True))
            chain = make_base_free(given, weights, scratch.path, stack)
        rows, blocks = derive(chain)
        ends = chain[0].manifest.base_digest, chain[-1].manifest.digest
        total = sum(row.spec.nbytes for row in rows)
        starts = _offsets(rows)
        writer = stack.enter_context(DeltaFileWriter(out, force=force))
        encoding = Encoding(writer, rows)
        for block in blocks:
            encoding.take_block(block)
            progress(starts[block.row] + block.start * rows[block.row].spec.width, total)
        encoding.finish()
        writer.finish(_manifest(encoding, *(reversed(ends) if swap else ends)))
        progress(total, total)
    return DerivedReport(
        **msgspec.structs.asdict(_described(out)),
        inputs=[str(path) for path in paths],
        input_bytes=sum(path.stat().st_size for path in paths),
        seconds=time.monotonic() - began,
    )


def _encode(
    sink: ChunkSink,
    rows: Sequence[TableRow],
    profile: str,
    before: Checkpoint,
    after: Checkpoint,
    progress: ReportProgress,
) -> tuple[Encoding, int]:
    """Encodes every row; returns the encoding, and the digest of `before`, computed on the way."""
    total, done, sums = sum(row.spec.nbytes for row in rows), 0, [0]

    def add(part: int) -> None:
        sums[0] += part

    digests = InOrder(add)
    try:
        with Encoding(sink, rows, profile=profile) as encoding:
            for index, row in enumerate(rows):
                old = before.units(row.spec) if row.before else None
                encoding.take(index, old, after.units(row.spec) if row.after else None)
                for part in _parts(row.spec, old):
                    digests.ask(partial(digest_units, *part))
                done += row.spec.nbytes
                progress(done, total)
            encoding.finish()
        digests.finish()
    finally:
        digests.give_up()
    return encoding, sums[0] % MODULUS


def _parts(spec: TensorSpec, units: Units | None) -> Iterator[tuple[TensorSpec, Units, int]]:
    step = _DIGEST_BYTES // spec.width
    if units is not None:
        for start in range(0, spec.count, step):
            yield spec, units[start : start + step], start


def _manifest(encoding: Encoding, base_digest: bytes, digest: bytes) -> Manifest:
    return encoding.manifest(
        run=OFFLINE_RUN, epoch=0, version=1, base=0, digest=digest, base_digest=base_digest, created=0.0
    )


def _checkpoint(path: Path) -> Checkpoint:
    return Checkpoint.open(path, single=_SINGLE)


def _delta(path: Path, *, anchors: bool = False) -> DeltaFile:
    """Opens a delta file; a signature, of any key, must be valid."""
    opened = DeltaFile(path)
    try:
        if opened.signed is not None:
            open_signed(opened.signed.to_bytes(), None)
        if opened.manifest.base is None and not anchors:
            raise FormatError(f"{path} is an anchor, a version written out whole: a delta is wanted")
    except BaseException:
        opened.close()
        raise
    return opened


def _check_target(out: Path, inputs: Sequence[Path], *, force: bool) -> None:
    """Raises unless `out` may be written: with `force` if it exists, and never if it holds, or lies in, an input."""
    target = out.resolve()
    for path in inputs:
        given = path.resolve()
        if target == given or target in given.parents or (given in target.parents and given.is_dir()):
            raise UsageError(f"{out} is, holds or lies in {path}, which is only read: choose another place")
    if not force:
        refuse_existing(out)


def _check_replaceable(out: Path) -> None:
    if not out.exists():
        return
    try:
        Checkpoint.open(out).close()
    except FormatError:
        raise StoreError(f"{out} is not a checkpoint, so --force does not replace it: move it away") from None


def _described(path: Path) -> InfoReport:
    with DeltaFile(path) as opened:
        manifest, signed = opened.manifest, opened.signed
        rows = manifest.rows()
    offline = manifest.run == OFFLINE_RUN
    size = path.stat().st_size
    weights = [row for row in rows if row.spec.kind == TensorKind.TENSOR]
    stored = [row.spec for row in rows if row.after]
    # A safetensors file is its header and its tensors, without gaps: this is the size of all files.
    model = sum(spec.nbytes for spec in stored)
    return InfoReport(
        delta=str(path),
        kind=manifest.kind,
        profile=manifest.profile,
        run=None if offline else manifest.run,
        base=None if offline else manifest.base,
        version=None if offline else manifest.version,
        signer=signed.key.hex() if signed else None,
        base_digest=manifest.base_digest.hex(),
        digest=manifest.digest.hex(),
        file_bytes=size,
        payload_bytes=manifest.payload_bytes,
        chunks=manifest.chunks,
        block_units=manifest.block_units,
        model_bytes=model,
        files=sum(spec.kind != TensorKind.TENSOR for spec in stored),
        tensors=sum(row.after for row in weights),
        added=sum(row.after and not row.before for row in weights),
        removed=sum(row.before and not row.after for row in weights),
        changed=manifest.changed,
        total=manifest.total,
        changed_fraction=manifest.changed / manifest.total if manifest.total else 0.0,
        bits_per_changed=8 * manifest.payload_bytes / manifest.changed if manifest.changed else None,
        ratio=model / size,
    )


def _offsets(rows: Sequence[TableRow]) -> list[int]:
    """Returns for each row the bytes of all rows before it."""
    offsets, total = [], 0
    for row in rows:
        offsets.append(total)
        total += row.spec.nbytes
    return offsets


def _rate(size: int, seconds: float) -> float:
    return size / seconds / 1e9 if seconds > 0 else 0.0
