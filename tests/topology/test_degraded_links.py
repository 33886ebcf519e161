"""Degraded links: how older figures of other paths are lowered."""

from __future__ import annotations

import numpy as np
import pytest

from p2psync.topology.degraded_links import DegradedLinks
from p2psync.topology.measured import PathFigures
from p2psync.topology.plan import Plan

NAMES = ("a0", "a1", "b0", "b1")
REGION = {name: name[0] for name in NAMES}


def degraded_links(*trees: tuple[list[int], float]) -> DegradedLinks:
    """After a plan of 40 Mbit/s, its trees as parents (-1: the trainer, a0) with shares."""
    found = DegradedLinks()
    parents, shares = np.array([tree for tree, _ in trees]), np.array([share for _, share in trees])
    found.planned(Plan(NAMES, 0, parents, shares, 40.0, {}, 40.0))
    return found


def path(source: str, target: str, rate: float) -> PathFigures:
    return PathFigures(source=source, target=target, rate=rate, seen=rate)


def rates(paths: list[PathFigures]) -> list[float | None]:
    return [p.rate for p in paths]


# b0 and b1 each get half over the link from the trainer.
THIRDS = ([-1, 0, 0, 2], 0.5), ([-1, 0, 3, 0], 0.5)
PROBED = path("a1", "b1", 90.0)


def test_older_figures_are_lowered_once_half_of_a_links_planned_rate_degraded() -> None:
    f = degraded_links(*THIRDS)
    degraded = path("a0", "b0", 2.0)
    assert rates(f.apply([degraded, PROBED], {("a0", "b0"): 0.1}, REGION)) == [2.0, 9.0]
    assert rates(f.apply([degraded, PROBED], {("a0", "b0"): 0.1}, REGION)) == [2.0, 9.0]


def test_a_links_remaining_share_is_that_of_its_degraded_paths_together() -> None:
    f = degraded_links(([-1, 0, 0, 2], 0.75), ([-1, 0, 3, 0], 0.25))
    degraded = [path("a0", "b0", 1.5), path("a0", "b1", 2.5)]
    left = {("a0", "b0"): 0.05, ("a0", "b1"): 0.25}
    assert rates(f.apply([*degraded, PROBED], left, REGION))[2] == pytest.approx(90 * (30 * 0.05 + 10 * 0.25) / 40)


def test_a_degraded_path_with_little_planned_rate_does_not_degrade_the_link() -> None:
    f = degraded_links(([-1, 0, 0, 2], 0.2), ([-1, 0, 3, 0], 0.8))
    assert rates(f.apply([path("a0", "b0", 2.0), PROBED], {("a0", "b0"): 0.1}, REGION)) == [2.0, 90.0]


def test_other_links_are_left_alone() -> None:
    f = degraded_links(*THIRDS)
    back = path("b1", "a1", 50.0)
    assert rates(f.apply([path("a0", "b0", 2.0), back], {("a0", "b0"): 0.1}, REGION)) == [2.0, 50.0]


def test_a_figure_measured_after_the_degradation_is_used_as_it_is() -> None:
    f = degraded_links(*THIRDS)
    f.apply([path("a0", "b0", 2.0), PROBED], {("a0", "b0"): 0.1}, REGION)
    assert rates(f.apply([path("a0", "b0", 2.0), path("a1", "b1", 60.0)], {("a0", "b0"): 0.1}, REGION)) == [2.0, 60.0]
    assert rates(f.apply([path("a0", "b0", 2.0), PROBED], {("a0", "b0"): 0.1}, REGION)) == [2.0, 90.0]


def test_older_figures_stay_lowered_when_the_plan_uses_other_paths() -> None:
    f = degraded_links(*THIRDS)
    f.apply([path("a0", "b0", 2.0), PROBED], {("a0", "b0"): 0.1}, REGION)
    f.planned(Plan(NAMES, 0, np.array([[-1, 0, 3, 1]]), np.array([1.0]), 9.0, {}, 9.0))
    assert rates(f.apply([path("a0", "b0", 2.0), PROBED], {("a0", "b0"): 0.1}, REGION)) == [2.0, 9.0]


def test_a_link_that_degrades_twice_is_lowered_by_both() -> None:
    f = degraded_links(*THIRDS)
    f.apply([path("a0", "b0", 20.0), PROBED], {("a0", "b0"): 0.5}, REGION)
    assert rates(f.apply([path("a0", "b0", 10.0), PROBED], {("a0", "b0"): 0.25}, REGION)) == [10.0, 22.5]
