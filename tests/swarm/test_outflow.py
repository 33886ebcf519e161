"""What a node hands out in all: a burst, and then as much as the rate brings."""

from __future__ import annotations

import pytest

from p2psync.swarm.outflow import BURST, Outflow

RATE = 1e6


def test_without_a_rate_everything_may_leave_and_nothing_is_held() -> None:
    outflow = Outflow()
    for _ in range(100):
        assert outflow.may(0.0)
        outflow.took(BURST, 0.0)
    assert not outflow.held


def test_after_a_burst_as_much_leaves_as_the_rate_brings() -> None:
    outflow = Outflow()
    outflow.limit(RATE)
    now, sent, size = 0.0, 0, 50_000
    while now < 10:
        if outflow.may(now):
            outflow.took(size, now)
            sent += size
        else:
            now = outflow.wake(now)
    assert sent == pytest.approx(10 * RATE + BURST, abs=2 * size)
    assert outflow.held


def test_time_in_which_nothing_was_sent_is_not_saved_up() -> None:
    outflow = Outflow()
    outflow.limit(RATE)
    burst = 0
    while outflow.may(1000.0):
        outflow.took(10_000, 1000.0)
        burst += 10_000
    assert burst <= BURST + 2 * 10_000


def test_a_rate_that_is_taken_away_holds_nothing_any_more() -> None:
    outflow = Outflow()
    outflow.limit(RATE)
    outflow.took(10 * BURST, 0.0)
    assert not outflow.may(0.0)
    outflow.limit(0.0)
    assert outflow.may(0.0)


def test_who_waits_is_woken_for_half_a_burst_and_not_for_each_chunk() -> None:
    outflow = Outflow()
    outflow.limit(RATE)
    now, size, wakes, sent = 0.0, BURST // 4, 0, 0
    while sent < 100:
        if outflow.may(now):
            outflow.took(size, now)
            sent += 1
        else:
            now, wakes = outflow.wake(now), wakes + 1
    assert wakes <= 100 / 2
