"""Blocks form a group: they compose, invert and associate exactly, and write only to their own units."""

import numpy as np
import pytest
from delta_parts import GRID, WIDTHS, change, misaligned, random_units, same, sparse_block, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from p2psync.delta.algebra import (
    apply_block,
    apply_with_digest,
    compose,
    gather,
    invert,
    merge_blocks,
    reblock,
    scatter,
    split_block,
)
from p2psync.delta.block import Block, block_count, block_range
from p2psync.delta.digest import MODULUS, digest_units
from p2psync.delta.extract import extract_block
from p2psync.delta.tensors import TableRow

FAR = 2**33 + GRID

seeds = st.integers(0, 2**32)
widths = st.sampled_from(WIDTHS)
densities = st.sampled_from([0.0, 0.01, 0.3, 1.0])


def chain(seed, dtype, *densities, count=1500):
    """Versions of a tensor, each made from the one before."""
    generator = np.random.default_rng(seed)
    versions = [random_units(generator, spec(dtype).unit, count)]
    for density in densities:
        versions.append(change(generator, versions[-1], density, generator.choice(["one", "any"])))
    return versions


def between(old, new):
    return extract_block(0, old, new, 0, old.size)


def join(a, b):
    if a is None or b is None:
        return a or b
    return compose(a, b)


def equal(a, b):
    """Checks that blocks have equal effects: None, dense or sparse."""
    if a is None or b is None:
        return a is b
    parts = [next(iter(split_block(Block(x.row, x.start, x.count, *_sparse(x)), 1 << 20))) for x in (a, b)]
    return same(*parts)


def _sparse(block):
    if block.positions is not None:
        return block.positions, block.steps
    where = np.flatnonzero(block.steps).astype(np.uint32)
    return where, block.steps[where]


@given(seeds, widths, densities, densities)
@settings(max_examples=80, deadline=None)
def test_composed_blocks_lead_from_first_base_to_last_version(seed, dtype, first, second):
    a, b, c = chain(seed, dtype, first, second)
    assert equal(join(between(a, b), between(b, c)), between(a, c))


@given(seeds, widths, densities, densities, densities)
@settings(max_examples=60, deadline=None)
def test_compose_is_associative(seed, dtype, first, second, third):
    a, b, c, d = chain(seed, dtype, first, second, third)
    p, q, r = between(a, b), between(b, c), between(c, d)
    assert equal(join(join(p, q), r), join(p, join(q, r)))


@given(seeds, widths, densities)
@settings(max_examples=40, deadline=None)
def test_block_composed_with_its_inverse_is_none(seed, dtype, density):
    a, b = chain(seed, dtype, density)
    block = between(a, b)
    if block is not None:
        assert compose(block, invert(block)) is None
        assert same(invert(invert(block)), block)
        assert equal(invert(block), between(b, a))


def test_compose_mixes_dense_and_sparse_blocks():
    dense = Block(0, 0, 4, None, np.array([1, 2, 3, 4], np.uint16))
    sparse = Block(0, 0, 4, np.array([1, 3], np.uint32), np.array([5, 65532], np.uint16))
    for result in (compose(dense, sparse), compose(sparse, dense)):
        assert result.positions is None
        np.testing.assert_array_equal(result.steps, [1, 7, 3, 0])
    undo = Block(0, 0, 2, np.array([0, 1], np.uint32), np.array([65535, 65534], np.uint16))
    assert compose(Block(0, 0, 2, None, np.array([1, 2], np.uint16)), undo) is None


def test_compose_refuses_blocks_of_different_ranges():
    one = Block(0, 0, 4, np.array([1], np.uint32), np.array([5], np.uint16))
    others = [
        Block(1, 0, 4, one.positions, one.steps),
        Block(0, 4, 4, one.positions, one.steps),
        Block(0, 0, 5, one.positions, one.steps),
        Block(0, 0, 4, one.positions, one.steps.astype(np.uint32)),
    ]
    for other in others:
        with pytest.raises(ValueError, match="reblock"):
            compose(one, other)


def test_compose_and_invert_work_beyond_2_to_the_31_units():
    generator = np.random.default_rng(1)
    a, b = (sparse_block(generator, np.dtype("<u2"), GRID, 500, start=FAR) for _ in range(2))
    both = compose(a, b)
    assert (both.start, both.count) == (FAR, GRID)
    assert same(compose(both, invert(b)), a)


@given(seeds, widths, densities)
@settings(max_examples=40, deadline=None)
def test_apply_with_digest_returns_the_digest_change(seed, dtype, density):
    old, new = chain(seed, dtype, density)
    one = spec(dtype, old.shape)
    block = between(old, new)
    if block is None:
        return
    plain, fused = old.copy(), old.copy()
    apply_block(plain, block)
    change_of_digest = apply_with_digest(one, fused, block)
    np.testing.assert_array_equal(plain, new)
    np.testing.assert_array_equal(fused, new)
    assert (digest_units(one, old) + change_of_digest) % MODULUS == digest_units(one, new)


def test_apply_to_a_wrong_base_or_twice_changes_the_digest_otherwise():
    old, new = chain(3, "BF16", 0.1)
    one, block = spec(shape=old.shape), between(old, new)
    live = old.copy()
    right = apply_with_digest(one, live, block)
    assert apply_with_digest(one, live, block) != right
    wrong = old.copy()
    wrong[block.positions[0]] ^= 1
    assert apply_with_digest(one, wrong, block) != right


