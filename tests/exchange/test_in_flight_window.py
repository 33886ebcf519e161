"""What is on its way in the trees: how much may be, receivers that lag, plans that change."""

from __future__ import annotations

import numpy as np
import pytest

from p2psync.swarm.exchange.bitmap import Bits
from p2psync.swarm.exchange.in_flight_window import (
    DEEPER,
    DEEPER_AMONG_MANY,
    EACH_WAY,
    FEW,
    FIRST_LAG,
    FLIGHT_MOST,
    LAGGING,
    LOOK_EVERY,
    MORE,
    MOST_SLACK,
    NEAR_LAG,
    STRANDED_AFTER,
    SURELY,
    InFlightWindow,
)


def holding(*chunks: int) -> Bits:
    flags = np.zeros(1000, np.bool_)
    flags[list(chunks)] = True
    return flags


def held(*flags: Bits) -> dict[str, Bits]:
    """What receivers hold, by their names."""
    return {f"r{i}": theirs for i, theirs in enumerate(flags)}


def flight(*rates: float, first: int = 0) -> InFlightWindow:
    """With trees of these rates (chunks/s), each on a way of its own."""
    found = InFlightWindow(first)
    found.planned(rates, range(len(rates)))
    return found


def window(ways: int, carried: float) -> float:
    """Chunks, where the trees carry so many in the least lag."""
    return carried + max(EACH_WAY * ways, DEEPER * carried)


def fill(f: InFlightWindow, tree: int, now: float, start: int = 0) -> int:
    """Add chunks from `start` on until the tree is full; returns the next one."""
    while not f.full(tree):
        f.add(start, tree, now)
        start += 1
    return start


def test_a_way_is_full_with_its_part_and_some_more_and_has_room_once_all_hold_a_chunk() -> None:
    f = flight(40.0, 40.0, 40.0, 40.0)
    count = fill(f, 0, 0.0)
    assert f.window / 4 < count <= f.window / 2
    assert not f.full(1)
    f.look(held(holding(0, 1), holding(1)), 0.3)
    assert not f.full(0)


def test_all_ways_together_are_full_with_the_window() -> None:
    f = flight(40.0, 40.0, 40.0, 40.0)
    index = 0
    while (tree := next((t for t in range(4) if not f.full(t)), None)) is not None:
        f.add(index, tree, 0.0)
        index += 1
    assert abs(index - f.window) <= 1
    assert f.window == window(4, FIRST_LAG * 160)


def test_trees_that_begin_at_the_same_hops_share_what_their_way_may_have() -> None:
    f = InFlightWindow()
    f.planned([10.0, 10.0, 20.0, 20.0, 20.0], ["a", "a", "b", "c", "d"])
    fill(f, 0, 0.0)
    assert f.full(1)
    assert not f.full(2)


def test_a_chunk_counts_for_the_share_of_those_who_lack_it() -> None:
    f = flight(40.0)
    chunks = range(fill(f, 0, 0.0))
    f.look(held(holding(*chunks), holding(*chunks), holding(*chunks), holding()), 0.1)
    assert fill(f, 0, 0.1, 100) - 100 == pytest.approx(0.75 * len(chunks), abs=1)


