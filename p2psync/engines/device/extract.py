"""Extraction on a device: what `delta.extract` finds on a CPU, found where the weights are.

Blocks of the codec's grid are looked at in groups of bounded bytes. While the device looks at group g + 1, the finds of
group g cross to pinned memory, and those of group g − 1 are handed over. The host waits once a group: then the counts
of group g and the finds of group g − 1 are there. Beside the two versions the device holds two rooms, whatever the
model's size; finds cross by 8 bytes a changed bf16 unit, 4 % of one copy of the model at 1 %.

A room is sized for the density that is expected, and groups for what fits at the density seen so far. A group that
finds more than its room holds was counted exactly all the same: it is done again in parts that fit, one after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from p2psync.delta.block import block_span, check_block_units
from p2psync.delta.extract import Found, found_block
from p2psync.delta.kernels.tile_order import order_runs
from p2psync.engines.device.buffers import (
    MAX_GROUP_BLOCKS,
    NO_EVENT,
    ExtractionBuffers,
    ExtractionStreams,
    StreamEvent,
    entry_bytes,
)
from p2psync.engines.device.finder import BlockGroup, BlockRun, ChangeFinder, TorchFinder, VersionPair, nan_bits

#: Bytes of one version in a group, and of one that is streamed from the host, which needs staging of that size twice.
GROUP_BYTES, STREAMED_BYTES = 128 << 20, 32 << 20
#: Bytes of finds in a room: 6 % of the bf16 units of a group. First steps of training reach 4 %.
BUFFER_BYTES = 32 << 20
_MAX_RUNS = 1 << 17
#: The density expected before anything was seen, the least that is reckoned with, and the reserve over what was seen.
_FIRST_DENSITY, _LEAST_DENSITY, _RESERVE = 0.045, 0.005, 1.25


@dataclass(slots=True, eq=False)
class _Flight:
    """A group under way. looked: its counts are on the host. fetched: so are its finds."""

    group: BlockGroup
    tiles: int
    room: ExtractionBuffers
    looked: StreamEvent
    fetched: StreamEvent = NO_EVENT
    runs: NDArray[np.int32] | None = None

    @property
    def total(self) -> int:
        assert self.runs is not None
        return int(self.runs[:, 1].sum(dtype=np.int64))


class DeviceExtraction:
    """Extraction on one device. Keeps its rooms between calls; one call at a time."""

    def __init__(
        self,
        device: torch.device,
        block_units: int,
        *,
        finder: ChangeFinder | None = None,
        group_bytes: int = GROUP_BYTES,
        streamed_bytes: int = STREAMED_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """finder: by default Triton's on CUDA where it is installed, else torch's. Raises `FormatError` for a block
        size that there is not."""
        check_block_units(block_units)
        self.device, self._block_units = device, block_units
        self._finder = finder or best_finder(device)
        self._group_bytes, self._streamed_bytes = group_bytes, streamed_bytes
        # Whatever a block holds, all of it changed must fit.
        most = max((block_span(width, block_units) + 16) * entry_bytes(width) for width in (1, 2, 4, 8))
        self._buffer_bytes = max(buffer_bytes, most)
        self._rooms: list[ExtractionBuffers] = []
        self._density = _FIRST_DENSITY
        #: How often the host waited for the device, and how often a group had to be done in parts, since the start.
        self.waits = self.redone = 0

    def extract(self, pairs: Iterable[VersionPair]) -> Iterator[Found]:
        """Every changed block of the pairs, in their order; on this device (`old` may be on the host).

        Neither version may change until the iterator's end.
        """
        lanes, rooms, groups = ExtractionStreams(self.device), self._two_rooms(), self._groups(pairs)
        last: list[StreamEvent] = [NO_EVENT, NO_EVENT]
        before: _Flight | None = None
        turn = 0
        flight = self._launch(lanes, next(groups, None), rooms[0], NO_EVENT)
        while flight is not None:
            turn ^= 1
            following = self._launch(lanes, next(groups, None), rooms[turn], last[turn])
            self._learn(flight)
            if before is not None:
                yield from _found(before)
                before = None
            if flight.total > flight.room.entries(flight.group.width):
                yield from self._in_parts(lanes, flight)
            else:
                self._fetch(lanes, flight, following)
                last[turn ^ 1] = flight.fetched
                before = flight
            flight = following
        if before is not None:
            self._wait(before.fetched)
            yield from _found(before)

    def count(self, pairs: Iterable[VersionPair]) -> int:
        """How many units differ: with Triton all that the device does for `extract`, and none of what the host does."""
        lanes, rooms, groups = ExtractionStreams(self.device), self._two_rooms(), self._groups(pairs)
        total = turn = 0
        flight = self._launch(lanes, next(groups, None), rooms[0], NO_EVENT)
        while flight is not None:
            turn ^= 1
            following = self._launch(lanes, next(groups, None), rooms[turn], NO_EVENT)
            self._learn(flight)
            total += flight.total
            flight = following
        return total

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _two_rooms(self) -> list[ExtractionBuffers]:
        self._rooms = self._rooms or [
            ExtractionBuffers(self.device, self._buffer_bytes, _MAX_RUNS, MAX_GROUP_BLOCKS) for _ in range(2)
        ]
        return self._rooms

    def _groups(self, pairs: Iterable[VersionPair]) -> Iterator[Sequence[BlockRun]]:
        """Runs of blocks of one kind, as large as bytes, room and density allow when they are asked for."""
        group: list[BlockRun] = []
        units = blocks = 0
        kind = None
        for pair in pairs:
            span, mine, at = block_span(pair.spec.width, self._block_units), pair.kind, 0
            while at < pair.spec.count:
                max_units, most_blocks = self._limits(pair)
                take = min(-(-(pair.spec.count - at) // span), (max_units - units) // span, most_blocks - blocks)
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
        """Most units and most blocks of a group of this kind."""
        width = pair.spec.width
        density = max(_LEAST_DENSITY, _RESERVE * self._density)
        units = min(
            (self._streamed_bytes if pair.streamed else self._group_bytes) // width,
            self._finder.max_units(pair),
            int(self._buffer_bytes // entry_bytes(width) / density),
        )
        return units, min(MAX_GROUP_BLOCKS, _MAX_RUNS // self._tiles(pair))

    def _tiles(self, pair: VersionPair) -> int:
        return self._finder.tiles(block_span(pair.spec.width, self._block_units), pair)

    def _launch(
        self, lanes: ExtractionStreams, pieces: Sequence[BlockRun] | None, room: ExtractionBuffers, free: StreamEvent
    ) -> _Flight | None:
        """Have a group looked at, in a room whose last finds are on the host at `free`."""
        if pieces is None:
            return None
        streamed = pieces[0].pair.streamed
        with lanes.upload():
            free.hold()
            olds = _upload(pieces, room) if streamed else [piece.old() for piece in pieces]
            uploaded = lanes.mark() if streamed else NO_EVENT
        group = BlockGroup(pieces, olds)
        tiles = self._tiles(pieces[0].pair)
        rows = tiles * group.blocks
        with lanes.compute(), torch.inference_mode():
            uploaded.hold()
            free.hold()
            self._finder.look(group, room, tiles)
            room.host_runs[:rows].copy_(room.runs[:rows], non_blocking=True)
            return _Flight(group, tiles, room, lanes.mark())

    def _learn(self, flight: _Flight) -> None:
        """Wait for the counts of a group (and for the finds of the one before), and reckon with its density."""
        self._wait(flight.looked)
        flight.runs = flight.room.host_runs[: flight.tiles * flight.group.blocks].numpy().copy()
        seen = flight.total / max(1, flight.group.units)
        self._density = max(seen, (self._density + seen) / 2)

    def _fetch(self, lanes: ExtractionStreams, flight: _Flight, following: _Flight | None) -> None:
        """Bring a group's finds to the host; what is waited for next is this and the counts of the following group."""
        assert flight.runs is not None
        with lanes.compute(), torch.inference_mode():
            self._finder.gather(flight.group, flight.room, flight.runs)
            gathered = lanes.mark()
        # Triton's finds were all there with the counts: the copy need not wait for the group that is under way.
        gathered = flight.looked if self._finder_writes else gathered
        width, total = flight.group.width, flight.total
        with lanes.copy(), torch.inference_mode():
            gathered.hold()
            for theirs, ours in zip(flight.room.arrays(width), flight.room.arrays(width, host=True), strict=True):
                ours[:total].copy_(theirs[:total], non_blocking=True)
            flight.fetched = lanes.mark()
            if following is not None:
                following.looked.hold()
                following.looked = lanes.mark()

    def _in_parts(self, lanes: ExtractionStreams, flight: _Flight) -> Iterator[Found]:
        """Do a group again whose finds are more than its room holds, in parts that are known to fit."""
        assert flight.runs is not None
        self.redone += 1
        counts = flight.runs[:, 1].reshape(-1, flight.tiles).sum(axis=1, dtype=np.int64)
        room, total, part = flight.room.entries(flight.group.width), 0, list[BlockRun]()
        blocks = [block for piece in flight.group.pieces for block in piece.cut()]
        for block, count in [*zip(blocks, counts.tolist(), strict=True), (None, room + 1)]:
            if part and total + count > room:
                again = self._launch(lanes, part, flight.room, NO_EVENT)
                assert again is not None
                self._learn(again)
                self._fetch(lanes, again, None)
                self._wait(again.fetched)
                yield from _found(again)
                part, total = [], 0
            if block is not None:
                part.append(block)
                total += count

    def _wait(self, mark: StreamEvent) -> None:
        self.waits += 1
        mark.wait()

    @property
    def _finder_writes(self) -> bool:
        return not isinstance(self._finder, TorchFinder)


