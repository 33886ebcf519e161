"""Real nodes on an emulated WAN find out what it is, within their budgets."""

import pytest
from emulator_parts import needs_networks

from bench.probing import compare, measure
from p2psync.swarm.budget import ProbeConfig
from topology.emulator import Emulator
from topology.model import Link, Region, Topology

pytestmark = [pytest.mark.root, needs_networks]

WAN = Topology("a-0", {"a": Region(2, 60), "b": Region(2, 40), "c": Region(1, 30)}, [
    Link(("a", "b"), 30, 20, 0.001),
    Link(("a", "c"), 20, 60),
    Link(("b", "c"), 10, 35, 0.002),
])  # fmt: skip


def test_real_nodes_find_rates_and_round_trips_within_their_budgets() -> None:
    with Emulator(WAN, congestion="bbr", seed=5) as network:
        states = measure(network, WAN, 30, "auto")
    lines = compare(states, WAN)
    assert len(lines) == 2 * 5 + 6 * 5
    for line in lines:
        if line.what.endswith("sent"):
            assert line.found == pytest.approx(line.truth, rel=0.2), line
        if line.what.endswith(" up"):
            assert line.found == pytest.approx(line.truth, rel=0.2), line
        if line.what.endswith("rtt, least") or line.what.endswith("rtt, most"):
            assert line.truth - 1 < line.found < line.truth + 5, line
    most = ProbeConfig().allowance
    for state in states.values():
        assert 0 < state.junk_sent < most
        assert 0 < state.junk_received < most
