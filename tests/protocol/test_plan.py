"""A node's plan: positions, rates, and what a receiver refuses."""

from __future__ import annotations

import msgspec
import pytest

from p2psync.errors import FormatError
from p2psync.protocol.plan import NodePlan, TreePosition
from tests.plan_fractions import fractions_from, fractions_to

PLAN = NodePlan(
    3,
    ["x", "y", "z"],
    [600, 400],
    [TreePosition(0, [1, 2], 1, 60.0), TreePosition(1, [], 2, 40.0)],
)


def test_fractions_follow_from_places() -> None:
    assert fractions_from(PLAN) == {"x": 0.6, "y": 0.4}
    assert fractions_to(PLAN) == {"y": 0.6, "z": 0.6}
    assert PLAN.rates_from() == {"x": 60.0, "y": 40.0}
    assert PLAN.rates_to() == {"y": 60.0, "z": 60.0}


def test_limits_to_children_are_planned_rate_times_headroom() -> None:
    assert PLAN.limits_to() == {}, "the plan does not say"
    assert msgspec.structs.replace(PLAN, headroom=[1.0, 1.5, 2.0]).limits_to() == {"y": 90.0, "z": 120.0}
    assert msgspec.structs.replace(PLAN, headroom=[1.0, 1.5]).limits_to() == {"y": 90.0}


def test_plan_is_small_and_round_trips() -> None:
    wire = msgspec.msgpack.encode(PLAN)
    assert len(wire) < 60
    assert msgspec.msgpack.decode(wire, type=NodePlan) == PLAN


@pytest.mark.parametrize(
    "wrong",
    [
        NodePlan(0, ["x"], [], []),
        NodePlan(0, ["x"], [1], []),
        NodePlan(0, ["x"], [0], [TreePosition(0, [], 1, 1.0)]),
        NodePlan(0, ["x"], [1], [TreePosition(1, [], 1, 1.0)]),
        NodePlan(0, ["x"], [1], [TreePosition(-2, [], 1, 1.0)]),
        NodePlan(0, ["x"], [1], [TreePosition(0, [7], 1, 1.0)]),
        NodePlan(0, ["x"], [1] * 300, [TreePosition(0, [], 1, 1.0)] * 300),
        NodePlan(0, ["x"], [1], [TreePosition(0, [0] * 2000, 1, 1.0)]),
        NodePlan(0, ["x"], [1], [TreePosition(0, [], 1, 1.0)], headroom=[1.0, 1.0]),
        NodePlan(0, ["x"], [1], [TreePosition(0, [], 1, 1.0)], headroom=[0.0]),
        NodePlan(0, ["x"], [1], [TreePosition(0, [], 1, 1.0)], headroom=[float("nan")]),
        NodePlan(0, ["x"], [1], [TreePosition(0, [], 1, 1.0)], headroom=[1e300]),
        NodePlan(0, ["x"], [1], [TreePosition(0, [], 1, 1e300)]),
        NodePlan(0, ["x"], [1], [TreePosition(0, [], 1, -1.0)]),
    ],
)
def test_inconsistent_plan_is_refused(wrong: NodePlan) -> None:
    with pytest.raises(FormatError):
        wrong.check()
