"""A path that loses much is paced at its planned rate; one that loses little is left to TCP."""

from __future__ import annotations

import math

import pytest

from p2psync.swarm.control.config import PathControlConfig
from p2psync.swarm.control.interval import Interval
from p2psync.swarm.control.path_controller import PathController, PathState, startup_gain

PLANNED = 2e6
CONFIG = PathControlConfig()
GAIN = CONFIG.pacing_gain


def controller(planned: float = PLANNED) -> PathController:
    made = PathController("child")
    made.set_planned(planned, planned)
    return made


def sample(path: PathController, loss: float, *, rate: float = PLANNED) -> None:
    """One sample of half a second in which `rate` bytes/s were delivered."""
    sent = int(rate / 2 / (1 - loss))
    path.observe(Interval(0.5, sent, int(loss * sent), int(rate / 2)))


def test_a_path_with_few_losses_is_not_paced() -> None:
    path = controller()
    for _ in range(20):
        sample(path, CONFIG.max_loss)
    assert (path.state, path.pacing_rate) == (PathState.FREE, 0.0)


def test_a_path_with_many_losses_is_paced_at_its_planned_or_its_delivery_rate() -> None:
    path = controller()
    sample(path, 0.2, rate=PLANNED / 2)
    assert (path.state, path.pacing_rate) == (PathState.PACED, GAIN * PLANNED)
    faster = controller()
    sample(faster, 0.2, rate=3 * PLANNED)
    assert faster.pacing_rate == pytest.approx(3 * GAIN * PLANNED, abs=10), "the path has more than the plan knew"


def test_losses_among_a_few_bytes_pace_no_path() -> None:
    path, least = controller(), CONFIG.sample_bytes
    path.observe(Interval(0.5, least // 4, least // 32, least // 8))
    assert path.pacing_rate == 0.0
    path.observe(Interval(0.5, least, 0, least))
    assert path.pacing_rate == 0.0, "they are a small share of all that was sent"
    path.observe(Interval(0.5, least // 4, least // 32, least // 8))
    assert path.pacing_rate == 0.0, "each sample starts at zero"


def test_losses_before_a_pause_do_not_count_after_it() -> None:
    path, sent = controller(), CONFIG.sample_bytes - 1
    path.observe(Interval(0.5, sent, sent // 2, sent // 2))
    path.observe(None)
    path.observe(Interval(0.5, sent, 0, sent))
    path.observe(Interval(0.5, sent, 0, sent))
    assert path.pacing_rate == 0.0


def test_a_path_that_keeps_losing_falls_to_its_planned_rate_and_no_further() -> None:
    path = controller()
    sample(path, 0.2, rate=2 * PLANNED)
    rates = []
    for _ in range(30):
        sample(path, 0.05)
        rates.append(path.pacing_rate)
        sample(path, 0.0)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > GAIN * PLANNED
    assert rates[-1] == pytest.approx(GAIN * PLANNED, rel=0.01)


@pytest.mark.parametrize("loss", [0.0, 0.03])
def test_a_paced_path_with_few_losses_rises_until_it_is_free(loss: float) -> None:
    path = controller()
    sample(path, 0.2)
    paced, samples = path.pacing_rate, 0
    while path.state is PathState.PACED:
        before = path.pacing_rate
        sample(path, loss, rate=path.pacing_rate)
        samples += 1
        assert path.pacing_rate == 0.0 or before < path.pacing_rate <= CONFIG.free_above * paced
    assert path.state is PathState.FREE
    assert 20 < samples < 100, "not at once: it would lose much again"


def test_a_higher_planned_rate_raises_the_pacing_rate_and_a_lower_one_waits_for_losses() -> None:
    path = controller()
    sample(path, 0.2)
    paced = path.pacing_rate
    path.set_planned(PLANNED, PLANNED)
    assert path.pacing_rate == paced
    path.set_planned(PLANNED / 2, PLANNED / 2)
    assert path.pacing_rate == paced
    sample(path, 0.2)
    assert path.pacing_rate < paced
    lower = path.pacing_rate
    path.set_planned(PLANNED, PLANNED)
    assert path.pacing_rate == 2 * lower


def test_a_planned_rate_of_zero_may_rise() -> None:
    path = controller(0.0)
    sample(path, 0.2)
    path.set_planned(PLANNED, PLANNED)
    assert path.pacing_rate == GAIN * PLANNED


def test_a_transfer_starts_at_the_planned_rate_and_is_free_within_seconds() -> None:
    path = controller()
    path.start_transfer(1.0)
    assert (path.state, path.pacing_rate) == (PathState.STARTUP, GAIN * PLANNED)
    samples = 0
    while path.pacing_rate:
        sample(path, 0.0)
        samples += 1
    assert samples <= 10
    sample(path, 0.2)
    assert path.state is PathState.PACED


def test_a_starting_path_with_many_losses_is_paced_as_any_other() -> None:
    path = controller()
    path.start_transfer(1.0)
    sample(path, 0.2)
    assert path.state is PathState.PACED
    for _ in range(10):
        sample(path, 0.0)
    assert GAIN * PLANNED <= path.pacing_rate < 1.05 * PLANNED


def test_the_start_of_a_transfer_leaves_a_paced_path_as_it_is() -> None:
    path = controller()
    sample(path, 0.2, rate=3 * PLANNED)
    before = path.pacing_rate
    path.start_transfer(1.0)
    assert (path.state, path.pacing_rate) == (PathState.PACED, before)


def test_the_startup_gain_leaves_in_queues_what_every_queue_holds() -> None:
    queue = CONFIG.queue_seconds
    assert startup_gain(queue, queue) == math.inf
    assert startup_gain(1000.0, queue) < 1.001
    for seconds in (0.03, 0.1, 1.0):
        assert seconds * (1 - 1 / startup_gain(seconds, queue)) == pytest.approx(queue)


def test_a_small_transfer_starts_above_the_planned_rate_or_without_a_limit() -> None:
    path = controller()
    path.start_transfer(2.0)
    assert path.pacing_rate == 2 * GAIN * PLANNED
    path.start_transfer(math.inf)
    assert (path.state, path.pacing_rate) == (PathState.FREE, 0.0)


def test_a_large_transfer_after_a_small_one_starts_at_the_planned_rate() -> None:
    path = controller()
    path.start_transfer(2.0)
    path.start_transfer(1.0)
    assert path.pacing_rate == GAIN * PLANNED


def test_no_path_starts_below_the_rate_at_which_a_chunk_takes_seconds() -> None:
    path = controller(1000.0)
    path.start_transfer(1.0)
    assert path.pacing_rate == CONFIG.min_startup_rate


def test_paths_are_refreshed_at_different_ages_before_bbr_stops_them() -> None:
    ages = []
    for number in range(20):
        path = PathController(f"peer {number}")
        path.restarted(100.0)
        ages.append(next(tick / 4 for tick in range(100) if path.is_refresh_due(100.0 + tick / 4)))
    assert min(ages) >= CONFIG.refresh_seconds
    assert max(ages) <= CONFIG.refresh_seconds + CONFIG.refresh_spread + 0.25 < 10.0
    assert len(set(ages)) > 6


def test_the_age_of_a_path_that_never_restarted_counts_from_its_first_data() -> None:
    path = PathController("child")
    assert not path.is_refresh_due(1000.0)
    assert path.is_refresh_due(1000.0 + CONFIG.refresh_seconds + CONFIG.refresh_spread)
