"""Extraction on a device finds the same changes as the CPU, in groups of bounded size. Here the device is the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from device_parts import CPU, GRID, SIZES, WIDTHS, assert_same, masters, on_cpu, pairs_of, tensor_of, versions
from module_parts import DTYPES

from p2psync.delta.container import ChunkEncoder
from p2psync.delta.tensors import TableRow
from p2psync.engines.device.extract import DeviceExtraction
from p2psync.engines.device.finder import VersionPair
from p2psync.engines.module.live_tensors import flat_bits
from p2psync.errors import EngineError, FormatError


@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_the_same_blocks_as_on_a_cpu(dtype: str, density: float) -> None:
    pairs = pairs_of([versions(dtype, count, density, seed) for seed, count in enumerate(SIZES)])
    assert_same(list(DeviceExtraction(CPU, GRID).extract(pairs)), on_cpu(pairs))


def test_rows_of_every_width_in_one_call() -> None:
    pairs = pairs_of([versions(dtype, 70_000, 0.02, k) for k, dtype in enumerate([*WIDTHS, "BF16", "BF16", "U8"])])
    extraction = DeviceExtraction(CPU, GRID)
    assert extraction.count(pairs) == sum(found.block.steps.size for found in on_cpu(pairs))
    for _ in range(2):
        assert_same(list(extraction.extract(pairs)), on_cpu(pairs))


def test_every_dtype_of_torch_has_bits() -> None:
    for row, dtype in enumerate(DTYPES):
        raw = torch.randint(0, 2 if dtype == torch.bool else 256, (64, 16), dtype=torch.uint8)
        other = raw.clone()
        other[5] ^= 1
        old, new = flat_bits(raw.view(dtype)), flat_bits(other.view(dtype))
        assert old is not None and new is not None
        name = {1: "U8", 2: "BF16", 4: "F32", 8: "F64"}[old.element_size()]
        spec = versions(name, old.numel(), 0.0)[0]
        pair = VersionPair(row, spec, old, new)
        found = list(DeviceExtraction(CPU, GRID).extract([pair]))
        assert_same(found, on_cpu([pair]))
        assert len(found) == 1


@pytest.mark.parametrize("density", [0.01, 1.0])
def test_groups_are_bounded_and_cost_one_wait_each(density: float) -> None:
    pairs = pairs_of([versions("BF16", 3 * GRID, density, 1), versions("BF16", 5 * GRID + 1, density, 2)])
    extraction = DeviceExtraction(CPU, GRID, group_bytes=4 * GRID)
    assert_same(list(extraction.extract(pairs)), on_cpu(pairs))
    assert extraction.waits == 5 + 1  # five groups of two blocks at most, and the finds of the last


def test_a_group_that_overflows_its_buffers_is_extracted_in_parts() -> None:
    quiet, busy = versions("BF16", 4 * GRID, 0.001, 1), versions("BF16", 16 * GRID, 1.0, 2)
    pairs = pairs_of([quiet, busy, quiet])
    extraction = DeviceExtraction(CPU, GRID, buffer_bytes=1, group_bytes=8 * GRID)
    assert_same(list(extraction.extract(pairs)), on_cpu(pairs))
    # Two of the four groups are under way before the first has told how dense they are.
    assert extraction.redone == 2


def test_old_bits_may_be_streamed() -> None:
    class Streamed(VersionPair):
        @property
        def streamed(self) -> bool:
            return True

    plain = pairs_of([versions(dtype, 3 * GRID + 5, 0.05, k) for k, dtype in enumerate(WIDTHS)])
    pairs = [Streamed(p.row, p.spec, p.old, p.new) for p in plain]
    extraction = DeviceExtraction(CPU, GRID, streamed_bytes=2 * GRID, buffer_bytes=1)
    assert_same(list(extraction.extract(pairs)), on_cpu(plain))


def test_masters_are_rounded_while_they_are_read() -> None:
    found = [masters(count, 0.05, seed) for seed, count in enumerate(SIZES)]
    pairs = [VersionPair(row, spec, tensor_of(old), new) for row, (spec, old, new) in enumerate(found)]
    assert_same(list(DeviceExtraction(CPU, GRID).extract(pairs)), on_cpu(pairs))


@pytest.mark.parametrize("profile", ["fast", "tight"])
def test_the_encoder_makes_the_same_chunks_from_device_changes(profile: str) -> None:
    found = [versions("BF16", 200_000, 0.01, 1), versions("F32", 90_000, 0.02, 2), versions("BF16", GRID, 1.0, 3)]
    found += [versions("BF16", 1000, 0.0, 4)]
    rows = [TableRow(spec, True, True) for spec, _, _ in found]
    ours, theirs = (ChunkEncoder(rows, block_units=GRID, chunk_bytes=1 << 14, profile=profile) for _ in range(2))
    finds = list(DeviceExtraction(CPU, GRID).extract(pairs_of(found)))
    chunks: tuple[list[bytes], list[bytes]] = [], []
    for row, (_, old, new) in enumerate(found):
        mine = [find for find in finds if find.block.row == row]
        chunks[0].extend(chunk.data for chunk in ours.add_found(row, mine, old))
        chunks[1].extend(chunk.data for chunk in theirs.add(row, old, new))
    chunks[0].extend(chunk.data for chunk in ours.finish())
    chunks[1].extend(chunk.data for chunk in theirs.finish())
    assert chunks[0] == chunks[1]
    assert (ours.digest_change, ours.changed, ours.total) == (theirs.digest_change, theirs.changed, theirs.total)


def test_changes_that_do_not_fit_the_row_are_refused() -> None:
    spec, old, new = versions("BF16", 3 * GRID, 0.01)
    finds = list(DeviceExtraction(CPU, GRID).extract(pairs_of([(spec, old, new)])))
    for wrong in (finds[::-1], [finds[0], finds[0]]):
        encoder = ChunkEncoder([TableRow(spec, True, True)], block_units=GRID, chunk_bytes=1 << 16)
        with pytest.raises(ValueError, match="rising order"):
            list(encoder.add_found(0, wrong, None))
    for row, profile, message in (
        (TableRow(spec, True, True), "tight", "missing"),
        (TableRow(spec, False, True), "fast", "before"),
    ):
        encoder = ChunkEncoder([row], block_units=GRID, chunk_bytes=1 << 16, profile=profile)
        with pytest.raises(ValueError, match=message):
            list(encoder.add_found(0, finds, None))
    encoder = ChunkEncoder([TableRow(spec, True, True)] * 2, block_units=GRID, chunk_bytes=1 << 16)
    with pytest.raises(ValueError, match="another row"):
        list(encoder.add_found(1, finds, None))


def test_an_invalid_pair_is_refused() -> None:
    spec, old, new = versions("BF16", 8, 0.5)
    bits = pairs_of([(spec, old, new)])[0]
    for wrong in (bits.new[:7], bits.new.to(torch.int32), bits.new.view(2, 4), torch.zeros(16, dtype=torch.int16)[::2]):
        with pytest.raises(EngineError, match="flat units"):
            VersionPair(0, spec, bits.old, wrong)
    with pytest.raises(FormatError):
        DeviceExtraction(CPU, 12345)
    np.testing.assert_array_equal(bits.old.numpy().view(np.uint16), old)
