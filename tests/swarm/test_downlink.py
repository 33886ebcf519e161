"""What a node believes of its own downlink, by which it judges how late a peer really is."""

from __future__ import annotations

import pytest

from p2psync.swarm.downlink import LONGEST, Downlink


def test_downlink_estimate_is_unknown_before_a_busy_time() -> None:
    downlink = Downlink()
    downlink.begin(100.0)
    assert downlink.queue_seconds(10_000, 105.0) == 0
    downlink.begin(200.0)
    downlink.arrived(1000, 200.5)
    assert downlink.queue_seconds(10_000, 200.5) == 0


def test_downlink_estimate_divides_what_is_owed_by_the_rate_so_far() -> None:
    downlink = Downlink()
    downlink.begin(0.0)
    downlink.arrived(500, 1.0)
    downlink.arrived(500, 2.0)
    assert downlink.queue_seconds(5000, 2.0) == pytest.approx(10.0)
    assert downlink.queue_seconds(10**9, 2.0) == LONGEST


def test_downlink_estimate_ignores_idle_time() -> None:
    downlink = Downlink()
    downlink.begin(0.0)
    downlink.arrived(1000, 2.0)
    downlink.begin(1000.0)
    assert downlink.queue_seconds(5000, 1000.0) == 0


def test_downlink_estimate_follows_a_changed_rate() -> None:
    downlink = Downlink()
    downlink.begin(0.0)
    for second in range(1, 11):
        downlink.arrived(10_000, float(second))
    for second in range(11, 101):
        downlink.arrived(100, float(second))
    assert downlink.queue_seconds(1000, 100.0) == pytest.approx(10.0, rel=0.3)


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
