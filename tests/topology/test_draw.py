"""Networks drawn by seed."""

from __future__ import annotations

import pytest

from p2psync.errors import UsageError
from p2psync.topology.draw import draw_topology
from p2psync.topology.network import from_topology
from p2psync.topology.planner import make_plan


def test_a_seed_gives_one_network() -> None:
    assert draw_topology(40, 4, seed=2) == draw_topology(40, 4, seed=2)
    assert draw_topology(40, 4, seed=2) != draw_topology(40, 4, seed=3)


@pytest.mark.parametrize(("hosts", "regions"), [(2, 1), (2, 2), (40, 4), (300, 50)])
def test_it_is_a_whole_network_that_can_be_planned(hosts: int, regions: int) -> None:
    topology = draw_topology(hosts, regions, seed=1)
    topology.check()
    network = from_topology(topology)
    assert network.size == hosts
    assert len(network.regions) == regions
    assert network.dialable[network.trainer]
    assert network.reachable().all()
    assert make_plan(network).ratio > 0.85


def test_some_hosts_can_only_dial_out() -> None:
    network = from_topology(draw_topology(1000, 10, seed=1, hidden=0.3))
    assert 0.25 < (~network.dialable).mean() < 0.35
    assert from_topology(draw_topology(100, 10, seed=1, hidden=0.0)).dialable.all()


@pytest.mark.parametrize(("hosts", "regions"), [(1, 1), (5, 6), (5, 0), (200_000, 3)])
def test_impossible_sizes_of_a_drawn_network_are_refused(hosts: int, regions: int) -> None:
    with pytest.raises(UsageError, match="hosts in"):
        draw_topology(hosts, regions)
