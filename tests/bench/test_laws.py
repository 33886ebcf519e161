"""Laws of exchange over drawn networks in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2psync.bench.laws.__main__ import ratios
from p2psync.bench.laws.law import LAWS
from p2psync.bench.laws.publisher import TreeChoice

#: Small drawn networks.
HOME_AND_OFFICES, CLOUDS, WRONG_PLAN = 5, 11, 17


@pytest.mark.parametrize("law", ["trees", "trees-uplink", "full"])
def test_planned_trees_come_near_the_bound(law: str) -> None:
    _, warm, copies = ratios(CLOUDS, LAWS[law])
    assert 1.036 <= warm < 1.12 and copies < 0.02


def test_requests_alone_take_longer_than_planned_trees() -> None:
    assert ratios(CLOUDS, LAWS["requests"])[1] > 1.3 * ratios(CLOUDS, LAWS["trees"])[1]


def test_rebalancing_shortens_what_a_wrong_plan_costs() -> None:
    paced, rebalanced = (replace(LAWS[name], error=0.4) for name in ("trees-paced", "trees-rebalanced"))
    assert ratios(WRONG_PLAN, rebalanced)[1] < 0.9 * ratios(WRONG_PLAN, paced)[1]


def test_equal_seeds_give_equal_ratios() -> None:
    law = replace(LAWS["full"], error=0.4)
    assert ratios(CLOUDS, law) == ratios(CLOUDS, law)


def test_parity_chunks_replace_any_others() -> None:
    _, warm, _ = ratios(HOME_AND_OFFICES, LAWS["full-parity"])
    assert 1.0 < warm < 1.12


def test_the_publisher_follows_the_shares() -> None:
    choice = TreeChoice([0.75, 0.25], [3.0, 1.0], [0.1, 0.1], 0.0, by_completion=False)
    for chunk in range(100):
        tree = choice.choose([0, 1], 100 - chunk, 0.0)
        assert tree is not None
        choice.sent(chunk, tree)
    assert [*choice.tree_of.values()].count(0) == 75


def test_the_publisher_gives_the_last_chunks_to_no_tree_that_would_end_after_all_others() -> None:
    choice = TreeChoice([0.5, 0.5], [10.0, 10.0], [0.1, 5.0], 0.0, by_completion=True)
    assert choice.choose([1], left=1000, now=0.0) == 1
    assert choice.choose([1], left=10, now=0.0) is None
    assert choice.choose([0, 1], left=10, now=0.0) == 0


def test_the_publisher_avoids_a_tree_that_completes_nothing() -> None:
    choice = TreeChoice([0.5, 0.5], [10.0, 10.0], [0.1, 0.1], 0.0, by_completion=True)
    for chunk in range(20):
        choice.sent(chunk, chunk % 2)
        if chunk % 2:
            choice.completed(chunk, 0.1 * chunk)
    assert choice.choose([0, 1], left=100, now=2.0) == 1
