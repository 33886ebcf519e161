"""Stages a path beside a live module: decodes and composes blocks and computes their digests, but writes nothing.

The steps of a path are decoded one after another, because a `tight` chunk needs the bits of its own base. The chunks of
one step are decoded on all cores; chunks of later steps are kept undecoded. A path of one delta is finished block by
block as its chunks come. The blocks of a longer path are composed first. A path that starts with an anchor is staged
whole, O(model), except for the tensors whose digests match already.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.algebra import apply_block, compose
from p2psync.delta.block import Block
from p2psync.delta.container import iter_chunk
from p2psync.delta.digest import MODULUS, digest_bytes, digest_change, digest_from_bytes, digest_units
from p2psync.delta.kernels.unit_loops import address, scatter_runs
from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec, Units
from p2psync.engines.base import ChunkBytes, PathStep
from p2psync.engines.device.unit_transfer import DEVICE_BYTES, TensorSelection, gather_units, prepare_unit_writes
from p2psync.engines.module.live_tensors import LiveTensor, Positions
from p2psync.engines.module.misfit import describe_misfit
from p2psync.errors import EngineError, MisfitError
from p2psync.parallel import in_parallel, thread_count

#: Changed units on a device whose old bits are gathered by one call.
_PENDING_UNITS = 1 << 22
#: Changed units that a commit writes by one call; a larger block is one call.
WRITE_GROUP_UNITS = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class TensorChange:
    """New and old bits for units [start, start + count) of one live tensor, at `positions` of them (None: all)."""

    tensor: LiveTensor
    start: int
    count: int
    positions: Positions
    old: Units
    new: Units


#: A block's change, its contribution to the digest, and the number of units that it changes.
_MeasuredChange = tuple[TensorChange, int, int]


class ModuleStaging:
    """A path that is staged for a module. The caller has checked the path (`path_checks.check_path`)."""

    def __init__(
        self, path: Sequence[PathStep], tensors: Mapping[TensorSpec, LiveTensor], blobs: Mapping[TensorSpec, Units]
    ) -> None:
        """tensors, blobs: the live ones. Raises `EngineError` if the path's tensors are not the module's."""
        self._path = path
        self._tensors = tensors
        self._live_blobs = self._old_blobs = dict(blobs)
        #: Headers and other files of the version reached so far.
        self.blobs: dict[TensorSpec, Units] = dict(blobs)
        #: Whether the path starts with an anchor. `digest` is then the whole digest, else the change of it.
        self.from_anchor = path[0].manifest.base is None
        self.digest = 0
        self.changed = 0
        self._step = 0
        self._later_chunks: list[dict[int, bytes]] = [{} for _ in path]
        self._missing = [set(range(step.manifest.chunks)) for step in path]
        self._composed_blocks: dict[tuple[TensorSpec, int], Block] = {}
        self._changes: list[TensorChange] = []
        self._pending: list[tuple[TensorSpec, Block]] = []
        self._pending_units = 0
        self._buffers: dict[TensorSpec, Units] = {}
        self._live_rows: dict[TensorSpec, int] = {}
        self._lock = threading.Lock()
        self._base_cache: tuple[int, dict[TensorSpec, Units]] = (0, {})
        for step in path:
            _check_tensors(step, tensors)
        self._broken = False
        self._begin_step()
        self._advance()

    @property
    def complete(self) -> bool:
        """Whether every wanted chunk was put."""
        return self._step == len(self._path)

    def wanted(self, step: int) -> list[int]:
        """Returns the chunks of a step that were not put yet and are still needed."""
        return sorted(self._missing[step])

    def put(self, step: int, chunks: Mapping[int, ChunkBytes]) -> None:
        """Takes verified chunks. Raises `FormatError`, `EngineError`."""
        if self._broken:
            raise EngineError("an error left this stage half decoded: stage again")
        wanted = {chunk: data for chunk, data in chunks.items() if chunk in self._missing[step]}
        self._missing[step] -= wanted.keys()
        try:
            if step == self._step:
                self._decode(wanted.values())
                self._advance()
            else:
                self._later_chunks[step] |= {chunk: bytes(data) for chunk, data in wanted.items()}
        except ValueError as error:
            self._broken = True
            raise EngineError(f"a chunk does not fit the module ({error}): stage again") from error
        except BaseException:
            self._broken = True
            raise

    def finish(self) -> list[TensorChange]:
        """Returns all changes and sets `digest` and `changed`. Raises `EngineError` if a chunk is missing."""
        if not self.complete:
            missing = sum(len(self.wanted(step)) for step in range(len(self._path)))
            raise EngineError(f"{missing} chunks were not put yet: put them before the commit")
        if self.from_anchor:
            self._finish_anchor()
        composed = [
            (spec, block) for (spec, _), block in sorted(self._composed_blocks.items(), key=lambda item: item[0])
        ]
        here = [item for item in composed if self._tensors[item[0]].device_bits is None]
        for measured in in_parallel(lambda item: self._host_change(*item), here):
            self._record(measured)
        for spec, block in composed:
            if self._tensors[spec].device_bits is not None:
                self._queue_gather(spec, block)
        self._composed_blocks = {}
        self._gather_pending()
        if not self.from_anchor:
            self.digest = (self.digest + _digest_gain(self.blobs, self._live_blobs)) % MODULUS
            self._live_blobs = self.blobs
        return self._changes

    def _begin_step(self) -> None:
        rows = self._path[self._step].manifest.rows()
        if self.from_anchor and not self._step:
            self._find_live_rows(rows)
        self._old_blobs = self.blobs
        self.blobs = {
            row.spec: self._old_blobs[row.spec] if row.before or row.spec in self._live_rows else _zeros(row.spec)
            for row in rows
            if row.after and row.spec.kind != TensorKind.TENSOR
        }

    def _find_live_rows(self, rows: Sequence[TableRow]) -> None:
        """Finds, by digest, the anchor's rows that are live already, and makes a buffer for each other tensor."""
        for row in rows:
            live = self._live_digest(row.spec) if row.digest else None
            if live is not None and digest_bytes(live) == row.digest:
                self._live_rows[row.spec] = digest_from_bytes(row.digest)
            elif row.spec.kind == TensorKind.TENSOR:
                self._buffers[row.spec] = _zeros(row.spec)
        live_indices = {index for index, row in enumerate(rows) if row.spec in self._live_rows}
        manifest = self._path[0].manifest
        self._missing[0] = {c for c in self._missing[0] if not live_indices.issuperset(manifest.chunk_rows(c))}

    def _live_digest(self, spec: TensorSpec) -> int | None:
        if spec in self._tensors:
            return self._tensors[spec].digest(spec)
        return digest_units(spec, self._live_blobs[spec]) if spec in self._live_blobs else None

    def _advance(self) -> None:
        while not self.complete:
            held = self._later_chunks[self._step]
            self._decode(held[chunk] for chunk in sorted(held))
            held.clear()
            if self._missing[self._step]:
                return
            self._step += 1
            if not self.complete:
                self._begin_step()

    def _decode(self, chunks: Iterable[ChunkBytes]) -> None:
        rows = self._path[self._step].manifest.rows()
        for blocks in in_parallel(self._decode_chunk, chunks):
            for block, measured in blocks:
                if measured is not None:
                    self._record(measured)
                else:
                    self._take_block(rows[block.row], block)

    def _decode_chunk(self, data: ChunkBytes) -> list[tuple[Block, _MeasuredChange | None]]:
        """Decodes a chunk, on any thread. A block that no later step can change becomes a change at once."""
        manifest = self._path[self._step].manifest
        rows = manifest.rows()
        blocks = iter_chunk(data, rows, manifest.block_units, self._base_units)
        return [(b, self._host_change(rows[b.row].spec, b) if self._is_final(rows[b.row]) else None) for b in blocks]

    def _is_final(self, row: TableRow) -> bool:
        """Returns whether a block of this row can become a change when it is decoded."""
        alone = len(self._path) == 1 and not self.from_anchor and row.after and row.spec.kind == TensorKind.TENSOR
        return alone and self._tensors[row.spec].device_bits is None

    def _take_block(self, row: TableRow, block: Block) -> None:
        spec = row.spec
        if not row.after or (self.from_anchor and not self._step and spec in self._live_rows):
            return
        if spec.kind != TensorKind.TENSOR:
            self._copy_before_write(spec)
            apply_block(self.blobs[spec], block)
            self.changed += block.changed
        elif self.from_anchor:
            apply_block(self._buffer(spec), block)
            self.changed += block.changed
        elif len(self._path) == 1:
            self._queue_gather(spec, block)
        else:
            known = self._composed_blocks.pop((spec, block.start), None)
            # Tables of different steps number their rows differently; here a block is known by its spec.
            plain = Block(0, block.start, block.count, block.positions, block.steps)
            composed = plain if known is None else compose(known, plain)
            if composed is not None:
                self._composed_blocks[spec, block.start] = composed

    def _host_change(self, spec: TensorSpec, block: Block) -> _MeasuredChange:
        """Makes the change of a block of a host tensor, on any thread."""
        return self._change_of(spec, block, self._tensors[spec].gather(block.start, block.count, block.positions))

    def _change_of(self, spec: TensorSpec, block: Block, old: Units) -> _MeasuredChange:
        new = old + block.steps
        digest = digest_change(spec, block.start, block.positions, old, new)
        change = TensorChange(self._tensors[spec], block.start, block.count, block.positions, old, new)
        return change, digest, block.changed

    def _queue_gather(self, spec: TensorSpec, block: Block) -> None:
        """Queues a block of a device tensor: old bits are gathered for many blocks at a time, since each call waits."""
        self._pending.append((spec, block))
        self._pending_units += block.steps.size
        if self._pending_units >= _PENDING_UNITS:
            self._gather_pending()

    def _gather_pending(self) -> None:
        pending, self._pending, self._pending_units = self._pending, [], 0
        olds = gather_units([_selection(self._tensors[spec], block) for spec, block in pending])
        for (spec, block), old in zip(pending, olds, strict=True):
            self._record(self._change_of(spec, block, old))

    def _record(self, measured: _MeasuredChange) -> None:
        change, digest, changed = measured
        self._changes.append(change)
        self.digest += digest
        self.changed += changed

    def _finish_anchor(self) -> None:
        if self._changes:
            return
        self.digest = _digest_gain(self.blobs, {})
        for spec, tensor in self._tensors.items():
            if spec in self._buffers:
                new = self._buffers[spec]
                self.digest += digest_units(spec, new)
                self._changes.append(TensorChange(tensor, 0, spec.count, None, tensor.units().copy(), new))
            else:
                self.digest += self._live_rows[spec]
        self.digest %= MODULUS

    def _buffer(self, spec: TensorSpec) -> Units:
        if spec not in self._buffers:
            self._buffers[spec] = self._tensors[spec].units().copy()
        return self._buffers[spec]

    def _copy_before_write(self, spec: TensorSpec) -> None:
        """Copies a blob before the first write to it in this step."""
        if self.blobs[spec] is self._old_blobs.get(spec):
            self.blobs[spec] = self.blobs[spec].copy()

    def _base_units(self, index: int) -> Units:
        """Returns the base bits of a row in this step. They are valid outside of blocks that were applied already."""
        row = self._path[self._step].manifest.rows()[index]
        spec = row.spec
        if spec.kind != TensorKind.TENSOR:
            return self._old_blobs[spec] if row.before else _zeros(spec)
        if self.from_anchor:
            return self._buffers.get(spec, self._tensors[spec].units())
        if not self._step:
            return self._tensors[spec].units()
        with self._lock:
            return self._cached_base(spec)

    def _cached_base(self, spec: TensorSpec) -> Units:
        """Returns the base bits of a later step. Keeps those of the last few tensors, one for each thread."""
        step, kept = self._base_cache
        if step != self._step:
            kept = {}
            self._base_cache = self._step, kept
        if spec not in kept:
            if len(kept) > thread_count():
                del kept[next(iter(kept))]
            kept[spec] = self._composed_base(spec)
        return kept[spec]

    def _composed_base(self, spec: TensorSpec) -> Units:
        live = self._tensors[spec].units()
        blocks = [block for (other, _), block in self._composed_blocks.items() if other == spec]
        if not blocks:
            return live
        units = live.copy()
        for block in blocks:
            apply_block(units, block)
        return units


