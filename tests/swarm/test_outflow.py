"""What a node hands out in all: a burst, and then as much as the rate brings."""

from __future__ import annotations

import pytest

from p2psync.swarm.outflow import BURST, Outflow

RATE = 1e6


def test_token_bucket_without_a_rate_holds_nothing() -> None:
    outflow = Outflow()
    for _ in range(100):
        assert outflow.may(0.0)
        outflow.took(BURST, 0.0)
    assert not outflow.held


def test_token_bucket_gives_a_burst_and_then_its_rate() -> None:
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


def test_token_bucket_saves_no_idle_time_beyond_a_burst() -> None:
    outflow = Outflow()
    outflow.limit(RATE)
    burst = 0
    while outflow.may(1000.0):
        outflow.took(10_000, 1000.0)
        burst += 10_000
    assert burst <= BURST + 2 * 10_000


def test_token_bucket_whose_rate_is_removed_holds_nothing() -> None:
    outflow = Outflow()
    outflow.limit(RATE)
    outflow.took(10 * BURST, 0.0)
    assert not outflow.may(0.0)
    outflow.limit(0.0)
    assert outflow.may(0.0)


def test_token_bucket_wakes_waiters_for_half_a_burst() -> None:
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
