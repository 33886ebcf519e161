"""Applies a path of manifests to the files of one slot, in place, chunk by chunk.

Theory of operation. The steps of a path are applied one after another. The chunks of the current step are applied as
they come, in any order. Chunks of later steps, and chunks that come before the new layout is known, are only recorded,
and read again from the store when they are needed, so that memory stays O(chunk).

A step starts with its *layout*. If no tensor is added, removed or moved, the files stay as they are. Otherwise all
headers are updated first, in memory. Then the affected files are rebuilt (`slots.rebuild_layout`) with the bits of the
tensors that stay, zeros for added tensors, and the bits of a local copy where digests match. Then the blocks are added
to the mapped files. Blocks of removed tensors are ignored: their bits are gone.

The digest is computed from what the files hold: the change from old to new bits for changed units, the whole digest of
added tensors, and minus the digest of removed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from p2psync.delta.algebra import apply_block, apply_with_digest
from p2psync.delta.block import Block, block_count, block_range
from p2psync.delta.container import iter_chunk
from p2psync.delta.digest import MODULUS, digest_bytes, digest_from_bytes, digest_units
from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec, Units
from p2psync.engines.base import ChunkBytes, ChunkReader, PathStep
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.checkpoint.layout import EMPTY_LAYOUT, CheckpointLayout, compute_layout
from p2psync.engines.directory.slots import rebuild_layout
from p2psync.errors import EngineError, FormatError
from p2psync.parallel import in_parallel
from p2psync.protocol.manifest import Manifest

#: Called with the name of each point at which a test may end the process.
CrashHook = Callable[[str], None]


class LocalTensors:
    """Tensors of checkpoints on this machine: an anchor's rows are looked up there by spec and digest."""

    def __init__(self, checkpoints: Sequence[Checkpoint]) -> None:
        """checkpoints: the first one that holds a tensor is used."""
        self._checkpoints = checkpoints

    def find(self, row: TableRow) -> Checkpoint | None:
        """Returns a checkpoint that holds exactly the row's bits, or None. Reads and digests the tensor.

        Also finds the undamaged tensors of a checkpoint that was damaged since it was opened.
        """
        for checkpoint in self._checkpoints:
            if row.digest and row.spec in checkpoint.layout.offsets:
                with suppress(FormatError):
                    digest = digest_units(row.spec, checkpoint.units(row.spec))
                    if digest_bytes(digest) == row.digest:
                        checkpoint.verify_tensor(row.spec)
                        return checkpoint
        return None


