"""A path that brings far less than the plan has for it begins anew; where that does not help it is let alone."""

from __future__ import annotations

import pytest

from p2psync.swarm.vigour import ENOUGH, GROWING, GROWS, HELPED, LACK, LOOK, LOSES, TRIES, Vigour

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
def test_one_that_brings_about_enough_or_loses_more_does_not(share: float, lost: float) -> None:
    assert looks(Vigour(PLANNED), 60, share, lost) == 0


def test_one_that_is_growing_by_itself_is_let_grow() -> None:
    vigour = Vigour(PLANNED)
    assert not any(look(vigour, 0.02 * GROWING**i) for i in range(9))
    assert looks(vigour, ENOUGH * LOOK, 0.5) == 1, "until it does not any more"


def test_what_it_is_held_to_is_all_that_is_expected_of_it() -> None:
    vigour = Vigour(PLANNED)
    vigour.held(0.4 * PLANNED)
    assert looks(vigour, 5, 0.3) == 0
    vigour.held(0.9 * PLANNED)
    assert looks(vigour, 1, 0.3) == 1


def test_a_single_lacking_look_is_chance() -> None:
    vigour = Vigour(PLANNED)
    for _ in range(20):
        assert not look(vigour, 0.1)
        assert not look(vigour, 1.0)


def test_it_has_time_to_grow_before_it_begins_anew_once_more() -> None:
    vigour = Vigour(PLANNED)
    assert looks(vigour, ENOUGH * LOOK, 0.1) == 1
    assert looks(vigour, GROWS - LOOK, 0.2) == 0
    assert looks(vigour, 2 * LOOK, 0.2) == 1, "it grew, and not enough"


def test_where_it_does_not_help_the_path_is_let_alone_until_the_plan_has_something_else_for_it() -> None:
    vigour = Vigour(PLANNED)
    assert looks(vigour, 100, 0.3) == TRIES
    vigour.planned(PLANNED)
    assert looks(vigour, 100, 0.3) == 0
    vigour.planned(PLANNED * 1.1)
    assert looks(vigour, 100, 0.3) > 0


def test_one_that_was_helped_may_be_helped_again() -> None:
    vigour, begun = Vigour(PLANNED), 0
    for share in (0.05, 0.05 * HELPED**2, 0.05 * HELPED**4, 0.05 * HELPED**6):
        begun += looks(vigour, GROWS + LOOK, share)
    assert begun > TRIES + 1


def test_what_was_seen_before_a_pause_does_not_count() -> None:
    vigour = Vigour(PLANNED)
    for _ in range(20):
        assert not vigour.seen(LOOK * 0.9, 1000, 0, 1000)
        vigour.pause()
