"""A flow that loses much keeps to its part of the plan; one that loses little goes its own way."""

from __future__ import annotations

from p2psync.swarm.pacing import FEW, FIRST, FREE, LEAST, MANY, Pace

PART = 2e6


def look(pace: Pace, lost: float, *, rate: float = PART, pressed: bool = True) -> None:
    """One look after half a second in which `rate` came through."""
    sent = int(rate / 2 / (1 - lost))
    pace.seen(0.5, sent, int(lost * sent), int(rate / 2), pressed)


def test_without_losses_nothing_is_held() -> None:
    pace = Pace(PART)
    for _ in range(20):
        look(pace, FEW)
    assert pace.rate == 0.0


def test_who_loses_much_is_held_to_his_part_or_to_what_came_through() -> None:
    pace = Pace(PART)
    look(pace, 0.2, rate=PART / 2)
    assert pace.rate == FIRST * PART
    other = Pace(PART)
    look(other, 0.2, rate=3 * PART)
    assert abs(other.rate - 3 * FIRST * PART) < 10, "the plan knew less of this path than it gives"


def test_losses_among_a_few_bytes_are_chance() -> None:
    pace = Pace(PART)
    pace.seen(0.5, LEAST // 4, LEAST // 32, LEAST // 8, pressed=True)
    assert pace.rate == 0.0
    pace.seen(0.5, LEAST, 0, LEAST, pressed=True)
    assert pace.rate == 0.0, "of all that was sent it is little"
    pace.seen(0.5, LEAST // 4, LEAST // 32, LEAST // 8, pressed=True)
    assert pace.rate == 0.0, "what was before the look is forgotten"


def test_one_who_goes_on_losing_comes_down_to_his_part_and_no_further() -> None:
    pace = Pace(PART)
    look(pace, 0.2, rate=2 * PART)
    rates = []
    for _ in range(30):
        look(pace, 0.2)
        rates.append(pace.rate)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > FIRST * PART
    assert rates[-1] == FIRST * PART


def test_one_who_is_held_and_loses_little_may_send_more_until_he_is_free() -> None:
    pace = Pace(PART)
    look(pace, 0.2)
    held, looks = pace.rate, 0
    while pace.rate:
        before = pace.rate
        look(pace, 0.0, rate=pace.rate)
        looks += 1
        assert pace.rate == 0.0 or before < pace.rate <= FREE * held
    assert looks > 20, "not at once: that would lose much again"


def test_losses_between_few_and_many_change_nothing_nor_does_one_who_had_nothing_to_send() -> None:
    pace = Pace(PART)
    look(pace, 0.2)
    held = pace.rate
    look(pace, (FEW + MANY) / 2)
    look(pace, 0.0, pressed=False)
    assert pace.rate == held


def test_another_plan_changes_what_one_is_held_to_in_proportion() -> None:
    pace = Pace(PART)
    look(pace, 0.2)
    held = pace.rate
    pace.planned(PART)
    assert pace.rate == held
    pace.planned(PART / 2)
    assert pace.rate == held / 2
