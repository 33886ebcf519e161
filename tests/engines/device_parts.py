"""Pairs of tensors for the extraction on a device, and the changes that the CPU finds in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from p2psync.delta.block import block_count, block_range
from p2psync.delta.extract import Extraction, FoundChanges
from p2psync.delta.kernels.rounding import round_bf16
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.engines.device.finder import VersionPair, nan_bits

GRID = 1 << 16
CPU = torch.device("cpu")
#: One dtype for each width of unit.
WIDTHS = ("F8_E4M3", "BF16", "F32", "F64")
#: Around the blocks of `GRID` units, of `TILE` units and of nothing.
SIZES = (1, 63, 4096, 4097, GRID, GRID + 1, 2 * GRID + 777)


def tensor_of(units: Units) -> torch.Tensor:
    """Units as the integers that a device takes."""
    return torch.from_numpy(units.view(f"i{units.itemsize}" if units.itemsize > 1 else "u1"))


def versions(dtype: str, count: int, density: float, seed: int = 0) -> tuple[TensorSpec, Units, Units]:
    """Any bits, of which a share is replaced by any others."""
    rng = np.random.default_rng(seed)
    spec = TensorSpec(2, f"{dtype}.{count}", dtype, (count,))
    old = rng.integers(0, np.iinfo(spec.unit).max, count, spec.unit, endpoint=True)
    where = rng.random(count) < density
    new = old.copy()
    new[where] += rng.integers(1, np.iinfo(spec.unit).max, int(where.sum()), spec.unit, endpoint=True)
    return spec, old, new


def masters(count: int, density: float, seed: int = 0) -> tuple[TensorSpec, Units, torch.Tensor]:
    """bf16 bits, and fp32 masters that round to others in about a share of places; NaNs and infinities among them."""
    rng = np.random.default_rng(seed)
    spec = TensorSpec(2, f"masters.{count}", "BF16", (count,))
    values = rng.standard_normal(count).astype(np.float32)
    if count > 16:
        values[:6] = np.nan, -np.nan, np.inf, -np.inf, 1e-40, 3.4028235e38
    old = np.empty(count, np.uint16)
    round_bf16(values, old, nan_bits(CPU))
    moved = np.where(rng.random(count) < density, values * np.float32(0.99), values)
    return spec, old, torch.from_numpy(moved.astype(np.float32))


def pairs_of(found: Sequence[tuple[TensorSpec, Units, Units]]) -> list[VersionPair]:
    """The versions as pairs on the CPU, row by row."""
    return [VersionPair(row, spec, tensor_of(old), tensor_of(new)) for row, (spec, old, new) in enumerate(found)]


def on_cpu(pairs: Sequence[VersionPair], block_units: int = GRID) -> list[FoundChanges]:
    """Returns the changes that `delta.extract` finds, the reference on the CPU."""
    found = []
    for pair in pairs:
        new = pair.new
        if pair.masters:
            new = new.to(torch.bfloat16).view(torch.int16)
        unit = f"<u{pair.spec.width}"
        extraction = Extraction(pair.row, pair.old.numpy().view(unit), new.numpy().view(unit))
        for index in range(block_count(pair.spec, block_units)):
            block, _ = extraction.block_with_digest(pair.spec, *block_range(pair.spec, block_units, index))
            if block is not None:
                found.append(FoundChanges(block, extraction.olds.copy()))
    return found


def assert_same(ours: Sequence[FoundChanges], theirs: Sequence[FoundChanges]) -> None:
    """Checks that blocks and old bits are equal, in order."""
    assert [(f.block.row, f.block.start, f.block.count) for f in ours] == [
        (f.block.row, f.block.start, f.block.count) for f in theirs
    ]
    for a, b in zip(ours, theirs, strict=True):
        assert (a.block.positions is None) == (b.block.positions is None)
        if a.block.positions is not None and b.block.positions is not None:
            assert a.block.positions.dtype == np.uint32
            np.testing.assert_array_equal(a.block.positions, b.block.positions)
        for mine, other in ((a.block.steps, b.block.steps), (a.olds, b.olds)):
            assert mine.dtype == other.dtype
            np.testing.assert_array_equal(mine, other)
