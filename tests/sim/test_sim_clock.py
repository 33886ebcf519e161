"""Virtual time: events happen in order, however far apart they are, and each once."""

from __future__ import annotations

import random

from p2psync.sim.clock import VirtualClock, VirtualTimer


def never() -> bool:
    return False


def test_events_happen_in_order_of_time_then_of_scheduling() -> None:
    rng = random.Random(1)
    clock, seen = VirtualClock(0), []
    times = [rng.choice((0.0001, 0.01, 1.0, 100.0)) * rng.randrange(50) for _ in range(2000)]
    for k, when in enumerate(times):
        clock.at(when, lambda k: seen.append((clock.now, k)), k)
    clock.run(1e9, never)
    assert seen == sorted((when, k) for k, when in enumerate(times))
    assert clock.events == len(times)


def test_an_event_scheduled_for_now_or_the_past_happens_before_later_ones() -> None:
    clock, seen = VirtualClock(0), []

    def first() -> None:
        clock.at(0.0, seen.append, "past")
        clock.after(0.0, seen.append, "now")
        clock.after(0.0002, seen.append, "soon")

    clock.at(5.0, first)
    clock.at(5.0003, seen.append, "later")
    clock.run(10.0, never)
    assert seen == ["past", "now", "soon", "later"]
    assert clock.now == 10.0


def test_a_run_ends_at_its_limit_and_goes_on_from_there() -> None:
    clock, seen = VirtualClock(0), []
    for when in (1.0, 2.0, 3.0):
        clock.at(when, seen.append, when)
    clock.run(2.5, never)
    assert (seen, clock.now) == ([1.0, 2.0], 2.5)
    clock.after(0.1, seen.append, 2.6)
    clock.run(10.0, lambda: len(seen) == 3)
    assert (seen, clock.now) == ([1.0, 2.0, 2.6], 2.6)
    clock.run(10.0, never)
    assert seen[-1] == 3.0


def test_a_timer_fires_once_at_the_earliest_time_that_it_was_set_to() -> None:
    clock, fired = VirtualClock(0), []
    timer = VirtualTimer(clock, lambda: fired.append(clock.now))
    for when in (3.0, 2.0, 4.0, float("inf")):
        timer.set(when)
    clock.run(10.0, never)
    assert fired == [2.0]
    timer.set(11.0)
    clock.run(20.0, never)
    assert fired == [2.0, 11.0]
