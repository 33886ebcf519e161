"""What is believed of a connection whose window is small for a moment."""

from __future__ import annotations

import pytest

from p2psync.swarm.control.decaying_max import HALF, DecayingMax


def test_a_window_that_closes_for_a_fifth_of_a_second_hardly_changes_the_rate() -> None:
    largest = DecayingMax()
    assert largest.seen(30e6, 10.0) == 30e6
    assert largest.seen(0.1e6, 10.01) > 0.9 * 30e6
    assert largest.seen(0.1e6, 10.2) > 0.7 * 30e6
    assert largest.seen(30e6, 10.21) == 30e6


def test_a_window_that_stays_closed_is_believed_soon() -> None:
    largest = DecayingMax()
    largest.seen(30e6, 10.0)
    assert largest.seen(1e6, 10.0 + HALF) == pytest.approx(15e6)
    assert largest.seen(1e6, 10.0 + 3 * HALF) == pytest.approx(30e6 / 8)
    assert largest.seen(1e6, 10.0 + 6 * HALF) == 1e6


def test_a_wider_window_is_believed_at_once() -> None:
    largest = DecayingMax()
    largest.seen(1e6, 10.0)
    assert largest.seen(5e6, 10.001) == 5e6
