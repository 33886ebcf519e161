"""Extraction on a device: finds the changes on the device, as `delta.extract` does on a CPU.

Blocks are scanned in groups of bounded bytes, as a pipeline. While the device scans group g + 1, the changes of group g
are copied to pinned memory, and the host hands over those of group g − 1. The host waits once for each group; then the
counts of group g and the changes of group g − 1 are there. Besides the two versions, the device holds two scratch
buffers, whatever the model's size. A changed bf16 unit takes 8 bytes of the copy to the host: 4 % of the model's size
at 1 %.

The size of a group follows from the density seen so far. The counts of a group are exact even if its changes do not fit
into the buffers; such a group is extracted again in parts that fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from p2psync.delta.block import block_span, check_block_units
from p2psync.delta.extract import FoundChanges, found_block
from p2psync.delta.kernels.tile_order import order_runs
from p2psync.engines.device.buffers import (
    MAX_GROUP_BLOCKS,
    NO_EVENT,
    ExtractionBuffers,
    ExtractionStreams,
    StreamEvent,
    entry_bytes,
)
from p2psync.engines.device.finder import BlockGroup, BlockRun, DeviceChangeFinder, TorchFinder, VersionPair, nan_bits

#: Bytes of one version in a group; and in a group that is streamed from the host, which takes two buffers of that size.
GROUP_BYTES, STREAMED_BYTES = 128 << 20, 32 << 20
#: Bytes of changes in one set of buffers: 6 % of the bf16 units of a group. First steps of training reach 4 %.
BUFFER_BYTES = 32 << 20
_MAX_RUNS = 1 << 17
#: The expected density of the first group, the smallest expected one, and the margin over the density seen.
_FIRST_DENSITY, _MIN_DENSITY, _DENSITY_MARGIN = 0.045, 0.005, 1.25


@dataclass(slots=True, eq=False)
class _GroupInFlight:
    """A group in the pipeline. scanned: its counts are on the host. fetched: its changes are."""

    group: BlockGroup
    tiles: int
    buffers: ExtractionBuffers
    scanned: StreamEvent
    fetched: StreamEvent = NO_EVENT
    runs: NDArray[np.int32] | None = None

    @property
    def total(self) -> int:
        assert self.runs is not None
        return int(self.runs[:, 1].sum(dtype=np.int64))


class DeviceExtraction:
    """Extraction on one device. Keeps its buffers between calls; one call at a time."""

    def __init__(
        self,
        device: torch.device,
        block_units: int,
        *,
        finder: DeviceChangeFinder | None = None,
        group_bytes: int = GROUP_BYTES,
        streamed_bytes: int = STREAMED_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """block_units: units of a block. finder: by default Triton's on CUDA where it is installed, else torch's.
        group_bytes, streamed_bytes, buffer_bytes: see the constants. Raises `FormatError` for an invalid block size.
        """
        check_block_units(block_units)
        self.device, self._block_units = device, block_units
        self._finder = finder or best_finder(device)
        self._group_bytes, self._streamed_bytes = group_bytes, streamed_bytes
        # One block must fit even if all of it changed.
        most = max((block_span(width, block_units) + 16) * entry_bytes(width) for width in (1, 2, 4, 8))
        self._buffer_bytes = max(buffer_bytes, most)
        self._buffer_sets: list[ExtractionBuffers] = []
        self._density = _FIRST_DENSITY
        #: How often the host waited for the device, and how often a group was extracted again in parts, since the
        #: start.
        self.waits = self.redone = 0

    def extract(self, pairs: Iterable[VersionPair]) -> Iterator[FoundChanges]:
        """Yields every changed block of the pairs, in order. They are on this device; `old` may be on the host.

        Neither version may change until the iterator ends.
        """
        streams, buffer_sets, groups = ExtractionStreams(self.device), self._two_buffer_sets(), self._groups(pairs)
        last: list[StreamEvent] = [NO_EVENT, NO_EVENT]
        before: _GroupInFlight | None = None
        turn = 0
        current = self._launch(streams, next(groups, None), buffer_sets[0], NO_EVENT)
        while current is not None:
            turn ^= 1
            following = self._launch(streams, next(groups, None), buffer_sets[turn], last[turn])
            self._await_counts(current)
            if before is not None:
                yield from _found(before)
                before = None
            if current.total > current.buffers.entries(current.group.width):
                yield from self._redo_in_parts(streams, current)
            else:
                self._fetch(streams, current, following)
                last[turn ^ 1] = current.fetched
                before = current
            current = following
        if before is not None:
            self._wait(before.fetched)
            yield from _found(before)

    def count(self, pairs: Iterable[VersionPair]) -> int:
        """Returns how many units differ. With Triton the device does all the work of `extract`, and the host none."""
        streams, buffer_sets, groups = ExtractionStreams(self.device), self._two_buffer_sets(), self._groups(pairs)
        total = turn = 0
        current = self._launch(streams, next(groups, None), buffer_sets[0], NO_EVENT)
        while current is not None:
            turn ^= 1
            following = self._launch(streams, next(groups, None), buffer_sets[turn], NO_EVENT)
            self._await_counts(current)
            total += current.total
            current = following
        return total

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _two_buffer_sets(self) -> list[ExtractionBuffers]:
        self._buffer_sets = self._buffer_sets or [
            ExtractionBuffers(self.device, self._buffer_bytes, _MAX_RUNS, MAX_GROUP_BLOCKS) for _ in range(2)
        ]
        return self._buffer_sets

    def _groups(self, pairs: Iterable[VersionPair]) -> Iterator[Sequence[BlockRun]]:
        """Yields groups of blocks of one kind, as large as bytes, buffers and the density seen so far allow."""
        group: list[BlockRun] = []
        units = blocks = 0
        kind = None
        for pair in pairs:
            span, mine, at = block_span(pair.spec.width, self._block_units), pair.kind, 0
            while at < pair.spec.count:
                max_units, max_blocks = self._limits(pair)
                take = min(-(-(pair.spec.count - at) // span), (max_units - units) // span, max_blocks - blocks)
                if group and (mine != kind or take < 1):
                    yield group
                    group, units, blocks = [], 0, 0
                    continue
                kind, take = mine, max(1, take)
                count = min(take * span, pair.spec.count - at)
                group.append(BlockRun(pair, at, count, span))
                units, blocks, at = units + count, blocks + take, at + count
        if group:
            yield group

    def _limits(self, pair: VersionPair) -> tuple[int, int]:
        """Returns the maximum units and blocks of a group of this kind."""
        width = pair.spec.width
        density = max(_MIN_DENSITY, _DENSITY_MARGIN * self._density)
        units = min(
            (self._streamed_bytes if pair.streamed else self._group_bytes) // width,
            self._finder.max_units(pair),
            int(self._buffer_bytes // entry_bytes(width) / density),
        )
        return units, min(MAX_GROUP_BLOCKS, _MAX_RUNS // self._tiles(pair))

    def _tiles(self, pair: VersionPair) -> int:
        return self._finder.tiles(block_span(pair.spec.width, self._block_units), pair)

    def _launch(
        self,
        streams: ExtractionStreams,
        block_runs: Sequence[BlockRun] | None,
        buffers: ExtractionBuffers,
        free: StreamEvent,
    ) -> _GroupInFlight | None:
        """Starts the scan of a group into buffers whose last changes are on the host at the event `free`."""
        if block_runs is None:
            return None
        streamed = block_runs[0].pair.streamed
        with streams.upload():
            free.block_stream()
            olds = _upload(block_runs, buffers) if streamed else [run.old() for run in block_runs]
            uploaded = streams.record() if streamed else NO_EVENT
        group = BlockGroup(block_runs, olds)
        tiles = self._tiles(block_runs[0].pair)
        rows = tiles * group.blocks
        with streams.compute(), torch.inference_mode():
            uploaded.block_stream()
            free.block_stream()
            self._finder.scan(group, buffers, tiles)
            buffers.host_runs[:rows].copy_(buffers.runs[:rows], non_blocking=True)
            return _GroupInFlight(group, tiles, buffers, streams.record())

    def _await_counts(self, current: _GroupInFlight) -> None:
        """Waits for the counts of a group (and the changes of the one before), and updates the density."""
        self._wait(current.scanned)
        current.runs = current.buffers.host_runs[: current.tiles * current.group.blocks].numpy().copy()
        seen = current.total / max(1, current.group.units)
        self._density = max(seen, (self._density + seen) / 2)

    def _fetch(self, streams: ExtractionStreams, current: _GroupInFlight, following: _GroupInFlight | None) -> None:
        """Copies a group's changes to the host; the next wait covers this copy and the following group's counts."""
        assert current.runs is not None
        with streams.compute(), torch.inference_mode():
            self._finder.collect(current.group, current.buffers, current.runs)
            gathered = streams.record()
        # Triton wrote the changes with the counts: the copy need not wait for the group that is being scanned.
        gathered = current.scanned if self._scan_writes else gathered
        width, total = current.group.width, current.total
        with streams.copy(), torch.inference_mode():
            gathered.block_stream()
            for theirs, ours in zip(
                current.buffers.arrays(width), current.buffers.arrays(width, host=True), strict=True
            ):
                ours[:total].copy_(theirs[:total], non_blocking=True)
            current.fetched = streams.record()
            if following is not None:
                following.scanned.block_stream()
                following.scanned = streams.record()

    def _redo_in_parts(self, streams: ExtractionStreams, current: _GroupInFlight) -> Iterator[FoundChanges]:
        """Extracts a group whose changes do not fit into its buffers again, in parts that fit."""
        assert current.runs is not None
        self.redone += 1
        counts = current.runs[:, 1].reshape(-1, current.tiles).sum(axis=1, dtype=np.int64)
        buffers, total, part = current.buffers.entries(current.group.width), 0, list[BlockRun]()
        blocks = [block for run in current.group.block_runs for block in run.cut()]
        for block, count in [*zip(blocks, counts.tolist(), strict=True), (None, buffers + 1)]:
            if part and total + count > buffers:
                again = self._launch(streams, part, current.buffers, NO_EVENT)
                assert again is not None
                self._await_counts(again)
                self._fetch(streams, again, None)
                self._wait(again.fetched)
                yield from _found(again)
                part, total = [], 0
            if block is not None:
                part.append(block)
                total += count

    def _wait(self, event: StreamEvent) -> None:
        self.waits += 1
        event.wait()

    @property
    def _scan_writes(self) -> bool:
        return not isinstance(self._finder, TorchFinder)


def best_finder(device: torch.device) -> DeviceChangeFinder:
    """Returns Triton's finder on CUDA, where Triton is installed; else torch's."""
    nan = nan_bits(device)
    if device.type == "cuda":
        try:
            from p2psync.engines.device.triton_finder import TritonFinder
        except ImportError:
            return TorchFinder(nan)
        return TritonFinder(nan)
    return TorchFinder(nan)


def _upload(block_runs: Sequence[BlockRun], buffers: ExtractionBuffers) -> list[torch.Tensor]:
    """Copies the old bits of block runs to the device, through pinned memory; returns them in order."""
    sizes = [-(-run.count * run.pair.spec.width // 16) * 16 for run in block_runs]
    device, pinned = buffers.upload_buffers(sum(sizes))
    olds, at = [], 0
    for run, size in zip(block_runs, sizes, strict=True):
        old = run.old()
        here = slice(at, at + run.count * run.pair.spec.width)
        pinned[here].view(old.dtype).copy_(old)
        olds.append(device[here].view(old.dtype))
        at += size
    device[:at].copy_(pinned[:at], non_blocking=True)
    return olds


def _found(current: _GroupInFlight) -> Iterator[FoundChanges]:
    """Yields the changed blocks of a group whose changes are on the host."""
    assert current.runs is not None
    width, total = current.group.width, current.total
    positions, olds, steps = (
        array[:total].numpy().view(f"<u{array.element_size()}") for array in current.buffers.arrays(width, host=True)
    )
    ordered = order_runs(current.runs, positions, olds, steps)
    ends = current.runs[:, 1].reshape(-1, current.tiles).sum(axis=1, dtype=np.int64).cumsum()
    begin = 0
    blocks = (block for run in current.group.block_runs for block in run.cut())
    for block, end in zip(blocks, ends.tolist(), strict=True):
        found = found_block(block.pair.row, block.start, block.count, *(array[begin:end] for array in ordered))
        begin = end
        if found is not None:
            yield found
