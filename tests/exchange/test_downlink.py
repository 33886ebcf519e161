"""The rate that a node reports of its downlink."""

from __future__ import annotations

from p2psync.swarm.exchange.downlink import Downlink


def test_the_rate_told_is_of_the_last_busy_time_that_was_long_enough() -> None:
    link = Downlink()
    link.begin(0.0)
    link.arrived(500_000, 0.1)
    assert link.rate == 0.0, "too short to tell"
    link.begin(10.0)
    for tenth in range(1, 21):
        link.arrived(100_000, 10.0 + tenth / 10)
    assert link.rate == 1_000_000
    link.begin(50.0)
    link.arrived(10_000, 50.01)
    assert link.rate == 1_000_000, "a short one tells of round trips"


def test_a_window_of_one_chunk_does_not_begin_a_busy_time_with_each() -> None:
    link = Downlink()
    for second in range(1, 5):
        link.begin(second - 1.0)
        link.arrived(300_000, float(second))
    assert link.rate == 300_000
    link.begin(100.0)
    link.arrived(1, 100.5)
    assert link.nbytes == 1, "after a lull all begins anew"
