"""Real nodes measure an emulated WAN within their probe budgets."""

import pytest
from emulator_parts import needs_networks

from p2psync.bench.probing import ProbeLine, compare, watch
from p2psync.swarm.control.config import ProbeConfig
from p2psync.topology.emulator import Emulator
from p2psync.topology.model import Link, Region, Topology

pytestmark = [pytest.mark.root, needs_networks]

WAN = Topology("a-0", {"a": Region(2, 60), "b": Region(2, 40), "c": Region(1, 20)}, [
    Link(("a", "b"), 30, 20, 0.001),
    Link(("a", "c"), 20, 60),
    Link(("b", "c"), 10, 35, 0.002),
])  # fmt: skip


def wrong(lines: list[ProbeLine]) -> list[ProbeLine]:
    """Figures that are off by a fifth, and round trips by some ms. Downlinks show only where others fill them.

    Uplinks, which must be filled by several paths at once, are found last: half of one will do.
    """
    rates = [line for line in lines if line.what.endswith(" sent") and abs(line.error) > 0.2]
    rates += [line for line in lines if line.what.endswith(" up") and not -0.5 < line.error < 0.2]
    trips = [line for line in lines if "rtt" in line.what and not line.truth - 3 < line.found < line.truth + 5]
    return rates + trips


def test_real_nodes_find_rates_and_round_trips_within_their_budgets() -> None:
    with Emulator(WAN, congestion="bbr", seed=5) as network:
        # On a busy machine some early probes fail.
        for states in watch(network, WAN, 90, "auto"):
            lines = compare(states, WAN)
            if len(lines) == 2 * 5 + 6 * 5 and not wrong(lines):
                break
    assert wrong(lines) == []
    most = ProbeConfig().initial_bytes
    for state in states.values():
        assert 0 < state.padding_sent < most
        assert 0 < state.padding_received < most
