"""Headroom: how far flows may exceed their planned rates."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from p2psync.topology.headroom import Headroom
from p2psync.topology.model import load
from p2psync.topology.network import Network, from_topology
from p2psync.topology.planner import make_plan

TWO = """
trainer = "a-0"
[region]
a = { hosts = 2, up = 1000 }
b = { hosts = 2, up = 1000 }
c = { hosts = 1, up = 1000 }
[[link]]
between = ["a", "b"]
rate = 100
delay_ms = 30
[[link]]
between = ["a", "c"]
rate = 20
delay_ms = 30
"""


@pytest.fixture
def network(tmp_path: Path) -> Network:
    file = tmp_path / "two.toml"
    file.write_text(TWO)
    return from_topology(load(file))


def across(network: Network, headroom: Headroom, to: str) -> list[float]:
    """The total rate of the plan's flows into a region."""
    plan = make_plan(network)
    region = {name: network.regions[network.region[i]] for i, name in enumerate(network.names)}
    pairs = {
        (plan.names[parent], plan.names[child])
        for row in plan.parents
        for child, parent in enumerate(row)
        if parent >= 0 and region[plan.names[child]] == to != region[plan.names[parent]]
    }
    return [headroom.of(parent, [child])[0] for parent, child in pairs]


def test_a_full_link_has_no_headroom_and_a_wide_one_its_remaining_capacity(network: Network) -> None:
    headroom = Headroom(make_plan(network), network)
    assert across(network, headroom, "c") == pytest.approx([1.0])
    assert across(network, headroom, "b") == pytest.approx([5.0] * len(across(network, headroom, "b")))


def test_an_unmeasured_link_has_unknown_headroom(network: Network) -> None:
    measured = network.measured.copy()
    a, c = network.regions.index("a"), network.regions.index("c")
    measured[a, c] = False
    unknown = replace(network, measured=measured)
    assert across(unknown, Headroom(make_plan(unknown), unknown), "c") == [math.inf]


def test_a_slow_childs_headroom_is_its_own_rate(network: Network) -> None:
    down = network.down.copy()
    slow = network.names.index("b-1")
    down[slow] = 5.0
    uneven = replace(network, down=down)
    plan = make_plan(uneven)
    assert plan.slow.keys() == {"b-1"}
    parents = {plan.names[p] for p in plan.parents[:, plan.names.index("b-1")]}
    for parent in parents:
        assert Headroom(plan, uneven).of(parent, ["b-1"])[0] * plan.rate <= 5.0 + 1e-6


def test_a_shared_uplink_gives_each_child_all_its_headroom(network: Network) -> None:
    tight = replace(network, up=np.full(network.size, 40.0))
    plan = make_plan(tight)
    headroom = Headroom(plan, tight)
    i = plan.trainer
    load = plan.rate * plan.egress(i)
    children = [plan.names[c] for c in np.flatnonzero((plan.parents == i).any(axis=0))]
    assert max(headroom.of(plan.names[i], children)) <= 40.0 / load + 1e-6
