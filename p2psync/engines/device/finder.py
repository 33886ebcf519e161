"""Finds changed units on a device: groups of blocks, the finder's interface, and a finder of torch operations.

A finder works in two steps. `scan` counts the changes of each tile of each block, leaves the counts in the buffers'
`runs`, and may write the changes too. `collect` follows when the host has the counts, and writes the changes unless
`scan` did. Neither waits for the device.
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

#: The start of an `aligned` tensor is a multiple of this (bytes).
ALIGNMENT = 16


@dataclass(frozen=True, slots=True, eq=False)
class VersionPair:
    """The old and the new version of a tensor, on one device.

    row: index in the table. old: flat, contiguous bits, of the dtype in `SIGNED` for the spec's width. new: the same,
    or, for BF16, fp32 masters that are rounded while they are read. `old` may be on the host while `new` is on a
    device; it is then streamed there.
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
        """Whether `old` must be copied to the device first."""
        return self.old.device != self.new.device

    @property
    def aligned(self) -> bool:
        """Whether both versions start at a multiple of 16 bytes, so that several units can be read at once."""
        sides = [self.new] if self.streamed else [self.old, self.new]
        return all(side.data_ptr() % ALIGNMENT == 0 for side in sides)

    @property
    def kind(self) -> tuple[int, bool, bool, bool]:
        """Properties that all pairs of a group share: width, `masters`, `streamed`, `aligned`."""
        return self.spec.width, self.masters, self.streamed, self.aligned


@dataclass(frozen=True, slots=True, eq=False)
class BlockRun:
    """Consecutive blocks: units [start, start + count) of a pair, cut at every `span` units."""

    pair: VersionPair
    start: int
    count: int
    span: int

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.count // self.span)

    def cut(self) -> Iterator[BlockRun]:
        """Yields its blocks, each as a run of one block."""
        for k in range(0, self.count, self.span):
            yield BlockRun(self.pair, self.start + k, min(self.span, self.count - k), self.span)

    def old(self) -> torch.Tensor:
        """Returns its old bits."""
        return self.pair.old[self.start : self.start + self.count]

    def new(self) -> torch.Tensor:
        """Returns its new bits, or masters."""
        return self.pair.new[self.start : self.start + self.count]


@dataclass(frozen=True, slots=True, eq=False)
class BlockGroup:
    """Blocks that are scanned together, all of pairs of one kind.

    olds: the old bits of each run, on the device.
    """

    block_runs: Sequence[BlockRun]
    olds: Sequence[torch.Tensor]

    @property
    def blocks(self) -> int:
        """Blocks of all runs."""
        return sum(run.blocks for run in self.block_runs)

    @property
    def width(self) -> int:
        """Bytes of a unit."""
        return self.block_runs[0].pair.spec.width

    @property
    def masters(self) -> bool:
        """Whether the new version is fp32 masters."""
        return self.block_runs[0].pair.masters

    @property
    def aligned(self) -> bool:
        """See `VersionPair`."""
        return self.block_runs[0].pair.aligned

    @property
    def units(self) -> int:
        """Units of all runs."""
        return sum(run.count for run in self.block_runs)


class DeviceChangeFinder(Protocol):
    """Finds the changes of groups."""

    def tiles(self, span: int, pair: VersionPair) -> int:
        """Returns how many tiles a block of at most `span` units has, for pairs of this kind."""

    def max_units(self, pair: VersionPair) -> int:
        """Returns the maximum units of a group of this kind."""

    def scan(self, group: BlockGroup, buffers: ExtractionBuffers, tiles: int) -> None:
        """Fills `buffers.runs`, `tiles` rows for each block. Counts all changes, and writes those that fit."""

    def collect(self, group: BlockGroup, buffers: ExtractionBuffers, runs: NDArray[np.int32]) -> None:
        """Writes the counted changes into the buffers, unless `scan` did.

        runs: (blocks · tiles, 2), as `scan` left them; a finder that chooses the entries itself updates the first
        column.
        """


class TorchFinder:
    """Finds changes by torch operations, on any device, one block at a time. Used where Triton is missing.

    Memory traffic for each unit of width w: `scan` reads 2w bytes, writes a flag of one byte and reads it; `collect`
    does the same again, since keeping the flags would take half of the group's size, and reads the flags twice more. So
    4w + 5 bytes, where a copy of one version moves 2w, and eight launches a block.
    """

    def __init__(self, nan: int) -> None:
        """nan: what a NaN among masters is rounded to; see `nan_bits`."""
        del nan  # torch rounds by itself

    def tiles(self, span: int, pair: VersionPair) -> int:
        """See `DeviceChangeFinder`: one for each block."""
        return 1

    def max_units(self, pair: VersionPair) -> int:
        """See `DeviceChangeFinder`: as many as 32-bit counts allow."""
        return 1 << 30

    def scan(self, group: BlockGroup, buffers: ExtractionBuffers, tiles: int) -> None:
        """See `DeviceChangeFinder`: counts and writes nothing."""
        for k, (old, block) in enumerate(_blocks(group)):
            torch.sum(old != _bits(block), dtype=torch.int32, dim=0, out=buffers.runs[k, 1])

    def collect(self, group: BlockGroup, buffers: ExtractionBuffers, runs: NDArray[np.int32]) -> None:
        """See `DeviceChangeFinder`: one block after another."""
        runs[1:, 0] = np.cumsum(runs[:-1, 1])
        runs[:1, 0] = 0
        positions, olds, steps = buffers.arrays(group.width)
        for (first, size), (old, block) in zip(runs.tolist(), _blocks(group), strict=True):
            if size == 0:
                continue
            new = _bits(block)
            where = torch.nonzero_static(old != new, size=size).view(-1)
            entries = slice(first, first + size)
            positions[entries] = where
            torch.index_select(old, 0, where, out=olds[entries])
            torch.sub(torch.index_select(new, 0, where), olds[entries], out=steps[entries])


def _blocks(group: BlockGroup) -> Iterator[tuple[torch.Tensor, BlockRun]]:
    """Yields the old bits of each block, and the block."""
    for run, old in zip(group.block_runs, group.olds, strict=True):
        for block in run.cut():
            at = block.start - run.start
            yield old[at : at + block.count], block


def _bits(run: BlockRun) -> torch.Tensor:
    new = run.new()
    return new.to(torch.bfloat16).view(torch.int16) if run.pair.masters else new


def nan_bits(device: torch.device) -> int:
    """Returns the bf16 bits to which torch rounds a NaN on this device when it converts many values at a time."""
    many = torch.full((64,), float("nan"), device=device).to(torch.bfloat16).view(torch.int16)
    return int(many[0].item()) & 0xFFFF
