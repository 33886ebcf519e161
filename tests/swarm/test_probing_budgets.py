"""Budgets of bytes, and when a flow is steady."""

from __future__ import annotations

import pytest
from probing_parts import CONFIG

from p2psync.swarm.control.probe_budget import ConvergenceDetector, ProbeBudget


def test_a_budget_fills_to_a_minutes_share_and_no_further() -> None:
    budget = ProbeBudget(CONFIG)
    rate = 1.25e6
    assert budget.available(rate, 0.0, is_measured=True) == CONFIG.initial_seconds * rate
    budget.spend(int(CONFIG.initial_seconds * rate))
    assert budget.available(rate, 0.0, is_measured=True) == 0
    assert budget.available(rate, 10.0, is_measured=True) == pytest.approx(0.01 * rate * 10, rel=0.01)
    assert budget.available(rate, 1e6, is_measured=True) == pytest.approx(0.01 * rate * 60, rel=0.01)


def test_a_flow_that_still_grows_is_not_steady() -> None:
    steady, total = ConvergenceDetector(0.1), 0.0
    for tick in range(40):
        now = tick * 0.1
        total += min(1e6, 2e4 * 2 ** (now / 0.2)) * 0.1
        if steady.has_converged(int(total), now):
            break
    # It doubles for 1.1 s and is flat from then on.
    assert 1.4 <= now <= 2.6