@pytest.mark.parametrize(("arriving", "let_out"), [(80, 100 / 80), (50, 2.0), (10, 2.0), (100, 1.0), (200, 2.0)])
def test_where_less_arrives_than_was_planned_more_is_let_out_up_to_a_limit(arriving: int, let_out: float) -> None:
    f = flight(100.0)
    chunk, now = 0, 0.0
    while now < 3.0:
        f.look(held(holding(*range(chunk))), now)  # all that was put in a tenth of a second ago
        for _ in range(arriving // 10):
            f.add(chunk, 0, now)
            chunk += 1
        now += 0.1
    # Of what arrives faster than was planned so much is let out anyway.
    assert f.window == pytest.approx(window(1, 0.1 * 100 * let_out), rel=0.1)


def test_the_window_follows_the_least_mean_time_a_chunk_took() -> None:
    f = flight(100.0)
    f.add(0, 0, 0.0)
    f.look(held(holding(0), holding()), 0.05)  # lacked by both until now, and by one for twice as long
    f.look(held(holding(0), holding(0)), 0.15)
    assert f.window == pytest.approx(window(1, 0.1 * 100))
    f.add(1, 0, 0.2)
    f.look(held(holding(0, 1), holding(0, 1)), 0.9)
    assert f.window == pytest.approx(window(1, 0.1 * 100))


def test_more_is_let_out_where_many_receive_whose_trees_are_deeper() -> None:
    f = flight(100.0)
    f.add(0, 0, 0.0)
    f.look(held(*[holding(0)] * (FEW + 1)), 0.1)
    assert f.window == pytest.approx(0.1 * 100 * (1 + DEEPER_AMONG_MANY))
    f.add(1, 0, 0.2)
    f.look(held(*[holding(0, 1)] * FEW), 0.3)
    assert f.window == pytest.approx(window(1, 0.1 * 100))


def test_the_window_follows_the_least_times_of_all_ways_halfway_from_the_shortest_to_their_mean() -> None:
    f = flight(75.0, 25.0)
    f.add(0, 0, 0.0)
    f.add(1, 1, 0.0)
    f.look(held(holding(0)), 0.1)
    assert f.window == pytest.approx(window(2, 0.1 * 100)), "of the other way nothing is known yet"
    f.look(held(holding(0, 1)), 0.5)
    assert f.window == pytest.approx(window(2, (0.1 + 0.75 * 0.1 + 0.25 * 0.5) / 2 * 100))


def took(*seconds: float) -> InFlightWindow:
    """Trees of ten chunks a second each, in which one took so long to be everywhere."""
    f = flight(*[10.0] * len(seconds))
    for tree in range(len(seconds)):
        f.add(tree, tree, 0.0)
    for tree in sorted(range(len(seconds)), key=seconds.__getitem__):
        f.look(held(holding(*[i for i, time in enumerate(seconds) if time <= seconds[tree]])), seconds[tree])
    return f


@pytest.mark.parametrize(("chunks", "late"), [(60, set()), (10, {1}), (3, {1, 2}), (1, {1, 2})])
def test_a_tree_takes_no_more_once_the_rest_would_be_through_the_others_before(chunks: int, late: set[int]) -> None:
    f = took(0.5 / SURELY, 3.0 / SURELY, 1.0 / SURELY)
    assert f.too_late([0, 1, 2], chunks) == late


def test_of_trees_that_are_slow_alike_none_takes_no_more() -> None:
    assert took(3.0, 3.0).too_late([0, 1], 1) == set()


def test_as_long_as_one_is_not_known_every_tree_takes_more() -> None:
    f = took(0.5, 9.0)
    assert f.too_late([0, 1], 1) == {1}
    assert f.too_late([1], 1) == set(), "whatever the first takes, it is not to be had"
    f.planned([10.0, 10.0], range(2))
    assert f.too_late([0, 1], 1) == set()


def test_a_new_plan_begins_with_the_times_that_were_seen() -> None:
    f = flight(100.0)
    f.add(0, 0, 0.0)
    f.look(held(holding(0)), 0.08)
    f.planned([50.0, 50.0], ["a", "b"])
    assert f.window == pytest.approx(window(2, 0.08 * 100))


def test_the_window_follows_what_the_trees_carry_if_that_is_more_than_was_planned() -> None:
    f = flight(10.0)
    planned = f.window
    for index in range(120):  # 60 a second, each held by all after 50 ms
        f.add(index, 0, index / 60)
        f.look(held(holding(*range(index - 2))), index / 60)
    assert f.window == pytest.approx(window(1, 0.05 * 60), abs=1)
    assert f.window > window(1, 0.05 * 10)
    assert planned == window(1, FIRST_LAG * 10)


def test_between_near_nodes_less_is_let_out_before_any_time_was_seen() -> None:
    far, near = flight(100.0), InFlightWindow(near=True)
    near.planned([100.0], [0])
    assert far.window == window(1, 100 * FIRST_LAG)
    assert near.window == window(1, 100 * NEAR_LAG)


def test_a_near_receiver_who_tells_now_and_then_gets_all_that_its_link_carries() -> None:
    rate, news = 1000.0, 0.1
    f = InFlightWindow(near=True, news=news)
    f.planned([rate], [0])
    put, here = 0, 0
    for step in range(int(5 * rate)):
        now = step / rate
        if not f.is_full:
            f.add(put, 0, now)
            put += 1
        if step % int(news * rate) == 0:  # what was put in a millisecond ago is here, and told
            here = put - 1
        flags = np.zeros(put + 1, np.bool_)
        flags[:here] = True
        f.look({"r": flags}, now)
    assert put >= 0.98 * 5 * rate


def test_a_small_manifest_goes_out_without_waiting() -> None:
    f = flight(10.0, first=50)
    assert fill(f, 0, 0.0) == 50


def test_a_way_has_its_part_of_the_whole_once_it_was_given_as_many() -> None:
    f = InFlightWindow(100)
    f.planned([10.0, 20.0, 10.0], ["a", "b", "a"])
    for index in range(4):
        assert not f.has_its_part(0, 8)
        f.add(index, 2 * (index % 2), 0.0)
    assert f.has_its_part(0, 8)
    assert f.has_its_part(2, 8)
    assert not f.has_its_part(1, 8)


def test_a_look_too_soon_after_the_last_changes_nothing() -> None:
    f = flight(1.0)
    chunks = range(fill(f, 0, 0.0))
    f.look(held(holding()), 0.1)
    f.look(held(holding(*chunks)), 0.1 + LOOK_EVERY / 2)
    assert f.full(0)
    f.look(held(holding(*chunks)), 0.1 + 2 * LOOK_EVERY)
    assert not f.full(0)


def test_a_chunk_is_waited_for_no_more_in_the_end_whoever_lacks_it() -> None:
    f = flight(1.0)
    chunks = range(fill(f, 0, 0.0))
    f.look(held(holding(), holding()), FLIGHT_MOST - 0.1)
    assert f.full(0)
    f.look(held(holding(), holding(*chunks)), FLIGHT_MOST + 0.1)
    assert not f.full(0)


def test_one_who_lags_by_far_is_not_waited_for() -> None:
    f = flight(16.0)
    now, index = 0.0, 0
    while index <= LAGGING * f.window + 1:
        now += FLIGHT_MOST + 1 if f.full(0) else 0.1
        f.look(held(holding(*range(index)), holding()), now)
        f.add(index, 0, now)
        index += 1
    f.look(held(holding(*range(index)), holding()), now + 0.1)
    assert f.load(0) < 1 / f.window


def test_while_somebody_is_not_waited_for_no_more_goes_out_than_was_planned_and_then_as_much_as_arrives() -> None:
    f = flight(16.0)
    f.add(0, 0, 0.0)
    f.look(held(holding(*range(1000)), holding(*range(1000))), 0.1)
    index, now = fill(f, 0, 0.1, 1), 0.1
    # One falls behind by all that goes out; the others have everything at once.
    while index < LAGGING * f.window + 2:
        now += 0.1
        f.look(held(holding(*range(1000)), holding()), now)
        index = fill(f, 0, now, index)
    begun, at = index, now
    while now < at + 10:
        now += 0.1
        f.look(held(holding(*range(1000)), holding()), now)
        index = fill(f, 0, now, index)
    assert index - begun == pytest.approx(10 * 16, rel=0.05)
    # Now he has everything at once, too.
    begun, at = index, now
    while now < at + 2:
        now += 0.1
        f.look(held(holding(*range(1000)), holding(*range(1000))), now)
        index = fill(f, 0, now, index)
    assert index - begun > 1.5 * 2 * 16


def test_what_one_lacks_who_is_no_longer_waited_for_does_not_widen_the_window() -> None:
    f, index = flight(100.0), 0
    for now in np.arange(0.1, 3.0, 0.1).tolist():
        f.look(held(holding(*range(index)), holding()), now)
        for chunk in range(index, index + 10):
            f.add(chunk, 0, now)
        index += 10
    # Half of the plan arrived as long as he was waited for, so the window grew once; then all of it did.
    assert f.window == pytest.approx(window(1, MORE * 0.1 * 100)), "no more than was planned has arrived"
    assert f.load(0) < 1, "and he is not waited for"


def test_one_who_lacks_less_than_the_trees_carry_in_a_second_is_waited_for_however_little_is_let_out() -> None:
    f = flight(100.0)
    f.add(0, 0, 0.0)
    f.look(held(holding(0), holding(0)), 0.03)
    assert LAGGING * f.window < 30
    for index in range(1, 61):
        f.add(index, 0, 0.06)
    f.look(held(holding(*range(61)), holding(0)), 0.1)
    assert f.load(0) > 1


def test_those_who_are_heard_of_later_lacked_what_is_on_its_way_since_it_was_put_in() -> None:
    f = flight(100.0)
    f.add(1, 0, 0.04)
    f.look(held(holding(1), holding()), 0.08)
    f.look(held(holding(1), holding(), holding()), 0.14)
    f.look(held(holding(1), holding(1), holding(1)), 0.24)
    # The first may have lacked it until it was seen that he has it, the others lacked it all the time.
    assert f.window == pytest.approx(window(1, (0.04 + 0.2 + 0.2) / 3 * 100))


def test_those_who_are_heard_of_later_lacked_what_others_had_before() -> None:
    f = flight(100.0)
    f.add(0, 0, 0.0)
    f.look(held(holding(0)), 0.08)
    assert f.window == pytest.approx(window(1, 0.08 * 100))
    f.add(1, 0, 0.4)
    f.look(held(holding(0, 1), holding()), 0.48)
    assert f.window == pytest.approx(window(1, (0.08 + 0.48) / 2 * 100))
    f.look(held(holding(0, 1), holding(0, 1)), 0.56)
    assert f.window == pytest.approx(window(1, (0.08 + 0.16) / 2 * 100)), "the next chunk mends what errs upwards"


def test_how_long_those_lacked_a_chunk_who_hold_it_when_they_are_heard_of_is_not_known() -> None:
    f = flight(100.0)
    f.add(0, 0, 0.0)
    f.look(held(holding(0)), 0.08)
    f.add(1, 0, 0.5)
    for others in range(1, 9):
        f.look(held(holding(0), *[holding(0)] * others), 0.5 + 0.05 * others)
    assert f.window == pytest.approx(window(1, 0.08 * 100))


def arriving(
    share: float, seconds: float, *, full: bool = True, others: int = 99, behind: int = 0, first: float = 0.0
) -> InFlightWindow:
    """Near receivers have a chunk at once; then others come, and so much of what was planned arrives for so long.

    others: how many come later. behind: how many of them get nothing. first: for how long all arrives at first.
    """
    f = flight(100.0)
    f.add(0, 0, 0.0)
    f.look(held(holding(0)), 0.03)
    out, came, now = 1, 1.0, 0.03
    while now < seconds:
        while (full and not f.is_full) or out <= came:
            f.add(out, 0, now)
            out += 1
        now += 0.05
        came += 0.05 * 100 * (share if now > first else 1.0)
        theirs = [holding(*range(int(came)))] * (others - behind) + [holding()] * behind
        f.look(held(holding(*range(out)), *theirs), now)
    return f


def least(f: InFlightWindow) -> float:
    """The least mean time that a chunk of the first way was lacked."""
    assert f._least[0] is not None
    return f._least[0].lag


def test_where_far_less_than_planned_arrives_for_a_second_times_are_learnt_anew_once() -> None:
    before, after, later, latest = (arriving(0.4, seconds) for seconds in (0.9, 1.15, 1.8, 3.6))
    assert least(before) == pytest.approx(0.03)
    assert after.window > 2 * before.window
    assert least(later) > 0.1, "then it follows what was seen"
    assert least(latest) == least(later), "however little arrives"


def test_times_are_kept_where_more_arrives_or_more_might_have_been_put_in() -> None:
    assert least(arriving(0.6, 1.8)) == pytest.approx(0.03)
    assert least(arriving(0.4, 1.8, full=False)) == pytest.approx(0.03)


def test_times_are_kept_where_all_that_was_planned_has_arrived_before() -> None:
    assert least(arriving(0.4, 3.0, first=1.1)) == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("share", "full", "many", "times"),
    [
        (0.85, True, False, 1.15**3),
        (0.85, True, True, 1.15),
        (0.95, True, False, 1.0),
        (0.85, False, False, 1.0),
    ],
)
def test_more_and_more_is_let_out_where_less_than_planned_goes_on_to_arrive(
    share: float, full: bool, many: bool, times: float
) -> None:
    # Spans end after each half second; two of them must have brought too little, among many four.
    others = 99 if many else 9
    early, late = (arriving(share, seconds, full=full, others=others)._more for seconds in (0.9, 2.4))
    assert (early, late) == (1.0, pytest.approx(times))
    assert arriving(share, 9, full=full)._more <= MOST_SLACK


