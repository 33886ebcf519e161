"""Bounds equal the entropies of the drawn deltas: never below the possible size, nor far above it."""

import numpy as np
import pytest

from p2psync.bench import bounds
from p2psync.bench.bounds import entropy_bits, measure_bounds
from p2psync.bench.deltas import ModelHistory

UNITS = 1 << 20


def binary(p):
    return -p * np.log2(p) - (1 - p) * np.log2(1 - p)


def drawn(rng, chance, units=UNITS):
    """Units of exponents 120 and 124, half each; a unit of the first changes with `chance[0]`, by ±1 evenly."""
    exponent = rng.choice(np.array([120, 124], np.uint16), units)
    old = (exponent << 7) | rng.integers(8, 120, units, np.uint16)
    changes = rng.random(units) < np.where(exponent == 120, *chance)
    steps = np.where(rng.random(units) < 0.5, 1, -1).astype(np.int16).view(np.uint16)
    return old, np.where(changes, old + steps, old), changes, steps


def test_bounds_are_the_entropies_of_the_law_that_was_drawn_from():
    old, new, _, _ = drawn(np.random.default_rng(0), (0.04, 0.005))
    found = measure_bounds([(old[:1000], new[:1000]), (old[1000:], new[1000:])])
    mean = 0.0225
    assert found.units == UNITS and found.history is None
    assert found.independent.positions == pytest.approx(binary(mean) / mean, rel=0.02)
    assert found.exponent.positions == pytest.approx((binary(0.04) + binary(0.005)) / 2 / mean, rel=0.02)
    assert found.independent.steps == pytest.approx(1.0, abs=0.002)
    assert found.exponent.steps == pytest.approx(1.0, abs=0.002)


def test_history_lowers_bounds_only_if_it_is_informative():
    rng = np.random.default_rng(1)
    old, new, changes, steps = drawn(rng, (0.04, 0.04))
    telling, silent = ModelHistory.empty(UNITS), ModelHistory.empty(UNITS)
    for history, where, ways in ((telling, changes, steps), (silent, rng.permutation(changes), rng.permutation(steps))):
        positions = np.flatnonzero(where).astype(np.uint32)
        history.add(3, positions, ways[positions])
    plain = measure_bounds([(old, new)])
    known = measure_bounds([(old, new)], telling, 4).history
    assert known is not None and known.bits < 0.01  # what changes, and which way, is known in full
    unknown = measure_bounds([(old, new)], silent, 4).history
    assert unknown is not None and unknown.bits == pytest.approx(plain.exponent.bits, rel=0.01)


def test_an_age_counts_from_the_step_before():
    classes = bounds._age_classes(12)
    assert [int(classes[last]) for last in (11, 10, 9, 8, 7, 4, 3, 1, 0)] == [0, 1, 2, 2, 3, 3, 4, 4, 5]


def test_noise_in_many_contexts_does_not_lower_the_bound():
    """64 exponents with a hundred changed units each, all of one law: no context tells anything."""
    rng = np.random.default_rng(2)
    units = 64 * 5000
    old = (np.repeat(np.arange(90, 154, dtype=np.uint16), 5000) << 7) | 64
    steps = rng.choice(np.array([-3, -2, -1, 1, 2, 3], np.int16), units).view(np.uint16)
    new = np.where(rng.random(units) < 0.02, old + steps, old)
    found = measure_bounds([(old, new)])
    truth = binary(0.02) / 0.02 + np.log2(6)
    assert found.exponent.bits == pytest.approx(truth, rel=0.01)
    assert found.exponent.contexts < 64


def test_rare_long_steps_cost_their_own_bits():
    rng = np.random.default_rng(3)
    old = np.full(UNITS, 0x3F80, np.uint16)
    new = old.copy()
    where = rng.choice(UNITS, 1 << 15, replace=False)
    new[where] += rng.integers(1 << 10, 1 << 11, where.size, np.uint16)
    assert measure_bounds([(old, new)]).exponent.steps == pytest.approx(10, abs=0.01)


def test_an_entropy_is_not_too_low_for_few_samples():
    rng = np.random.default_rng(4)
    found = [entropy_bits(np.bincount(rng.integers(0, 16, 100))) / 100 for _ in range(200)]
    assert np.mean(found) == pytest.approx(4.0, abs=0.03)
