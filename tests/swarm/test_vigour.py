"""A path that brings far less than the plan has for it begins anew; where that does not help it is let alone."""

from __future__ import annotations

import pytest

from p2psync.swarm.control.vigour import ENOUGH, GROWING, GROWS, HELPED, LACK, LOOK, LOSES, TRIES, Vigour

PLANNED = 2e6


def look(vigour: Vigour, share: float, lost: float = 0.0) -> bool:
    """One look in which a share of what is planned came through."""
    came = share * PLANNED * LOOK
    sent = came / (1 - lost)
    return vigour.seen(LOOK, int(sent), int(lost * sent), int(came))


def looks(vigour: Vigour, seconds: float, share: float, lost: float = 0.0) -> int:
    """How often it began anew."""
    return sum(look(vigour, share, lost) for _ in range(round(seconds / LOOK)))


def test_a_path_that_brings_far_less_than_planned_begins_anew_at_once() -> None:
    vigour = Vigour(PLANNED)
    assert [look(vigour, LACK / 2) for _ in range(ENOUGH)] == [False] * (ENOUGH - 1) + [True]


@pytest.mark.parametrize(("share", "lost"), [(1.0, 0.0), (LACK + 0.01, 0.0), (LACK / 2, LOSES + 0.01)])
def test_a_path_that_brings_enough_or_loses_more_does_not_restart(share: float, lost: float) -> None:
    assert looks(Vigour(PLANNED), 60, share, lost) == 0


def test_a_path_that_grows_by_itself_does_not_restart() -> None:
    vigour = Vigour(PLANNED)
    assert not any(look(vigour, 0.02 * GROWING**i) for i in range(9))
    assert looks(vigour, ENOUGH * LOOK, 0.5) == 1, "until it does not any more"


def test_a_path_is_expected_to_bring_no_more_than_its_pacing_rate() -> None:
    vigour = Vigour(PLANNED)
    vigour.held(0.4 * PLANNED)
    assert looks(vigour, 5, 0.3) == 0
    vigour.held(0.9 * PLANNED)
    assert looks(vigour, 1, 0.3) == 1


def test_a_single_low_reading_restarts_no_path() -> None:
    vigour = Vigour(PLANNED)
    for _ in range(20):
        assert not look(vigour, 0.1)
        assert not look(vigour, 1.0)


def test_a_restarted_path_has_time_to_grow_before_the_next_restart() -> None:
    vigour = Vigour(PLANNED)
    assert looks(vigour, ENOUGH * LOOK, 0.1) == 1
    assert looks(vigour, GROWS - LOOK, 0.2) == 0
    assert looks(vigour, 2 * LOOK, 0.2) == 1, "it grew, and not enough"


def test_a_path_that_restarts_in_vain_is_left_alone_until_the_plan_changes() -> None:
    vigour = Vigour(PLANNED)
    assert looks(vigour, 100, 0.3) == TRIES
    vigour.planned(PLANNED)
    assert looks(vigour, 100, 0.3) == 0
    vigour.planned(PLANNED * 1.1)
    assert looks(vigour, 100, 0.3) > 0


def test_a_path_whose_restart_helped_may_restart_again() -> None:
    vigour, begun = Vigour(PLANNED), 0
    for share in (0.05, 0.05 * HELPED**2, 0.05 * HELPED**4, 0.05 * HELPED**6):
        begun += looks(vigour, GROWS + LOOK, share)
    assert begun > TRIES + 1


def test_readings_before_a_pause_do_not_restart_a_path() -> None:
    vigour = Vigour(PLANNED)
    for _ in range(20):
        assert not vigour.seen(LOOK * 0.9, 1000, 0, 1000)
        vigour.pause()
