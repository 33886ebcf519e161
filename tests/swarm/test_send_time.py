"""The time that a connection takes to send more bytes, by its window, its pacing limit and its queue."""

from __future__ import annotations

import pytest

from p2psync.swarm.control.config import ASSUMED_RATE, MAX_NOTSENT_BYTES, MIN_NOTSENT_BYTES, WINDOW_HALF_LIFE
from p2psync.swarm.control.send_time import SendTime, notsent_for


def test_queued_and_new_bytes_leave_at_the_rate_of_the_window() -> None:
    assert SendTime().seconds(1000, 500, 3000.0, 0.0, 0.0) == pytest.approx(0.5)


def test_a_pacing_limit_below_the_rate_of_the_window_counts() -> None:
    estimate = SendTime()
    assert estimate.seconds(1000, 0, 3000.0, 500.0, 0.0) == pytest.approx(2.0)
    assert estimate.rate == 500.0


def test_a_window_that_closes_for_a_moment_is_believed_to_open_again() -> None:
    estimate = SendTime()
    estimate.seconds(1000, 0, 4000.0, 0.0, 0.0)
    assert estimate.seconds(1000, 0, 10.0, 0.0, WINDOW_HALF_LIFE) == pytest.approx(0.5)
    assert estimate.rate == 10.0


def test_a_window_that_stays_closed_is_believed_soon() -> None:
    estimate = SendTime()
    estimate.seconds(1000, 0, 4000.0, 0.0, 0.0)
    assert estimate.seconds(1000, 0, 10.0, 0.0, 3 * WINDOW_HALF_LIFE) == pytest.approx(2.0)
    assert estimate.seconds(1000, 0, 1000.0, 0.0, 9 * WINDOW_HALF_LIFE) == pytest.approx(1.0)


def test_an_unknown_rate_is_assumed() -> None:
    assert SendTime().seconds(int(ASSUMED_RATE), 0, 0.0, 0.0, 0.0) == pytest.approx(1.0)


def test_the_bytes_that_may_wait_in_the_kernel_are_a_power_of_two_within_bounds() -> None:
    assert notsent_for(0.0) == MIN_NOTSENT_BYTES
    assert notsent_for(1e9) == MAX_NOTSENT_BYTES
    assert notsent_for(1e6) == 64 << 10
