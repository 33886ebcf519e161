"""Finding changed units on a device: what a group of blocks is, and the way that torch's own operations go.

A finder is asked in two steps. `look` counts the changes of each tile of each block, and may write what it finds; it
must leave `runs` in the room. `gather` comes when the host knows these counts, and writes what `look` did not. Neither
waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from p2psync.delta.tensors import TensorSpec
from p2psync.engines.device.buffers import SIGNED, ExtractionBuffers
from p2psync.errors import EngineError

#: What the start of a tensor must be a multiple of to be `aligned` (bytes).
ALIGNMENT = 16


@dataclass(frozen=True, slots=True, eq=False)
class VersionPair:
    """A tensor of two versions, on one device.

    row: its index in the table. old: its bits. new: its bits, or, of a spec of BF16, fp32 masters that are rounded
    while they are read. Both flat and contiguous; bits are of the dtype in `SIGNED` for the spec's width. `old` may be
    on the host while `new` is on a device: it is then streamed there.
    """

    row: int
    spec: TensorSpec
    old: torch.Tensor
    new: torch.Tensor

    def __post_init__(self) -> None:
        bits = SIGNED[self.spec.width]
        for tensor, dtypes in ((self.old, {bits}), (self.new, {bits, torch.float32} if self.masters else {bits})):
            if tensor.dtype not in dtypes or tensor.shape != (self.spec.count,) or not tensor.is_contiguous():
                raise EngineError(f"{self.spec.name}: {self.spec.count} flat units of {bits} are wanted")

    @property
    def masters(self) -> bool:
        """Whether `new` holds fp32 masters."""
        return self.new.dtype == torch.float32 and self.spec.dtype == "BF16"

    @property
    def streamed(self) -> bool:
        """Whether `old` must be brought to the device first."""
        return self.old.device != self.new.device

    @property
    def aligned(self) -> bool:
        """Whether both sides begin at a multiple of 16 bytes, so that several units can be read at once."""
        sides = [self.new] if self.streamed else [self.old, self.new]
        return all(side.data_ptr() % ALIGNMENT == 0 for side in sides)

    @property
    def kind(self) -> tuple[int, bool, bool, bool]:
        """What is the same for all pairs of a group: width, `masters`, `streamed`, `aligned`."""
        return self.spec.width, self.masters, self.streamed, self.aligned


@dataclass(frozen=True, slots=True, eq=False)
class BlockRun:
    """Consecutive blocks of the grid: units [start, start + count) of a pair, cut at every `span` units."""

    pair: VersionPair
    start: int
    count: int
    span: int

    @property
    def blocks(self) -> int:
        """How many blocks."""
        return -(-self.count // self.span)

    def cut(self) -> Iterator[BlockRun]:
        """Its blocks, each as a piece."""
        for k in range(0, self.count, self.span):
            yield BlockRun(self.pair, self.start + k, min(self.span, self.count - k), self.span)

    def old(self) -> torch.Tensor:
        """Its old bits."""
        return self.pair.old[self.start : self.start + self.count]

    def new(self) -> torch.Tensor:
        """Its new bits, or masters."""
        return self.pair.new[self.start : self.start + self.count]


@dataclass(frozen=True, slots=True, eq=False)
class BlockGroup:
    """Blocks that are looked at together, all of pairs of one kind.

    olds: the old bits of each piece, on the device.
    """

    pieces: Sequence[BlockRun]
    olds: Sequence[torch.Tensor]

    @property
    def blocks(self) -> int:
        """Of all pieces."""
        return sum(piece.blocks for piece in self.pieces)

    @property
    def width(self) -> int:
        """Bytes of a unit."""
        return self.pieces[0].pair.spec.width

    @property
    def masters(self) -> bool:
        """Whether the new side is fp32, to be rounded."""
        return self.pieces[0].pair.masters

    @property
    def aligned(self) -> bool:
        """See `VersionPair`."""
        return self.pieces[0].pair.aligned

    @property
    def units(self) -> int:
        """Of all pieces."""
        return sum(piece.count for piece in self.pieces)


class ChangeFinder(Protocol):
    """One way to find changes."""

    def tiles(self, span: int, pair: VersionPair) -> int:
        """How many runs a block of at most `span` units has, of pairs of this kind."""

    def max_units(self, pair: VersionPair) -> int:
        """The largest group of this kind that it takes."""

    def look(self, group: BlockGroup, room: ExtractionBuffers, tiles: int) -> None:
        """Fill `room.runs`, `tiles` rows for each block; no run is written beyond the room, but all are counted."""

    def gather(self, group: BlockGroup, room: ExtractionBuffers, runs: NDArray[np.int32]) -> None:
        """Write what the runs say into the room's arrays, unless `look` did. `runs`, (blocks · tiles, 2), may change
        where this finder chooses the places itself."""


class TorchFinder:
    """Torch's own operations, on any device, a block at a time.

    Bytes a unit of width w: `look` reads 2w and writes one byte for the comparison, then reads that to count it;
    `gather` does this again, since keeping the flags would take half of the group's size, and selects (two more reads
    of the flags). So 4w + 5 bytes where the copy of one version moves 2w: with bf16 about a third of the bandwidth of
    copying at best, and eight launches a block, which rule for small blocks. It is what runs where Triton does not.
    """

    def __init__(self, nan: int) -> None:
        """nan: what a NaN among masters is rounded to; see `nan_bits`."""
        del nan  # torch rounds by itself

    def tiles(self, span: int, pair: VersionPair) -> int:
        """See `ChangeFinder`: a run is a block."""
        return 1

    def max_units(self, pair: VersionPair) -> int:
        """See `ChangeFinder`: what 32-bit counts allow."""
        return 1 << 30

    def look(self, group: BlockGroup, room: ExtractionBuffers, tiles: int) -> None:
        """See `ChangeFinder`: counts only."""
        for k, (old, block) in enumerate(_blocks(group)):
            torch.sum(old != _bits(block), dtype=torch.int32, dim=0, out=room.runs[k, 1])

    def gather(self, group: BlockGroup, room: ExtractionBuffers, runs: NDArray[np.int32]) -> None:
        """See `ChangeFinder`: one block after another."""
        runs[1:, 0] = np.cumsum(runs[:-1, 1])
        runs[:1, 0] = 0
        positions, olds, steps = room.arrays(group.width)
        for (first, size), (old, block) in zip(runs.tolist(), _blocks(group), strict=True):
            if size == 0:
                continue
            new = _bits(block)
            where = torch.nonzero_static(old != new, size=size).view(-1)
            place = slice(first, first + size)
            positions[place] = where
            torch.index_select(old, 0, where, out=olds[place])
            torch.sub(torch.index_select(new, 0, where), olds[place], out=steps[place])


def _blocks(group: BlockGroup) -> Iterator[tuple[torch.Tensor, BlockRun]]:
    """The old bits of each block, and the block."""
    for piece, old in zip(group.pieces, group.olds, strict=True):
        for block in piece.cut():
            at = block.start - piece.start
            yield old[at : at + block.count], block


def _bits(piece: BlockRun) -> torch.Tensor:
    new = piece.new()
    return new.to(torch.bfloat16).view(torch.int16) if piece.pair.masters else new


def nan_bits(device: torch.device) -> int:
    """The bf16 bits to which torch rounds a NaN on this device, when it converts many values at a time."""
    many = torch.full((64,), float("nan"), device=device).to(torch.bfloat16).view(torch.int16)
    return int(many[0].item()) & 0xFFFF
