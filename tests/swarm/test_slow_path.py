"""A path that delivers far less than planned restarts; where that does not help it is left to TCP."""

from __future__ import annotations

import pytest

from p2psync.swarm.control.config import SlowPathConfig
from p2psync.swarm.control.interval import Interval
from p2psync.swarm.control.slow_path import SlowPathDetector

PLANNED = 2e6
CONFIG = SlowPathConfig()
SECONDS, SAMPLES = CONFIG.sample_seconds, CONFIG.slow_samples


def detector() -> SlowPathDetector:
    made = SlowPathDetector()
    made.set_planned(PLANNED)
    return made


def sample(slow_path: SlowPathDetector, share: float, loss: float = 0.0, pacing_rate: float = 0.0) -> bool:
    """One sample that delivers a share of the planned rate."""
    delivered = share * PLANNED * SECONDS
    sent = delivered / (1 - loss)
    return slow_path.observe(Interval(SECONDS, int(sent), int(loss * sent), int(delivered)), pacing_rate)


def restarts(slow_path: SlowPathDetector, seconds: float, share: float, **options: float) -> int:
    return sum(sample(slow_path, share, **options) for _ in range(round(seconds / SECONDS)))


def test_a_path_that_delivers_far_less_than_planned_restarts_at_once() -> None:
    slow_path = detector()
    assert [sample(slow_path, CONFIG.slow / 2) for _ in range(SAMPLES)] == [False] * (SAMPLES - 1) + [True]


@pytest.mark.parametrize(
    ("share", "loss"), [(1.0, 0.0), (CONFIG.slow + 0.01, 0.0), (CONFIG.slow / 2, CONFIG.max_loss + 0.01)]
)
def test_a_path_that_delivers_enough_or_loses_much_does_not_restart(share: float, loss: float) -> None:
    assert restarts(detector(), 60, share, loss=loss) == 0


def test_a_path_that_grows_by_itself_does_not_restart() -> None:
    slow_path = detector()
    assert not any(sample(slow_path, 0.02 * CONFIG.growing**i) for i in range(9))
    assert restarts(slow_path, SAMPLES * SECONDS, 0.5) == 1, "until it stops growing"


def test_a_path_is_expected_to_deliver_no_more_than_its_pacing_rate() -> None:
    slow_path = detector()
    assert restarts(slow_path, 5, 0.3, pacing_rate=0.4 * PLANNED) == 0
    assert restarts(slow_path, 1, 0.3, pacing_rate=0.9 * PLANNED) == 1


def test_single_slow_samples_restart_no_path() -> None:
    slow_path = detector()
    for _ in range(20):
        assert not sample(slow_path, 0.1)
        assert not sample(slow_path, 1.0)


def test_a_restarted_path_has_time_to_grow_before_the_next_restart() -> None:
    slow_path = detector()
    assert restarts(slow_path, SAMPLES * SECONDS, 0.1) == 1
    assert restarts(slow_path, CONFIG.grace_seconds - SECONDS, 0.2) == 0
    assert restarts(slow_path, 2 * SECONDS, 0.2) == 1, "it grew, and not enough"


def test_a_path_whose_restarts_do_not_help_is_left_to_tcp_until_the_plan_changes() -> None:
    slow_path = detector()
    assert restarts(slow_path, 100, 0.3) == CONFIG.max_failed
    slow_path.set_planned(PLANNED)
    assert restarts(slow_path, 100, 0.3) == 0
    slow_path.set_planned(PLANNED * 1.1)
    assert restarts(slow_path, 100, 0.3) > 0


def test_a_path_whose_restart_helped_may_restart_again() -> None:
    slow_path, count = detector(), 0
    for power in (0, 2, 4, 6):
        count += restarts(slow_path, CONFIG.grace_seconds + SECONDS, 0.05 * CONFIG.helped**power)
    assert count > CONFIG.max_failed + 1


def test_a_sample_that_a_pause_interrupts_restarts_no_path() -> None:
    slow_path = detector()
    for _ in range(20):
        assert not slow_path.observe(Interval(SECONDS * 0.9, 1000, 0, 1000), 0.0)
        slow_path.skip()
