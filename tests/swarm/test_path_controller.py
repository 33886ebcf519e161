"""A flow that loses much keeps to its part of the plan; one that loses little goes its own way."""

from __future__ import annotations

import math

import pytest

from p2psync.swarm.control.path_controller import (
    ALONE,
    FIRST,
    FREE,
    LEAST,
    MANY,
    PATIENCE,
    QUEUE,
    PathController,
    haste,
)

PART = 2e6


def look(pace: PathController, lost: float, *, rate: float = PART) -> None:
    """One look after half a second in which `rate` came through."""
    sent = int(rate / 2 / (1 - lost))
    pace.seen(0.5, sent, int(lost * sent), int(rate / 2))


def test_a_path_with_few_losses_is_not_paced() -> None:
    pace = PathController(PART)
    for _ in range(20):
        look(pace, MANY)
    assert pace.rate == 0.0


def test_a_path_with_many_losses_is_paced_at_its_part_or_its_goodput() -> None:
    pace = PathController(PART)
    look(pace, 0.2, rate=PART / 2)
    assert pace.rate == FIRST * PART
    other = PathController(PART)
    look(other, 0.2, rate=3 * PART)
    assert abs(other.rate - 3 * FIRST * PART) < 10, "the plan knew less of this path than it gives"


def test_losses_among_a_few_bytes_are_chance() -> None:
    pace = PathController(PART)
    pace.seen(0.5, LEAST // 4, LEAST // 32, LEAST // 8)
    assert pace.rate == 0.0
    pace.seen(0.5, LEAST, 0, LEAST)
    assert pace.rate == 0.0, "of all that was sent it is little"
    pace.seen(0.5, LEAST // 4, LEAST // 32, LEAST // 8)
    assert pace.rate == 0.0, "what was before the look is forgotten"


def test_what_was_seen_before_a_pause_does_not_count_with_what_comes_after_it() -> None:
    pace = PathController(PART)
    pace.seen(0.5, LEAST - 1, LEAST // 2, LEAST // 2)
    pace.pause()
    pace.seen(0.5, LEAST - 1, 0, LEAST - 1)
    pace.seen(0.5, LEAST - 1, 0, LEAST - 1)
    assert pace.rate == 0.0


def test_one_who_goes_on_losing_comes_down_to_his_part_and_no_further() -> None:
    pace = PathController(PART)
    look(pace, 0.2, rate=2 * PART)
    rates = []
    for _ in range(30):
        look(pace, 0.05)
        rates.append(pace.rate)
        look(pace, 0.0)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > FIRST * PART
    assert rates[-1] == pytest.approx(FIRST * PART, rel=0.01)


@pytest.mark.parametrize("lost", [0.0, 0.03])
def test_one_who_is_held_and_does_not_lose_much_may_send_more_until_he_is_free(lost: float) -> None:
    pace = PathController(PART)
    look(pace, 0.2)
    held, looks = pace.rate, 0
    while pace.rate:
        before = pace.rate
        look(pace, lost, rate=pace.rate)
        looks += 1
        assert pace.rate == 0.0 or before < pace.rate <= FREE * held
    assert 20 < looks < 100, "not at once: that would lose much again"


def test_one_who_was_cut_is_free_a_quarter_above_what_he_was_cut_to() -> None:
    pace = PathController(PART)
    look(pace, 0.2, rate=4 * PART)
    for _ in range(12):
        look(pace, 0.05)
        look(pace, 0.0)
    cut, highest = pace.rate, 0.0
    while pace.rate:
        highest = pace.rate
        look(pace, 0.0)
    assert highest <= FREE * cut


def test_where_sending_less_does_not_help_a_flow_is_let_alone_for_a_while() -> None:
    pace = PathController(PART)
    for _ in range(PATIENCE):
        look(pace, 0.1)
        assert pace.rate > 0
    look(pace, 0.1)
    assert pace.rate == 0.0
    for _ in range(ALONE):
        look(pace, 0.1)
        assert pace.rate == 0.0
    look(pace, 0.1)
    assert pace.rate > 0, "links change"


def test_a_plan_that_gives_more_raises_what_one_is_held_to_and_one_that_gives_less_waits_for_losses() -> None:
    pace = PathController(PART)
    look(pace, 0.2)
    held = pace.rate
    pace.planned(PART)
    assert pace.rate == held
    pace.planned(PART / 2)
    assert pace.rate == held
    look(pace, 0.2)
    assert pace.rate < held
    lower = pace.rate
    pace.planned(PART)
    assert pace.rate == 2 * lower


def test_a_part_of_nothing_can_be_followed_by_one_of_something() -> None:
    pace = PathController(0.0)
    look(pace, 0.2)
    pace.planned(PART)
    assert pace.rate == FIRST * PART


def test_a_flow_begins_with_its_part_and_is_let_go_within_seconds_where_little_is_lost() -> None:
    pace = PathController(PART)
    pace.begin()
    assert pace.rate == FIRST * PART
    looks = 0
    while pace.rate:
        look(pace, 0.0)
        looks += 1
    assert looks <= 10
    look(pace, 0.2)
    assert pace.rate, "and may be held again"


def test_a_flow_that_loses_much_from_the_beginning_is_held_as_any_other() -> None:
    pace = PathController(PART)
    pace.begin()
    look(pace, 0.2)
    for _ in range(10):
        look(pace, 0.0)
    assert FIRST * PART <= pace.rate < 1.05 * PART


def test_one_that_is_held_or_let_alone_is_not_begun_again() -> None:
    held, alone = PathController(PART), PathController(PART)
    look(held, 0.2, rate=3 * PART)
    before = held.rate
    for _ in range(PATIENCE + 2):
        look(alone, 0.2)
    for pace in (held, alone):
        pace.begin()
    assert (held.rate, alone.rate) == (before, 0.0)


def test_what_fits_into_any_queue_goes_out_at_once_and_what_takes_long_at_the_rate_planned() -> None:
    assert haste(QUEUE) == math.inf
    assert haste(1000.0) < 1.001
    for seconds in (0.03, 0.1, 1.0):
        assert seconds * (1 - 1 / haste(seconds)) == pytest.approx(QUEUE)


def test_a_flow_of_a_small_transfer_begins_with_more_than_its_part_or_unlimited() -> None:
    pace = PathController(PART)
    pace.begin(2.0)
    assert pace.rate == 2 * FIRST * PART
    pace.begin(math.inf)
    assert pace.rate == 0.0


def test_a_large_transfer_after_a_small_one_begins_with_its_part() -> None:
    pace = PathController(PART)
    pace.begin(2.0)
    pace.begin()
    assert pace.rate == FIRST * PART
