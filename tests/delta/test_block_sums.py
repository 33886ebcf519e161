"""Block sums: scans compute the defined sums, and every flipped bit changes them."""

from __future__ import annotations

import numpy as np
import pytest
from delta_parts import spec
from hypothesis import given, settings
from hypothesis import strategies as st

from p2psync.delta.block import MAX_BLOCK_UNITS, block_span
from p2psync.delta.kernels.block_sums import ScanSums, sum_blocks
from p2psync.delta.kernels.unit_loops import TILE_UNITS
from p2psync.delta.tensors import TableRow, TensorSpec, Units
from p2psync.store.encoding import Encoding


class Nowhere:
    """A sink that keeps nothing."""

    def append(self, data: bytes) -> None:
        """See `Sink`."""


def defined(of: TensorSpec, units: Units) -> np.ndarray:
    """The sums by the words of the definition."""
    span = block_span(of.width, MAX_BLOCK_UNITS)
    found = []
    for start in range(0, units.size, span):
        block = units[start : start + span]
        padded = np.zeros(-(-block.size // TILE_UNITS) * TILE_UNITS, of.unit)
        padded[: block.size] = block
        tiles = padded.reshape(-1, TILE_UNITS // 64, 64).sum(axis=1, dtype=of.unit)
        weights = np.arange(len(tiles), 0, -1).astype(of.unit)[:, None]
        found.append([tiles.sum(axis=0, dtype=of.unit), (tiles * weights).sum(axis=0, dtype=of.unit)])
    return np.array(found, of.unit).reshape(-1, 2, 64)


def drawn(of: TensorSpec, seed: int = 0) -> tuple[Units, Units]:
    """Weights before and after a step."""
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 256, of.count * of.width, np.uint8).view(of.unit)
    new = old.copy()
    new[rng.random(of.count) < 0.02] += np.array(1, of.unit)
    return old, new


@pytest.mark.parametrize("profile", ["fast", "tight"])
@pytest.mark.parametrize(("dtype", "count"), [("U8", 1_100_003), ("BF16", 1_100_003), ("F32", 600_001), ("F64", 70)])
def test_scan_sums_both_copies_and_its_steps(dtype: str, count: int, profile: str) -> None:
    of = spec(dtype, (count,))
    old, new = drawn(of)
    old[2000:9000] = new[2000:9000] + np.array(3, of.unit)  # a dense stretch
    with Encoding(Nowhere(), [TableRow(of, True, True)], profile=profile, summed=True) as encoding:
        encoding.take(0, old, new)
        encoding.finish()
    scan = encoding.sums[0]
    np.testing.assert_array_equal(scan.old, defined(of, old))
    np.testing.assert_array_equal(scan.new, defined(of, new))
    np.testing.assert_array_equal(sum_blocks(of, old), defined(of, old))
    assert scan.missed() == []


@settings(max_examples=60)
@given(dtype=st.sampled_from(["U8", "BF16", "F32", "F64"]), count=st.integers(1, 5000), data=st.data())
def test_block_sums_detect_every_flipped_bit(dtype: str, count: int, data: st.DataObject) -> None:
    of = spec(dtype, (count,))
    units, _ = drawn(of)
    before = sum_blocks(of, units)
    unit, bit = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, 8 * of.width - 1))
    units[unit] ^= np.array(1 << bit, of.unit)
    assert (sum_blocks(of, units) != before).any()


def test_block_sums_of_no_units_are_empty() -> None:
    of = spec("BF16", (0,))
    assert ScanSums(of).address == 0 and sum_blocks(of, np.empty(0, of.unit)).size == 0