@given(seeds, widths, densities)
@settings(max_examples=40, deadline=None)
def test_scatter_of_gathered_bits_undoes_an_apply(seed, dtype, density):
    old, new = chain(seed, dtype, density)
    block = between(old, new)
    if block is None:
        return
    live = old.copy()
    kept = gather(live, block)
    apply_block(live, block)
    scatter(live, block, kept)
    np.testing.assert_array_equal(live, old)


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("density", [0.05, 1.0])
def test_apply_works_at_any_alignment(dtype, density):
    old, new = chain(4, dtype, density)
    one, block = spec(dtype, old.shape), between(old, new)
    memory = bytearray(misaligned(old).base[: 1 + old.nbytes])
    live = np.frombuffer(memory, old.dtype, old.size, 1)
    kept = gather(live, block)
    aligned = old.copy()
    assert apply_with_digest(one, live, block) == apply_with_digest(one, aligned, block)
    np.testing.assert_array_equal(live, new)
    scatter(live, block, kept)
    np.testing.assert_array_equal(live, old)


@given(seeds, widths, densities)
@settings(max_examples=40, deadline=None)
def test_apply_writes_nothing_outside_the_block(seed, dtype, density):
    a, b = chain(seed, dtype, density, count=300)
    block = between(a, b)
    if block is None:
        return
    guarded = random_units(np.random.default_rng(seed), a.dtype, 900)
    guarded[300:600] = a
    before = guarded.copy()
    moved = Block(0, 300, 300, block.positions, block.steps)
    apply_block(guarded, moved)
    np.testing.assert_array_equal(guarded[300:600], b)
    scatter(guarded, moved, gather(before, moved))
    np.testing.assert_array_equal(guarded, before)


@pytest.mark.parametrize(
    "block",
    [
        Block(0, 90, 20, np.array([0], np.uint32), np.array([1], np.uint16)),
        Block(0, -1, 20, np.array([0], np.uint32), np.array([1], np.uint16)),
        Block(0, 2**40, 20, np.array([0], np.uint32), np.array([1], np.uint16)),
        Block(0, 0, 20, np.array([20], np.uint32), np.array([1], np.uint16)),
        Block(0, 0, 20, np.array([2**32 - 1, 3], np.uint32), np.array([1, 1], np.uint16)),
        Block(0, 0, 20, np.array([1, 2], np.uint32), np.array([1], np.uint16)),
        Block(0, 0, 20, None, np.ones(19, np.uint16)),
        Block(0, 0, 20, None, np.ones(20, np.uint32)),
    ],
)
def test_apply_refuses_a_block_outside_the_weights_without_writing(block):
    live = np.zeros(100, np.uint16)
    for act in (
        lambda: apply_block(live, block),
        lambda: apply_with_digest(spec(shape=(100,)), live, block),
        lambda: gather(live, block),
        lambda: scatter(live, block, np.ones(block.steps.size, block.steps.dtype)),
    ):
        with pytest.raises(ValueError):
            act()
    assert not live.any()


def test_apply_refuses_read_only_weights():
    live = misaligned(np.zeros(10, np.uint16))
    with pytest.raises(ValueError, match="read-only"):
        apply_block(live, Block(0, 0, 10, np.array([0], np.uint32), np.array([1], np.uint16)))


@given(seeds, widths, densities, st.sampled_from([(16, 18), (18, 16), (17, 17), (16, 20), (20, 16)]))
@settings(max_examples=30, deadline=None)
def test_reblock_keeps_the_change(seed, dtype, density, sizes):
    generator = np.random.default_rng(seed)
    one = spec(dtype, (generator.integers(1, 300_000),))
    rows = [TableRow(one, True, True)] * 2
    old = random_units(generator, one.unit, one.count)
    new = change(generator, old, density, "any")
    coarse, fine = (_blocks(one, old, new, 1 << size) for size in sizes)
    result = list(reblock(iter(coarse), rows, 1 << sizes[1]))
    assert [(b.row, b.start, b.count) for b in result] == [(b.row, b.start, b.count) for b in fine]
    assert all(equal(x, y) for x, y in zip(result, fine, strict=True))


def _blocks(one, old, new, block_units):
    blocks = []
    for row in range(2):
        for index in range(block_count(one, block_units)):
            block = extract_block(row, old, new, *block_range(one, block_units, index))
            blocks += [block] if block is not None else []
    return blocks


def test_split_and_merge_work_beyond_2_to_the_31_units():
    block = sparse_block(np.random.default_rng(2), np.dtype("<u2"), 4 * GRID, 900, start=2**33)
    parts = list(split_block(block, GRID))
    assert [part.start for part in parts] == [2**33 + k * GRID for k in range(4)]
    assert same(merge_blocks(parts, 2**33, 4 * GRID), block)


def test_merge_is_dense_only_for_dense_parts_without_gaps():
    dense = Block(0, 0, 8, None, np.arange(1, 9, dtype=np.uint16))
    a, b = split_block(dense, 4)
    assert same(merge_blocks([a, b], 0, 8), dense)
    np.testing.assert_array_equal(merge_blocks([b], 0, 8).positions, [4, 5, 6, 7])
    with pytest.raises(ValueError, match="overlap"):
        merge_blocks([a, a], 0, 8)
