"""Extraction finds exactly the units whose bits differ, at any alignment."""

import numpy as np
import pytest
from delta_parts import DTYPES, WIDTHS, change, misaligned, pairs, random_units, spec, special
from hypothesis import given, settings

from p2psync.delta.algebra import apply_block
from p2psync.delta.digest import MODULUS, digest_units
from p2psync.delta.extract import extract_block, extract_with_digest


@given(pairs())
@settings(max_examples=80, deadline=None)
def test_extract_finds_exactly_the_changed_units(pair):
    one, old, new = pair
    block = extract_block(3, old, new, 0, one.count)
    where = np.flatnonzero(old != new)
    if not where.size:
        assert block is None
        return
    assert (block.row, block.start, block.count, block.changed) == (3, 0, one.count, where.size)
    assert block.steps.dtype == one.unit
    if block.positions is not None:
        assert block.positions.dtype == np.uint32
        np.testing.assert_array_equal(block.positions, where)
    live = old.copy()
    apply_block(live, block)
    np.testing.assert_array_equal(live, new)


@given(pairs(most=5000))
@settings(max_examples=40, deadline=None)
def test_extract_returns_the_digest_change(pair):
    one, old, new = pair
    ends = (digest_units(one, new) - digest_units(one, old)) % MODULUS
    assert extract_with_digest(one, 0, old, new, 0, one.count)[1] == ends
    assert extract_with_digest(one, 0, None, new, 0, one.count)[1] == digest_units(one, new)
    assert extract_with_digest(one, 0, old, None, 0, one.count)[1] == -digest_units(one, old) % MODULUS


@pytest.mark.parametrize("dtype", DTYPES)
def test_extract_compares_special_values_by_bits(dtype):
    unit = spec(dtype).unit
    values = special(unit)
    old, new = np.repeat(values, values.size), np.tile(values, values.size)
    block = extract_block(0, old, new, 0, old.size)
    np.testing.assert_array_equal(block.positions, np.flatnonzero(old != new))
    np.testing.assert_array_equal(block.steps, (new - old)[old != new])


def test_extract_tells_signed_zeros_apart_but_not_equal_nans():
    old = np.array([0x0000, 0x7FC1, 0x7FC1], np.uint16)
    new = np.array([0x8000, 0x7FC1, 0x7FC2], np.uint16)
    np.testing.assert_array_equal(extract_block(0, old, new, 0, 3).positions, [0, 2])


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("offsets", [(1, 0), (0, 1), (3, 5), (7, 1)])
def test_extract_reads_unaligned_and_read_only_arrays(dtype, offsets):
    generator = np.random.default_rng(5)
    one = spec(dtype, (70001,))
    old = random_units(generator, one.unit, one.count)
    new = change(generator, old, 0.02, "any")
    expected = extract_with_digest(one, 0, old, new, 64, 70001 - 64)
    crooked = extract_with_digest(one, 0, misaligned(old, offsets[0]), misaligned(new, offsets[1]), 64, 70001 - 64)
    np.testing.assert_array_equal(crooked[0].positions, expected[0].positions)
    np.testing.assert_array_equal(crooked[0].steps, expected[0].steps)
    assert crooked[1] == expected[1]


@pytest.mark.parametrize("count", [1, 7, 63, 64, 65, 127, 128, 4095, 4096, 4097, 4160])
def test_extract_finds_first_and_last_unit_at_every_length(count):
    old = np.zeros(count + 2, np.uint16)
    for place in (0, 1, count, count + 1):
        new = old.copy()
        new[place] = 9
        block = extract_block(0, old, new, 1, count)
        assert (block is not None) == (1 <= place <= count)
        if block is not None:
            assert block.steps.size == 1


def test_extract_is_dense_if_all_units_changed():
    old = np.arange(500, dtype=np.uint16)
    assert extract_block(0, old, old + np.uint16(1), 0, 500).positions is None


def test_extract_takes_absent_tensors_as_zeros():
    units = np.arange(1, 301, dtype=np.uint16)
    added, removed = extract_block(0, None, units, 100, 50), extract_block(0, units, None, 100, 50)
    assert added.positions is removed.positions is None
    np.testing.assert_array_equal(added.steps, units[100:150])
    np.testing.assert_array_equal(added.steps + removed.steps, np.zeros(50))


def test_extract_of_added_zeros_has_a_digest_but_no_block():
    units = np.zeros(40, np.uint16)
    assert extract_with_digest(spec(shape=(40,)), 0, None, units, 0, 40) == (
        None,
        digest_units(spec(shape=(40,)), units),
    )


def test_extract_of_a_mostly_zero_added_tensor_is_sparse():
    units = np.zeros(4000, np.uint16)
    units[[5, 3999]] = 7
    np.testing.assert_array_equal(extract_block(0, None, units, 0, 4000).positions, [5, 3999])


@pytest.mark.parametrize(
    ("old", "new", "start", "count"),
    [
        (None, None, 0, 1),
        (np.zeros(4, np.uint16), np.zeros(5, np.uint16), 0, 4),
        (np.zeros(4, np.uint16), np.zeros(4, np.uint32), 0, 4),
        (np.zeros(4, np.uint16), np.zeros(8, np.uint16)[::2], 0, 4),
        (np.zeros(4, np.uint16), np.zeros(4, np.uint16), 2, 3),
        (np.zeros(4, np.uint16), np.zeros(4, np.uint16), -1, 2),
        (np.zeros((2 << 20) + 1, np.uint8), None, 0, (2 << 20) + 1),
    ],
)
def test_extract_refuses_arrays_that_do_not_fit(old, new, start, count):
    with pytest.raises(ValueError):
        extract_block(0, old, new, start, count)
