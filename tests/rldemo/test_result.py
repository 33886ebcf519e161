"""The demonstration's verdict on rewards: learning passes, and a run that learns nothing fails."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from p2psync.observe.events import Published
from p2psync.rldemo.cast import DemoProcess
from p2psync.rldemo.config import DemoConfig
from p2psync.rldemo.lines import Final, Learned
from p2psync.rldemo.local import train
from p2psync.rldemo.model import load_warm_start
from p2psync.rldemo.result import RISE_MIN_STANDARD_ERRORS, conclude, reward_trend

#: Versions of a demonstration in continuous integration, the fewest.
VERSIONS = 12
#: Mean rewards of `python -m p2psync.rldemo.local --staleness 1`, seed by seed.
HEALTHY = {
    1: [0.460, 0.423, 0.513, 0.514, 0.482, 0.548, 0.597, 0.605, 0.576, 0.637, 0.660, 0.661, 0.706, 0.758, 0.760, 0.774],
    2: [0.441, 0.434, 0.469, 0.483, 0.533, 0.527, 0.540, 0.595, 0.584, 0.593, 0.652, 0.674, 0.692, 0.734, 0.738, 0.758],
    3: [0.468, 0.438, 0.479, 0.457, 0.536, 0.550, 0.576, 0.595, 0.621, 0.629, 0.655, 0.698, 0.715, 0.729, 0.741, 0.818],
}
#: The standard deviation of a version's mean reward about its expectation: that of 1024 samples of 64 prompts.
NOISE = 0.021


def rises(rewards: list[float]) -> bool:
    return reward_trend(rewards) >= RISE_MIN_STANDARD_ERRORS


def test_reward_trend_is_the_slope_over_its_standard_error() -> None:
    # Slope 0.8, residuals -0.2, 0.4, -0.2 -> s² = 0.24 and its error sqrt(0.24 / 2).
    assert reward_trend([0.0, 1.4, 1.6]) == pytest.approx(0.8 / math.sqrt(0.24 / 2))
    assert reward_trend([1.6, 1.4, 0.0]) == pytest.approx(-0.8 / math.sqrt(0.24 / 2))


def test_reward_trend_does_not_depend_on_scale_or_offset() -> None:
    rewards = HEALTHY[1]
    assert reward_trend([3 * reward + 7 for reward in rewards]) == pytest.approx(reward_trend(rewards))


def test_reward_trend_of_a_line_is_infinite_and_of_a_constant_zero() -> None:
    assert reward_trend([0.0, 0.5, 1.0]) == math.inf
    assert reward_trend([1.0, 0.5, 0.0]) == -math.inf
    assert reward_trend([0.5, 0.5, 0.5]) == 0.0


@pytest.mark.parametrize("seed", HEALTHY)
def test_a_healthy_demonstration_passes_with_twice_the_required_rise(seed: int) -> None:
    for versions in (VERSIONS, 16):
        assert reward_trend(HEALTHY[seed][:versions]) > 2 * RISE_MIN_STANDARD_ERRORS


def verdict(rewards: list[float]) -> tuple[bool, str]:
    """Returns the verdict on a demonstration with these rewards in which all else is well."""
    final = Final(version=len(rewards), sha256="ab", memory_bytes=1)
    names = ("trainer", "actor-0")
    members = [DemoProcess(name, "eu", cast(Any, None), Path(name), final=final) for name in names]
    learned = [
        Learned(version=k, reward=reward, rollouts=8, oldest=k, re_leased=1, refused=0, sample="")
        for k, reward in enumerate(rewards, 1)
    ]
    result = conclude(learned, [published(version) for version in range(len(rewards) + 1)], members, 1.0)
    return result.passed, result.verdict


def published(version: int) -> Published:
    return Published(
        version=version, anchor=version == 0, profile="fast", changed=1, total=100, payload_bytes=10, full_bytes=200,
        chunks=1, digest="", seconds=0.0, at=0.0,
    )  # fmt: skip


def test_a_demonstration_passes_if_the_reward_rose_and_names_it_if_not() -> None:
    assert verdict(HEALTHY[1]) == (True, "1 actors hold the trainer's bits, and the reward rose")
    passed, why = verdict([*HEALTHY[1][:3], *HEALTHY[1][:3], *HEALTHY[1][:3], *HEALTHY[1][:3], 0.47])
    assert not passed and "the reward did not rise" in why


@pytest.mark.parametrize("versions", [VERSIONS, 20])
def test_of_runs_that_learn_nothing_hardly_one_in_five_hundred_passes(versions: int) -> None:
    rng = random.Random(versions)
    passed = sum(rises([rng.gauss(0.45, NOISE) for _ in range(versions)]) for _ in range(5000))
    assert passed <= 10


def test_with_a_learning_rate_of_zero_no_seed_passes() -> None:
    """Real rollouts and a real learner, on small batches: the statistic does not depend on their size."""
    broken = replace(
        DemoConfig(), versions=VERSIONS, prompts_per_version=2, prompts_per_item=2, group_size=8, learning_rate=0.0
    )
    trends = []
    for seed in range(3):
        reports = list(train(replace(broken, seed=seed), load_warm_start()))
        assert all(report.changed == 0.0 for report in reports)
        trends.append(reward_trend([report.stats.reward for report in reports]))
    assert max(trends) < RISE_MIN_STANDARD_ERRORS
    assert max(map(abs, trends)) > 0.2, "rewards vary by chance"