def best_finder(device: torch.device) -> ChangeFinder:
    """Triton's on CUDA, where Triton is installed; else torch's."""
    nan = nan_bits(device)
    if device.type == "cuda":
        try:
            from p2psync.engines.device.triton_finder import TritonFinder
        except ImportError:
            return TorchFinder(nan)
        return TritonFinder(nan)
    return TorchFinder(nan)


def _upload(pieces: Sequence[BlockRun], room: ExtractionBuffers) -> list[torch.Tensor]:
    """The old bits of the pieces on the device: through pinned memory, side by side."""
    sizes = [-(-piece.count * piece.pair.spec.width // 16) * 16 for piece in pieces]
    device, pinned = room.staged(sum(sizes))
    olds, at = [], 0
    for piece, size in zip(pieces, sizes, strict=True):
        old = piece.old()
        here = slice(at, at + piece.count * piece.pair.spec.width)
        pinned[here].view(old.dtype).copy_(old)
        olds.append(device[here].view(old.dtype))
        at += size
    device[:at].copy_(pinned[:at], non_blocking=True)
    return olds


def _found(flight: _Flight) -> Iterator[Found]:
    """The blocks of a group whose finds are on the host."""
    assert flight.runs is not None
    width, total = flight.group.width, flight.total
    positions, olds, steps = (
        array[:total].numpy().view(f"<u{array.element_size()}") for array in flight.room.arrays(width, host=True)
    )
    ordered = order_runs(flight.runs, positions, olds, steps)
    ends = flight.runs[:, 1].reshape(-1, flight.tiles).sum(axis=1, dtype=np.int64).cumsum()
    begin = 0
    blocks = (block for piece in flight.group.pieces for block in piece.cut())
    for block, end in zip(blocks, ends.tolist(), strict=True):
        found = found_block(block.pair.row, block.start, block.count, *(array[begin:end] for array in ordered))
        begin = end
        if found is not None:
            yield found
