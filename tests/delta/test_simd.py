"""Readers of profile `tight`: their scratch memory, and the SIMD operations that locate changes."""

import numpy as np
import pytest

from p2psync.delta.container import ChunkEncoder, decode_chunk, iter_chunk
from p2psync.delta.kernels import simd
from p2psync.delta.kernels.unit_loops import address, kernel
from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec

GRID = 1 << 16
ROWS = [TableRow(TensorSpec(TensorKind.TENSOR, "w", "BF16", (5 * GRID - 77,)), True, True)]


def tight_chunk(seed=0, share=0.03):
    """Old and new units, and the only chunk between them."""
    rng = np.random.default_rng(seed)
    old = rng.integers(0x3B00, 0x3F00, ROWS[0].spec.count).astype(np.uint16)
    new = old + (rng.random(old.size) < share * (old >= 0x3E80)).astype(np.uint16)
    encoder = ChunkEncoder(ROWS, block_units=GRID, chunk_bytes=1 << 20, profile="tight")
    (chunk,) = [*encoder.add(0, old, new), *encoder.finish()]
    assert chunk.data[1] == 2
    return old, new, chunk.data


def read(data, old):
    return iter_chunk(data, ROWS, GRID, lambda row: old)


def assert_leads_to(blocks, old, new):
    made = old.copy()
    for block in blocks:
        made[block.start + block.positions] += block.steps
    assert np.array_equal(made, new)


def test_two_tight_readers_of_one_thread_interleave():
    one, other = tight_chunk(1), tight_chunk(2, 0.3)
    pairs = list(zip(read(one[2], one[0]), read(other[2], other[0]), strict=True))
    assert_leads_to([a for a, _ in pairs], *one[:2])
    assert_leads_to([b for _, b in pairs], *other[:2])


def test_tight_reader_leaves_earlier_blocks_unchanged():
    one, other = tight_chunk(1), tight_chunk(2)
    blocks = decode_chunk(one[2], ROWS, GRID, lambda row: one[0])
    decode_chunk(other[2], ROWS, GRID, lambda row: other[0])
    assert_leads_to(blocks, *one[:2])


def test_abandoned_tight_reader_frees_its_scratch():
    old, new, data = tight_chunk()
    begun = read(data, old)
    next(begun)
    begun.close()
    assert_leads_to(read(data, old), old, new)


def test_base_may_return_another_array_for_each_block():
    old, new, data = tight_chunk()
    assert_leads_to(iter_chunk(data, ROWS, GRID, lambda row: old.copy()), old, new)


@kernel
def _count_before(words, counts):
    simd.count_before(np.uint64(words), np.uint64(counts))


@kernel
def _take_below(items, left, start, stop, tag, out):
    numbers = np.uint64(left), np.uint64(start), np.uint64(stop), np.uint64(tag)
    return simd.take_below(np.uint64(items), *numbers, np.uint64(out))


def test_count_before_counts_set_bits_before_each_word():
    words, counts = np.random.default_rng(0).integers(0, 1 << 64, 64, np.uint64), np.empty(64, np.uint64)
    _count_before(address(words), address(counts))
    own = [int(word).bit_count() for word in words]
    assert counts.tolist() == [sum(own[:k]) for k in range(64)]


@pytest.mark.parametrize(("left", "stop", "taken"), [(8, 20, 2), (100, 1 << 31, 8), (3, 1 << 31, 3), (0, 1 << 31, 0)])
def test_take_below_takes_items_below_a_class_index(left, stop, taken):
    indices = np.array([12, 19, 20, 21, 30, 40, 50, 1 << 20], np.uint64)
    items, out = indices | np.uint64(0xFFFF << 32), np.zeros(8, np.uint64)
    assert _take_below(address(items), left, 10, stop, 5 << 24, address(out)) == taken
    assert np.array_equal(out, (indices - np.uint64(10)) + np.uint64(5 << 24) | np.uint64(0xFFFF << 32))