class StepApplier:
    """Applies one manifest to a slot that holds its base, or to an empty one, for an anchor."""

    def __init__(
        self, slot: Path, build: Path, base: Checkpoint | None, manifest: Manifest, local: LocalTensors, hook: CrashHook
    ) -> None:
        """base: the slot's checkpoint, writable; None for an anchor. Changes nothing yet."""
        self.rows = manifest.rows()
        self._manifest = manifest
        self._slot, self._build, self._hook = slot, build, hook
        self._base = base
        self._local_rows: dict[int, Checkpoint] = {}
        if manifest.base is None:
            self._local_rows = {i: cp for i, row in enumerate(self.rows) if (cp := local.find(row)) is not None}
        self._old_headers = {
            i: self._old_header(i) for i, row in enumerate(self.rows) if row.spec.kind == TensorKind.HEADER
        }
        self._headers = {i: bits.copy() for i, bits in self._old_headers.items()}
        self._covered_starts: dict[int, set[int]] = {i: set() for i in self._filled_from_zeros()}
        self._header_chunks = self._chunks_of(self._headers)
        self._target: Checkpoint | None = None
        self.change = 0
        self.changed = 0
        if base is not None and not self._header_chunks and all(row.before and row.after for row in self.rows):
            self._target = base

    def wanted(self) -> list[int]:
        """Returns the chunks that must be fetched: all, less those whose rows were all found locally."""
        return [
            i for i in range(self._manifest.chunks) if not self._local_rows.keys() >= set(self._manifest.chunk_rows(i))
        ]

    @property
    def ready(self) -> bool:
        """Whether the layout is known, so that `apply` may be called."""
        return self._target is not None

    @property
    def header_chunks(self) -> frozenset[int]:
        """The chunks that may hold headers and were not read yet. Once there are none, `lay_out` may be called."""
        return frozenset(self._header_chunks)

    def read_headers(self, chunk: int, data: ChunkBytes) -> None:
        """Reads the headers in a chunk; to be called before `ready`. The chunk itself must be applied once `ready`."""
        if chunk in self._header_chunks:
            for block in self._decode(data):
                if block.row in self._headers and block.row not in self._local_rows:
                    apply_block(self._headers[block.row], block)
            self._header_chunks.discard(chunk)

    def lay_out(self) -> None:
        """Rebuilds the files once all headers are known. Raises `EngineError`, `FormatError`."""
        after = {row.spec for row in self.rows if row.after}
        headers = {self.rows[i].spec.name: bits.tobytes() for i, bits in self._headers.items() if self.rows[i].after}
        files = {spec.name: spec.count for spec in after if spec.kind == TensorKind.FILE}
        plan = compute_layout(headers, files)
        if plan.offsets.keys() != after:
            wrong = next(iter(plan.offsets.keys() ^ after))
            raise FormatError(f"the headers do not describe the manifest's tensors: {wrong.name!r}")
        self._sum_layout()
        old = self._base.layout if self._base is not None else EMPTY_LAYOUT
        rebuild_layout(self._slot, self._build, old, plan, headers, self._sources())
        for index, checkpoint in self._local_rows.items():
            # The copied bits have the digest that was found only if nobody wrote to the file since.
            checkpoint.verify_tensor(self.rows[index].spec)
        self._hook("laid out")
        self._target = self._open(plan)

    def apply(self, chunks: Iterable[ChunkBytes]) -> None:
        """Adds the blocks of chunks to the files, on all cores. Raises `FormatError`."""
        if self._target is not None:
            self._target.verify()
        for change, changed, covered in in_parallel(self._add, chunks):
            self.change += change
            self.changed += changed
            for index, start in covered:
                self._covered_starts[index].add(start)

    def _add(self, data: ChunkBytes) -> tuple[int, int, list[tuple[int, int]]]:
        """Adds one chunk's blocks; safe to call for different chunks at a time, since a block is in one chunk only.

        Returns the change of the digest, the units changed, and (row, start) of each block of an added tensor.
        """
        change, changed, covered = 0, 0, []
        for block in self._decode(data):
            row = self.rows[block.row]
            if not row.after or block.row in self._headers or block.row in self._local_rows:
                continue
            units = self._units(row.spec)
            if block.row in self._covered_starts:
                apply_block(units, block)
                change += digest_units(row.spec, units[block.start : block.start + block.count], block.start)
                covered.append((block.row, block.start))
            else:
                change += apply_with_digest(row.spec, units, block)
            changed += block.changed
            self._hook("block")
        return change, changed, covered

    def finish(self) -> Checkpoint:
        """Finishes after the last chunk: adds the digest of blocks left zero; returns the writable checkpoint."""
        assert self._target is not None
        self._target.verify()
        for index, starts in self._covered_starts.items():
            spec = self.rows[index].spec
            for number in range(block_count(spec, self._manifest.block_units)):
                start, count = block_range(spec, self._manifest.block_units, number)
                if start not in starts:
                    self.change += digest_units(spec, self._units(spec)[start : start + count], start)
        self.change %= MODULUS
        return self._target

    def _open(self, plan: CheckpointLayout) -> Checkpoint:
        target = Checkpoint.open(self._slot, writable=True)
        if target.layout != plan:
            raise EngineError(f"{self._slot} has files of others in it: move them away, and try again")
        return target

    def _sources(self) -> dict[TensorSpec, tuple[Path, int]]:
        sources = {
            self.rows[i].spec: checkpoint.locate(self.rows[i].spec) for i, checkpoint in self._local_rows.items()
        }
        if self._base is not None:
            sources |= {row.spec: self._base.locate(row.spec) for row in self.rows if row.before and row.after}
        return sources

    def _sum_layout(self) -> None:
        """Adds the layout's part of the digest: new headers, removed tensors, tensors found locally."""
        for index, row in enumerate(self.rows):
            if index in self._headers:
                if row.before:
                    self.change -= digest_units(row.spec, self._old_headers[index])
                if row.after:
                    self.change += digest_units(row.spec, self._headers[index])
                self.changed += int(np.count_nonzero(self._headers[index] != self._old_headers[index]))
            elif index in self._local_rows:
                self.change += digest_from_bytes(row.digest)
            elif row.before and not row.after and self._base is not None:
                self.change -= digest_units(row.spec, self._base.units(row.spec))

    def _filled_from_zeros(self) -> list[int]:
        return [
            i
            for i, row in enumerate(self.rows)
            if row.after and not row.before and row.spec.kind != TensorKind.HEADER and i not in self._local_rows
        ]

    def _chunks_of(self, rows: dict[int, Units]) -> set[int]:
        """Returns the chunks that may hold blocks of these rows and must be fetched."""
        wanted = {index for index in rows if index not in self._local_rows}
        return {i for i in range(self._manifest.chunks) if not wanted.isdisjoint(self._manifest.chunk_rows(i))}

    def _old_header(self, index: int) -> Units:
        row = self.rows[index]
        if index in self._local_rows:
            return self._local_rows[index].units(row.spec).copy()
        if row.before and self._base is not None:
            return self._base.units(row.spec).copy()
        return np.zeros(row.spec.count, row.spec.unit)

    def _decode(self, data: ChunkBytes) -> Iterator[Block]:
        return iter_chunk(data, self.rows, self._manifest.block_units, self._base_units)

    def _base_units(self, index: int) -> Units:
        """Returns the base bits of this row. They are valid outside of blocks that were applied already."""
        row = self.rows[index]
        if index in self._old_headers:
            return self._old_headers[index]
        if row.before and self._base is not None and (self._target is None or not row.after):
            return self._base.units(row.spec)
        return self._units(row.spec) if self._target is not None else np.zeros(row.spec.count, row.spec.unit)

    def _units(self, spec: TensorSpec) -> Units:
        assert self._target is not None
        return self._target.units(spec)


