"""What is on its way in the trees: windows, receivers that lag, plans that change."""

from __future__ import annotations

import numpy as np

from p2psync.swarm.flight import FLIGHT_MOST, LAGGING, LOOK_EVERY, MANY, NEARLY_MOST, WINDOW_SECONDS, Flight, windows
from p2psync.swarm.transfer import Bits


def holding(*chunks: int) -> Bits:
    flags = np.zeros(100, np.bool_)
    flags[list(chunks)] = True
    return flags


def flight(*sizes: int) -> Flight:
    found = Flight()
    found.planned(sizes)
    return found


def test_a_tree_is_full_with_as_many_chunks_as_its_window_and_has_room_once_all_hold_one() -> None:
    f = flight(2, 2)
    f.add(0, 0, 0.0)
    f.add(1, 0, 0.0)
    assert f.full(0)
    assert not f.full(1)
    f.look([holding(0, 1), holding(1)], 0.1)
    assert not f.full(0)
    f.add(2, 0, 0.2)
    assert f.full(0)


def test_a_look_too_soon_after_the_last_changes_nothing() -> None:
    f = flight(1)
    f.add(0, 0, 0.0)
    f.look([holding()], 0.1)
    f.look([holding(0)], 0.1 + LOOK_EVERY / 2)
    assert f.full(0)
    f.look([holding(0)], 0.1 + 2 * LOOK_EVERY)
    assert not f.full(0)


def test_a_chunk_leaves_its_window_in_the_end_whoever_lacks_it() -> None:
    f = flight(1)
    f.add(0, 0, 0.0)
    f.look([holding(), holding(0)], FLIGHT_MOST - 0.1)
    assert f.full(0)
    f.look([holding(), holding(0)], FLIGHT_MOST + 0.1)
    assert not f.full(0)


def test_one_who_lags_by_far_is_not_waited_for() -> None:
    f = flight(4)
    now = 0.0
    for index in range(int(4 * LAGGING) + 4):
        now += FLIGHT_MOST + 1 if f.full(0) else 0.1
        f.look([holding(*range(index)), holding()], now)
        f.add(index, 0, now)
    f.look([holding(*range(index + 1)), holding()], now + 0.1)
    assert not f.full(0)


def test_under_a_new_plan_what_is_on_its_way_still_counts_in_all() -> None:
    f = flight(2, 2)
    for index in range(4):
        f.add(index, index % 2, 0.0)
    f.planned([3, 1])
    assert f.full(0)
    f.look([holding(0, 1)], 0.1)
    assert not f.full(0)
    f.add(4, 1, 0.2)
    assert f.full(1)


def test_a_chunk_that_is_put_in_again_counts_once() -> None:
    f = flight(2, 2)
    f.add(0, 0, 0.0)
    f.add(0, 1, 1.0)
    f.add(1, 0, 1.0)
    assert not f.full(0)


def test_windows_follow_rates_down_to_a_least_in_all_and_to_two_chunks() -> None:
    assert windows([8.0, 0.0], 1000, 10_000) == [round(1000 * WINDOW_SECONDS), 5]
    assert windows([0.0], 1000, 0) == [2]


def test_where_many_receive_one_who_lacks_a_chunk_is_waited_for_a_moment_only() -> None:
    for receivers, waits in ((MANY - 1, True), (MANY, False)):
        f = flight(1)
        f.add(0, 0, 0.0)
        f.look([holding()] + [holding(0)] * (receivers - 1), NEARLY_MOST - 0.1)
        assert f.full(0)
        f.look([holding()] + [holding(0)] * (receivers - 1), NEARLY_MOST + 0.1)
        assert f.full(0) == waits
