"""How long pushes take, and are waited for."""

from __future__ import annotations

from p2psync.swarm.lag import FIRST, LEAST, SPURIOUS_MOST, Lag


def test_nothing_is_known_before_the_first_push() -> None:
    assert Lag().patience == FIRST


def test_what_most_pushes_take_lies_between_their_mean_and_what_is_waited_for() -> None:
    lag = Lag()
    for k in range(200):
        lag.sample(0.9 + 0.3 * (k % 3))
    assert 1.1 < lag.mean < 1.3
    assert lag.mean < 1.5 < lag.usual < lag.patience < 2.4


def test_short_lags_are_waited_for_a_second_in_any_case() -> None:
    lag = Lag()
    lag.sample(0.01)
    assert lag.patience == LEAST
    assert lag.usual < 0.1


def test_what_was_pulled_too_soon_is_remembered_for_a_while_and_up_to_a_bound() -> None:
    lag = Lag()
    lag.sample(0.01)
    lag.came_late(2.0)
    lag.came_late(1.5)
    assert lag.patience == 2.0
    lag.came_late(60.0)
    assert lag.patience == SPURIOUS_MOST
    for _ in range(2000):
        lag.sample(0.01)
    assert lag.patience == LEAST