def prepare_change_writes(
    changes: Sequence[TensorChange], values: Sequence[Units], *, device_bytes: int = DEVICE_BYTES
) -> list[Callable[[], None]]:
    """Prepares the writes of `values`, one array for each change; the returned calls only write.

    device_bytes: see `unit_transfer.prepare_unit_writes`.
    """
    direct = [
        c.tensor.prepare(c.start, c.count, c.positions, bits)
        for c, bits in zip(changes, values, strict=True)
        if c.tensor.device_bits is None
    ]
    selections, theirs = [], []
    for c, bits in zip(changes, values, strict=True):
        if c.tensor.device_bits is not None:
            selections.append(TensorSelection(c.tensor.device_bits, c.start, c.count, c.positions))
            theirs.append(bits)
    return direct + prepare_unit_writes(selections, theirs, device_bytes=device_bytes)


def group_change_writes(changes: Sequence[TensorChange], values: Sequence[Units]) -> list[Callable[[], None]]:
    """Prepares the writes of `values`, one array for each change, with changes of host tensors joined into few calls.

    Copies positions and values of the joined changes.
    """
    calls: list[Callable[[], None]] = []
    grouped: dict[np.dtype[np.unsignedinteger], list[tuple[TensorChange, Units]]] = {}
    rest: list[tuple[TensorChange, Units]] = []
    for change, bits in zip(changes, values, strict=True):
        direct = change.tensor.device_bits is None and change.positions is not None
        (grouped.setdefault(bits.dtype, []) if direct else rest).append((change, bits))
    for members in grouped.values():
        part: list[tuple[TensorChange, Units]] = []
        for member in members:
            part.append(member)
            if sum(bits.size for _, bits in part) >= WRITE_GROUP_UNITS:
                calls.append(_join_writes(part))
                part = []
        if part:
            calls.append(_join_writes(part))
    return calls + prepare_change_writes([change for change, _ in rest], [bits for _, bits in rest])


