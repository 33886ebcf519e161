"""What a node hands out in all: a burst, and then as much as the rate brings."""

from __future__ import annotations

import pytest

from p2psync.swarm.exchange.token_bucket import TokenBucket

RATE = 1e6
BURST = 128 << 10


def bucket(rate: float = RATE) -> TokenBucket:
    made = TokenBucket(BURST, 0.01)
    made.rate = rate
    return made


def test_token_bucket_without_a_rate_limits_nothing() -> None:
    tokens = bucket(0.0)
    for _ in range(100):
        assert tokens.allows(0.0)
        tokens.take(BURST, 0.0)
    assert not tokens.limited


def test_token_bucket_gives_a_burst_and_then_its_rate() -> None:
    tokens = bucket()
    now, sent, size = 0.0, 0, 50_000
    while now < 10:
        if tokens.allows(now):
            tokens.take(size, now)
            sent += size
        else:
            now = tokens.wakes_at(now)
    assert sent == pytest.approx(10 * RATE + BURST, abs=2 * size)
    assert tokens.limited


def test_token_bucket_saves_no_idle_time_beyond_a_burst() -> None:
    tokens = bucket()
    burst = 0
    while tokens.allows(1000.0):
        tokens.take(10_000, 1000.0)
        burst += 10_000
    assert burst <= BURST + 2 * 10_000


def test_token_bucket_whose_rate_is_removed_limits_nothing() -> None:
    tokens = bucket()
    tokens.take(10 * BURST, 0.0)
    assert not tokens.allows(0.0)
    tokens.rate = 0.0
    assert tokens.allows(0.0)


def test_token_bucket_wakes_waiters_for_half_a_burst() -> None:
    tokens = bucket()
    now, size, wakes, sent = 0.0, BURST // 4, 0, 0
    while sent < 100:
        if tokens.allows(now):
            tokens.take(size, now)
            sent += 1
        else:
            now, wakes = tokens.wakes_at(now), wakes + 1
    assert wakes <= 100 / 2
