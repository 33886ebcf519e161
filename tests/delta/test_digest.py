"""The digest: its definition, the changes that it detects, and sums of parts."""

import numpy as np
import pytest
import reference
from delta_parts import WIDTHS, misaligned, random_units, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from p2psync.delta.digest import (
    MODULUS,
    digest_bytes,
    digest_change,
    digest_from_bytes,
    digest_units,
    tensor_id,
)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("start", [0, 5, 2**31 - 3, 2**32 + 1, 2**45])
def test_digest_is_the_sum_of_the_format_page(dtype, start):
    one = spec(dtype, (1000,))
    units = random_units(rng(), one.unit, 200)
    assert digest_units(one, units, start) == reference.digest(one, units, start)
    assert int.from_bytes(tensor_id(one), "little") == reference.tensor_id(one)


def test_digest_of_no_units_is_zero():
    assert digest_units(spec(shape=(0,)), np.empty(0, np.uint16)) == 0


def test_digest_counts_a_scalar():
    assert digest_units(spec(shape=()), np.zeros(1, np.uint16)) != 0


@pytest.mark.parametrize("dtype", WIDTHS)
def test_digests_of_parts_add_up(dtype):
    one = spec(dtype, (5000,))
    units = random_units(rng(), one.unit, 5000)
    whole = digest_units(one, units)
    for cut in (0, 1, 63, 64, 2500, 4999, 5000):
        assert (digest_units(one, units[:cut]) + digest_units(one, units[cut:], cut)) % MODULUS == whole


@pytest.mark.parametrize("dtype", WIDTHS)
def test_digest_reads_unaligned_memory(dtype):
    one = spec(dtype, (999,))
    units = random_units(rng(), one.unit, 999)
    assert digest_units(one, misaligned(units)) == digest_units(one, units)


@given(st.sampled_from(WIDTHS), st.integers(0, 2**32), st.integers(0, 2**40), st.integers(1, 300))
@settings(max_examples=50, deadline=None)
def test_digest_change_is_the_difference_of_both_digests(dtype, seed, start, count):
    generator = np.random.default_rng(seed)
    one = spec(dtype, (1 << 50,))
    old, new = random_units(generator, one.unit, count), random_units(generator, one.unit, count)
    expected = (digest_units(one, new, start) - digest_units(one, old, start)) % MODULUS
    assert digest_change(one, start, None, old, new) == expected
    assert digest_change(one, start, np.arange(count, dtype=np.uint32), old, new) == expected
    where = np.flatnonzero(old != new).astype(np.uint32)
    assert digest_change(one, start, where, old[where], new[where]) == expected


@pytest.mark.parametrize("dtype", WIDTHS)
def test_digest_detects_every_flipped_bit(dtype):
    one = spec(dtype, (64,))
    units = random_units(rng(), one.unit, 64)
    seen = {digest_units(one, units)}
    for k in range(64):
        for bit in range(8 * one.width):
            flipped = units.copy()
            flipped[k] ^= one.unit.type(1 << bit)
            seen.add(digest_units(one, flipped))
    assert len(seen) == 1 + 64 * 8 * one.width


def test_digest_detects_every_swap_of_units():
    one = spec(shape=(100,))
    units = np.arange(100, dtype=np.uint16)
    seen = {digest_units(one, units)}
    for i in range(100):
        for j in range(i):
            swapped = units.copy()
            swapped[[i, j]] = swapped[[j, i]]
            seen.add(digest_units(one, swapped))
    assert len(seen) == 1 + 100 * 99 // 2


def test_digest_detects_a_doubled_or_missed_step():
    one = spec(shape=(4096,))
    old = random_units(rng(), one.unit, 4096)
    new = old.copy()
    new[::97] += 1
    doubled = new.copy()
    doubled[::97] += 1
    assert len({digest_units(one, units) for units in (old, new, doubled)}) == 3


def test_digest_depends_on_the_tensor():
    units = np.arange(50, dtype=np.uint16)
    kinds = [
        spec(shape=(50,)),
        spec(shape=(50,), name="v"),
        spec("F16", (50,)),
        spec(shape=(5, 10)),
        spec(shape=(10, 5)),
        spec(shape=(50, 1)),
    ]
    assert len({digest_units(one, units) for one in kinds}) == len(kinds)


def test_digest_detects_a_swap_between_tensors():
    a, b = spec(name="a", shape=(3,)), spec(name="b", shape=(3,))
    x, y = np.array([1, 2, 3], np.uint16), np.array([4, 5, 6], np.uint16)
    assert (digest_units(a, x) + digest_units(b, y)) % MODULUS != (digest_units(a, y) + digest_units(b, x)) % MODULUS


@pytest.mark.parametrize("dtype", WIDTHS)
def test_mix_flips_half_of_its_bits_for_one_input_bit(dtype):
    one = spec(dtype, (1 << 20,))
    generator = rng()
    flips = np.zeros(128)
    rounds = 0
    for _ in range(60):
        bits, index = int(random_units(generator, one.unit, 1)[0]), int(generator.integers(0, 1 << 20))
        before = digest_units(one, np.array([bits], one.unit), index)
        others = [(bits ^ 1 << b, index) for b in range(8 * one.width)] + [(bits, index ^ 1 << b) for b in range(20)]
        for other_bits, other_index in others:
            difference = before ^ digest_units(one, np.array([other_bits], one.unit), other_index)
            flips += [difference >> k & 1 for k in range(128)]
            rounds += 1
    share = flips / rounds
    spread = 6 * 0.5 / rounds**0.5
    assert abs(share - 0.5).max() < spread
    assert abs(share.mean() - 0.5) < spread / 8


def test_mixes_of_neighbours_are_not_correlated():
    key = reference.tensor_id(spec())
    values = [reference.mix(key, i, 0x3F80) for i in range(4000)]
    bits = np.array([[v >> k & 1 for k in range(128)] for v in values]) * 2.0 - 1
    correlation = bits[:-1].T @ bits[1:] / (len(values) - 1)
    assert abs(correlation).max() < 6 / len(values) ** 0.5
    within = bits.T @ bits / len(values) - np.eye(128)
    assert abs(within).max() < 6 / len(values) ** 0.5


def test_linear_forms_of_the_mix_agree_only_2_to_60_units_apart():
    modulus = 1 << 64
    low = 0x9E3779B97F4A7C15 * pow(0x9E3779B1, -1, modulus)
    high = 0xD1B54A32D192ED03 * pow(0x85EBCA77, -1, modulus)
    assert (low - high) % modulus & 0x1F == 0x10


def test_digest_bytes_are_little_endian_and_invertible():
    assert digest_bytes(1) == b"\1" + bytes(15)
    assert digest_bytes(-1) == b"\xff" * 16
    assert digest_from_bytes(digest_bytes(MODULUS - 5)) == MODULUS - 5
    with pytest.raises(ValueError, match="16 bytes"):
        digest_from_bytes(b"\0" * 15)


@pytest.mark.parametrize(
    "units", [np.zeros((2, 4), np.uint16), np.zeros(8, np.uint32), np.zeros(8, np.int16), np.zeros(16, np.uint16)[::2]]
)
def test_digest_refuses_arrays_of_other_units(units):
    with pytest.raises(ValueError, match="flat, contiguous"):
        digest_units(spec(), units)