def _join_writes(part: Sequence[tuple[TensorChange, Units]]) -> Callable[[], None]:
    """Joins the writes of several changes into one call. Raises `ValueError` for positions out of range."""
    spans = np.empty((len(part), 2), np.int64)
    positions: list[NDArray[np.uint32]] = []
    kept = []
    for k, (change, bits) in enumerate(part):
        units, where = change.tensor.units(), change.positions
        assert where is not None
        inside = 0 <= change.start <= change.start + change.count <= units.size
        if not inside or where.size != bits.size or (where.size and where.max() >= change.count):
            raise ValueError("a change lies outside of its tensor")
        spans[k] = address(units) + change.start * bits.itemsize, bits.size
        positions.append(where)
        kept.append(units)  # the memory that is written
    joined, bits = np.concatenate(positions), np.concatenate([bits for _, bits in part])
    scatter_runs(spans[:0], joined, bits)  # compiled here, not in the pause

    return functools.partial(_scatter, kept, spans, joined, bits)


def _scatter(kept: Sequence[Units], spans: NDArray[np.int64], positions: NDArray[np.uint32], values: Units) -> None:
    """kept: the arrays to which the addresses in `spans` point, so that they live as long as the call."""
    scatter_runs(spans, positions, values)


def _selection(tensor: LiveTensor, block: Block) -> TensorSelection:
    assert tensor.device_bits is not None
    return TensorSelection(tensor.device_bits, block.start, block.count, block.positions)


def _zeros(spec: TensorSpec) -> Units:
    return np.zeros(spec.count, spec.unit)


def _digest_gain(blobs: Mapping[TensorSpec, Units], before: Mapping[TensorSpec, Units]) -> int:
    """Returns the digest of `blobs` less that of `before`. Arrays that both share are not read."""
    total = sum(digest_units(spec, units) for spec, units in blobs.items() if before.get(spec) is not units)
    return total - sum(digest_units(spec, units) for spec, units in before.items() if blobs.get(spec) is not units)


def _check_tensors(step: PathStep, tensors: Mapping[TensorSpec, LiveTensor]) -> None:
    rows = [row for row in step.manifest.rows() if row.spec.kind == TensorKind.TENSOR]
    theirs = {row.spec for row in rows if row.after}
    if theirs != tensors.keys():
        raise MisfitError(
            f"version {step.manifest.version} does not fit the module: {describe_misfit(theirs, tensors.keys())}"
        )
    if step.manifest.base is not None and not all(row.before and row.after for row in rows):
        raise MisfitError(f"version {step.manifest.version} adds or removes tensors: load a module that has them")
