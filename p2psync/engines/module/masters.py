"""Rounds fp32 master weights to the bf16 bits that are published: whole, or block by block with the old bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from p2psync.delta.block import MAX_BLOCK_BYTES, Block, block_count, block_range
from p2psync.delta.extract import Extraction, FoundChanges
from p2psync.delta.kernels.block_sums import ScanSums, address_of_block
from p2psync.delta.kernels.rounding import round_bf16
from p2psync.delta.tensors import Units
from p2psync.engines.device.finder import VersionPair, nan_bits
from p2psync.engines.module.live_tensors import host_units

_COPY_UNITS = 1 << 22


def round_to_units(masters: torch.Tensor) -> Units:
    """Returns the bits (u16) to which torch rounds masters of any shape and device: a flat copy on the host."""
    out = np.empty(masters.numel(), np.uint16)
    if masters.device.type == "cpu" and masters.is_contiguous():
        round_bf16(_floats(masters), out, nan_bits(masters.device))
        return out
    flat = masters.detach().reshape(-1)
    for k in range(0, out.size, _COPY_UNITS):
        out[k : k + _COPY_UNITS] = host_units(flat[k : k + _COPY_UNITS].to(torch.bfloat16))
    return out


def find_rounded_changes(pair: VersionPair, block_units: int, sums: ScanSums | None = None) -> Iterator[FoundChanges]:
    """Yields the changed blocks between old bits and rounded masters, both on a CPU. Rounds one block at a time.

    block_units: units of a block. sums: the tensor's block sums, to be filled; only for blocks of the largest size.
    """
    masters, old = _floats(pair.new), host_units(pair.old)
    nan = nan_bits(pair.new.device)
    scratch = np.empty(min(MAX_BLOCK_BYTES // 2, masters.size), np.uint16)
    for index in range(block_count(pair.spec, block_units)):
        start, count = block_range(pair.spec, block_units, index)
        new = scratch[:count]
        round_bf16(masters[start : start + count], new, nan)
        extraction = Extraction(pair.row, old[start : start + count], new)
        mine = address_of_block(sums.address, pair.spec.width, index) if sums is not None else 0
        found, _ = extraction.block_with_digest(pair.spec, 0, count, mine)
        if found is not None:
            block = Block(pair.row, start, count, found.positions, found.steps)
            yield FoundChanges(block, extraction.olds.copy())


def _floats(masters: torch.Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = masters.detach().view(-1).numpy()
    return found
