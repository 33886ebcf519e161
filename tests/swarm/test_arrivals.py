"""When a chunk that was put into a tree should be with a receiver."""

from __future__ import annotations

import numpy as np
import pytest

from p2psync.swarm.arrivals import Arrivals

ALL = np.arange(8)


def flags(*chunks: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    found = np.zeros(8, np.bool_)
    found[list(chunks)] = True
    return found


def begun(trees: int = 2) -> Arrivals:
    made = Arrivals(8)
    made.planned(trees)
    return made


def test_a_chunk_is_expected_as_long_after_it_was_put_in_as_others_of_its_tree_took_to_that_receiver() -> None:
    arrivals = begun()
    for index in range(8):
        arrivals.put(index, index % 2, 1.0)
    arrivals.seen({"a": flags(0), "b": flags()}, 1.2)
    arrivals.seen({"a": flags(0, 1), "b": flags(0)}, 1.5)
    assert arrivals.expected("a", np.array([2, 3])) == pytest.approx([1.2, 1.5])
    assert arrivals.expected("b", np.array([2])) == pytest.approx([1.5])


def test_arrival_estimate_weighs_newer_samples_more() -> None:
    arrivals = begun(1)
    for index in range(8):
        arrivals.put(index, 0, float(index))
    for index in range(7):
        arrivals.seen({"a": flags(*range(index + 1))}, index + (0.2 if index < 2 else 1.0))
    took = arrivals.expected("a", np.array([7]))[0] - 7
    assert 0.7 < took < 1.0


def test_arrival_estimate_is_unknown_before_a_sample_or_a_send() -> None:
    arrivals = begun()
    arrivals.put(0, 0, 1.0)
    arrivals.put(1, 1, 1.0)
    arrivals.seen({"a": flags(0)}, 1.2)
    assert (arrivals.expected("a", np.array([1, 2])) == -np.inf).all()
    assert (arrivals.expected("b", ALL) == -np.inf).all()


def test_arrival_estimate_of_changed_trees_ignores_chunks_sent_down_the_old_ones() -> None:
    arrivals = begun()
    arrivals.put(0, 1, 1.0)
    arrivals.put(1, 1, 1.0)
    arrivals.seen({"a": flags(0)}, 1.2)
    arrivals.planned(1)
    arrivals.seen({"a": flags(0, 1)}, 9.0)
    arrivals.put(2, 0, 9.0)
    assert (arrivals.expected("a", ALL) == -np.inf).all()


def test_a_chunk_that_is_put_in_again_counts_from_then() -> None:
    arrivals = begun(1)
    arrivals.put(0, 0, 1.0)
    arrivals.put(0, 0, 5.0)
    arrivals.put(1, 0, 6.0)
    arrivals.seen({"a": flags(0)}, 5.5)
    assert arrivals.expected("a", np.array([1])) == pytest.approx([6.5])