class PathApplier:
    """Applies a path to a slot that holds the version at which the path starts."""

    def __init__(
        self,
        slot: Path,
        build: Path,
        base: Checkpoint | None,
        digest: bytes,
        path: Sequence[PathStep],
        reader: ChunkReader,
        local: LocalTensors,
        hook: CrashHook,
    ) -> None:
        """base, digest: the slot's writable checkpoint and its digest. For an anchor: None, and any digest."""
        self.path = tuple(path)
        self._slot, self._build, self._reader, self._local, self._hook = slot, build, reader, local, hook
        self._target = base
        self._digest = digest_from_bytes(digest) if base is not None else 0
        self._step_index = 0
        self._waiting: list[list[int]] = [[] for _ in path]
        self._missing = [set(range(step.manifest.chunks)) for step in path]
        self.changed = 0
        #: Whether the slot's files were written.
        self.touched = False
        #: Whether an error left the slot in the middle of a step.
        self.broken = False
        #: The first version whose bits do not have the digest that its manifest signs, if any.
        self.mismatch: int | None = None
        self._step = self._begin_step()
        self._missing[0] = set(self._step.wanted())

    @property
    def complete(self) -> bool:
        """Whether every step was applied."""
        return self._step_index == len(self.path)

    @property
    def target(self) -> Checkpoint:
        """The slot's checkpoint, once `complete`."""
        assert self.complete and self._target is not None
        return self._target

    def wanted(self, step: int) -> list[int]:
        """Returns the chunks of a step that were not put yet and must be fetched."""
        return sorted(self._missing[step])

    def put(self, step: int, chunks: Mapping[int, ChunkBytes]) -> None:
        """Takes verified chunks; ignores those that were put or are not wanted. Raises as `Stage.put`."""
        if self.broken:
            raise EngineError("an error left this stage half applied: stage again")
        wanted = {chunk: data for chunk, data in chunks.items() if chunk in self._missing[step]}
        self._missing[step] -= wanted.keys()
        with self._mark_broken_on_error():
            if step == self._step_index:
                self._take_chunks(wanted)
                self._advance()
            else:
                self._waiting[step] += wanted

    def advance(self) -> None:
        """Applies everything that needs no further chunk: steps without chunks, layouts whose headers are known."""
        with self._mark_broken_on_error():
            self._advance()

    def can_switch_to(self, path: Sequence[PathStep]) -> bool:
        """Returns whether the steps applied so far are also the first steps of another path."""
        begun = min(self._step_index + 1, len(self.path))
        return not self.broken and [s.id for s in path[:begun]] == [s.id for s in self.path[:begun]]

    def switch_to(self, path: Sequence[PathStep]) -> None:
        """Continues along another path, for which `can_switch_to`. Keeps the chunks of steps that both paths have."""
        same = 0
        while same < min(len(path), len(self.path)) and path[same].id == self.path[same].id:
            same += 1
        self.path = tuple(path)
        self._waiting = self._waiting[:same] + [[] for _ in path[same:]]
        self._missing = self._missing[:same] + [set(range(step.manifest.chunks)) for step in path[same:]]
        if self._step_index == same and not self.complete:
            self._step = self._begin_step()

    @contextmanager
    def _mark_broken_on_error(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError) as error:
            self.broken = True
            raise EngineError(f"{self._slot}: {error}: stage again") from error
        except BaseException:
            self.broken = True
            raise

    def _begin_step(self) -> StepApplier:
        manifest = self.path[self._step_index].manifest
        return StepApplier(self._slot, self._build, self._target, manifest, self._local, self._hook)

    def _take_chunks(self, chunks: Mapping[int, ChunkBytes]) -> None:
        if self._step.ready:
            self.touched = self.touched or bool(chunks)
            self._step.apply(chunks.values())
            return
        for chunk, data in chunks.items():
            self._step.read_headers(chunk, data)
            self._waiting[self._step_index].append(chunk)

    def _advance(self) -> None:
        while not self.complete:
            if not self._step.ready:
                for chunk in self._step.header_chunks.intersection(self._waiting[self._step_index]):
                    self._step.read_headers(chunk, self._read(chunk))
                if self._step.header_chunks:
                    return
                self.touched = True
                self._step.lay_out()
            self._apply_waiting()
            if self._missing[self._step_index]:
                return
            self._end_step()

    def _apply_waiting(self) -> None:
        waiting, self._waiting[self._step_index] = self._waiting[self._step_index], []
        self.touched = self.touched or bool(waiting)
        self._step.apply(self._read(chunk) for chunk in waiting)

    def _read(self, chunk: int) -> bytes:
        data = self._reader(self.path[self._step_index].id, chunk)
        if data is None:
            version = self.path[self._step_index].manifest.version
            raise EngineError(f"chunk {chunk} of version {version} left the store too early: stage again")
        return data

    def _end_step(self) -> None:
        manifest = self.path[self._step_index].manifest
        self._target = self._step.finish()
        self._digest = (self._digest + self._step.change) % MODULUS
        self.changed += self._step.changed
        if digest_bytes(self._digest) != manifest.digest and self.mismatch is None:
            self.mismatch = manifest.version
        self._step_index += 1
        self._hook("step")
        if not self.complete:
            self._step = self._begin_step()
