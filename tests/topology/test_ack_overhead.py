"""The share of uplinks that acknowledgements take."""

from __future__ import annotations

import pytest

from p2psync.topology.ack_overhead import ACK_BYTES_PER_BYTE, without_ack_overhead
from p2psync.topology.model import Host, Region, Topology
from p2psync.topology.network import from_topology
from p2psync.topology.planner import make_plan


def test_acknowledgements_reduce_an_uplink() -> None:
    network = from_topology(Topology("a-0", {"a": Region(9, 20, 300)}, host={"a-0": Host(up=400), "a-3": Host(up=5)}))
    left = without_ack_overhead(network)
    rate = (400 + 7 * 20 + 5) / 8
    assert left.up[network.names.index("a-1")] == pytest.approx(20 - ACK_BYTES_PER_BYTE * rate)
    assert left.up[network.names.index("a-3")] == pytest.approx(5 - ACK_BYTES_PER_BYTE * rate)
    assert left.up[network.trainer] == 400  # to whom nothing comes


def test_a_slow_receiver_acknowledges_little() -> None:
    network = from_topology(Topology("a-0", {"a": Region(4, 100)}, host={"a-1": Host(down=10), "a-2": Host(up=0.5)}))
    left = without_ack_overhead(network)
    assert left.up[1] == pytest.approx(100 - ACK_BYTES_PER_BYTE * 10)
    assert left.up[2] == pytest.approx(0.05)  # acknowledging would take more than there is


def test_a_plan_leaves_slow_uplinks_capacity_for_acknowledgements() -> None:
    network = from_topology(Topology("a-0", {"a": Region(9, 20, 300)}, host={"a-0": Host(up=400), "a-3": Host(up=5)}))
    plan = make_plan(without_ack_overhead(network))
    thin = plan.names.index("a-3")
    assert plan.egress(thin) * plan.rate + ACK_BYTES_PER_BYTE * plan.lowest_rate <= 5 * (1 + 1e-6)
    assert plan.lowest_rate > 0.97 * make_plan(network).lowest_rate
