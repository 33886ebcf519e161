"""A path that brings far less than the plan has for it begins anew; where that does not help it is let alone."""

from __future__ import annotations

import pytest

from p2psync.swarm.control.slow_path import ENOUGH, GROWING, GROWS, HELPED, LACK, LOOK, LOSES, TRIES, SlowPathDetector

PLANNED = 2e6


def look(slow_path: SlowPathDetector, share: float, lost: float = 0.0) -> bool:
    """One look in which a share of what is planned came through."""
    came = share * PLANNED * LOOK
    sent = came / (1 - lost)
    return slow_path.seen(LOOK, int(sent), int(lost * sent), int(came))


def looks(slow_path: SlowPathDetector, seconds: float, share: float, lost: float = 0.0) -> int:
    """How often it began anew."""
    return sum(look(slow_path, share, lost) for _ in range(round(seconds / LOOK)))


def test_a_path_that_brings_far_less_than_planned_is_restarted_at_once() -> None:
    slow_path = SlowPathDetector(PLANNED)
    assert [look(slow_path, LACK / 2) for _ in range(ENOUGH)] == [False] * (ENOUGH - 1) + [True]


@pytest.mark.parametrize(("share", "lost"), [(1.0, 0.0), (LACK + 0.01, 0.0), (LACK / 2, LOSES + 0.01)])
def test_a_path_that_brings_enough_or_loses_more_does_not_restart(share: float, lost: float) -> None:
    assert looks(SlowPathDetector(PLANNED), 60, share, lost) == 0


def test_a_path_that_grows_by_itself_does_not_restart() -> None:
    slow_path = SlowPathDetector(PLANNED)
    assert not any(look(slow_path, 0.02 * GROWING**i) for i in range(9))
    assert looks(slow_path, ENOUGH * LOOK, 0.5) == 1, "until it does not any more"


def test_a_path_is_expected_to_bring_no_more_than_its_pacing_rate() -> None:
    slow_path = SlowPathDetector(PLANNED)
    slow_path.held(0.4 * PLANNED)
    assert looks(slow_path, 5, 0.3) == 0
    slow_path.held(0.9 * PLANNED)
    assert looks(slow_path, 1, 0.3) == 1


def test_a_single_low_reading_restarts_no_path() -> None:
    slow_path = SlowPathDetector(PLANNED)
    for _ in range(20):
        assert not look(slow_path, 0.1)
        assert not look(slow_path, 1.0)


def test_a_restarted_path_has_time_to_grow_before_the_next_restart() -> None:
    slow_path = SlowPathDetector(PLANNED)
    assert looks(slow_path, ENOUGH * LOOK, 0.1) == 1
    assert looks(slow_path, GROWS - LOOK, 0.2) == 0
    assert looks(slow_path, 2 * LOOK, 0.2) == 1, "it grew, and not enough"


def test_a_path_that_restarts_in_vain_is_left_alone_until_the_plan_changes() -> None:
    slow_path = SlowPathDetector(PLANNED)
    assert looks(slow_path, 100, 0.3) == TRIES
    slow_path.planned(PLANNED)
    assert looks(slow_path, 100, 0.3) == 0
    slow_path.planned(PLANNED * 1.1)
    assert looks(slow_path, 100, 0.3) > 0


def test_a_path_whose_restart_helped_may_restart_again() -> None:
    slow_path, begun = SlowPathDetector(PLANNED), 0
    for share in (0.05, 0.05 * HELPED**2, 0.05 * HELPED**4, 0.05 * HELPED**6):
        begun += looks(slow_path, GROWS + LOOK, share)
    assert begun > TRIES + 1


def test_readings_before_a_pause_do_not_restart_a_path() -> None:
    slow_path = SlowPathDetector(PLANNED)
    for _ in range(20):
        assert not slow_path.seen(LOOK * 0.9, 1000, 0, 1000)
        slow_path.pause()