def test_no_more_than_before_is_let_out_where_less_arrives_once_somebody_lags_by_far() -> None:
    begun, later = (arriving(0.85, seconds, behind=1)._more for seconds in (3, 9))
    assert later == begun < arriving(0.85, 9)._more


def test_a_chunk_that_is_put_in_again_teaches_no_times() -> None:
    f = flight(100.0)
    f.add(0, 0, 0.0)
    f.look(held(holding(0)), 0.2)
    learnt = f.window
    f.add(0, 0, 0.3)
    f.look(held(holding(0)), 0.33)
    assert f.window == pytest.approx(learnt)


def test_under_a_new_plan_what_is_on_its_way_still_counts_in_all() -> None:
    f = flight(40.0, 40.0)
    first = fill(f, 0, 0.0)
    last = fill(f, 1, 0.0, first)
    f.planned([60.0, 20.0], range(2))
    assert f.full(0)
    f.look(held(holding(*range(last))), 0.1)
    assert not f.full(0)
    fill(f, 1, 0.2, last)
    assert not f.full(0)


def replanned(chunks: int) -> InFlightWindow:
    """So many chunks were put in, more than may be on their way, and there is another plan now."""
    f = flight(40.0)
    for index in range(chunks):
        f.add(index, 0, 0.0)
    f.planned([40.0], "b")
    return f


def test_under_a_new_plan_what_nobody_new_has_for_a_while_counts_no_more() -> None:
    f = replanned(45)
    f.look(held(holding(*range(45)), holding(0)), 0.1)
    f.look(held(holding(*range(45)), holding(0)), STRANDED_AFTER)
    assert f.is_full
    f.look(held(holding(*range(45)), holding(0)), 0.2 + STRANDED_AFTER)
    assert not f.is_full


def test_under_a_new_plan_what_still_gets_on_counts() -> None:
    f = replanned(45)
    for count in range(3):
        receivers = [holding(*range(45)) if i < count else holding() for i in range(40)]
        f.look(held(*receivers), 0.6 * STRANDED_AFTER * (count + 1))
        assert f.is_full


def test_a_chunk_that_is_put_in_again_counts_once() -> None:
    f = flight(1.0, 1.0)
    f.add(0, 0, 0.0)
    once = f.load(0)
    f.add(0, 1, 1.0)
    assert f.load(0) < once
    f.add(0, 0, 1.0)
    assert f.load(0) == once
