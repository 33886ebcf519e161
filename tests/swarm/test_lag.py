"""How long pushes take, and are waited for."""

from __future__ import annotations

from p2psync.swarm.lag import FIRST, LEAST, SPURIOUS_MOST, Lag


def test_nothing_is_known_before_the_first_push() -> None:
    assert Lag().patience == FIRST


def test_push_lag_of_most_chunks_lies_between_the_mean_and_the_timeout() -> None:
    lag = Lag()
    for k in range(200):
        lag.sample(0.9 + 0.3 * (k % 3))
    assert 1.1 < lag.mean < 1.3
    assert lag.mean < 1.5 < lag.usual < lag.patience < 2.4


def test_push_timeout_is_a_second_at_least() -> None:
    lag = Lag()
    lag.sample(0.01)
    assert lag.patience == LEAST
    assert lag.usual < 0.1


def test_push_timeout_grows_for_a_while_after_pulls_that_were_too_soon() -> None:
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
