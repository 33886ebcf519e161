"""Whole nodes over virtual TCP: they measure a drawn network, plan from what they measured, and exchange versions."""

from __future__ import annotations

import pytest

from p2psync.errors import UsageError
from p2psync.topology.model import Host, Link, Region, Topology
from p2psync.topology.network import from_topology
from p2psync.topology.virtual.payload import make_payload
from p2psync.topology.virtual.report import DrawnFigures, seed_line, simulate_drawn, simulate_seed, summary_lines
from p2psync.topology.virtual.swarm import VirtualOptions, VirtualSwarm

QUICK = VirtualOptions(payload_bytes=4 << 20, chunk_bytes=64 << 10, versions=2, settle=12.0, limit=60.0)
#: An office with a trainer and a machine far away.
SEED, HOSTS = 1, 4


@pytest.fixture(scope="module")
def drawn() -> DrawnFigures:
    return simulate_seed(SEED, QUICK, HOSTS)


def test_nodes_measure_a_drawn_network_and_each_version_reaches_all_of_them(drawn: DrawnFigures) -> None:
    assert drawn.nodes == 3 and len(drawn.versions) == 2
    assert all(version.ratio is not None and 1.0 <= version.ratio < 6.0 for version in drawn.versions)
    assert 0.3 < drawn.versions[0].plan < 1.3
    assert drawn.plans > 0 and drawn.bans == 0
    assert 0 < drawn.probed < 1 << 30


def test_equal_seeds_give_equal_traces_and_a_report_gives_median_and_worst(drawn: DrawnFigures) -> None:
    told: list[DrawnFigures] = []
    # The second run of this seed.
    summary = simulate_drawn(range(SEED, SEED + 1), QUICK, hosts=HOSTS, on_figures=told.append)
    assert [(figures.trace, figures.events, figures.versions) for figures in told] == [
        (drawn.trace, drawn.events, drawn.versions)
    ]
    ratios = [version.ratio for version in drawn.versions]
    assert summary.worst == max(ratio for ratio in ratios if ratio is not None)
    assert summary.median <= summary.p90 <= summary.worst
    assert "× the bound" in summary_lines(summary)[0][1]
    assert seed_line(drawn)[0] == f"seed {SEED}"


def network(delay_ms: float, rate: float = 40.0) -> Topology:
    return Topology(
        "a-0",
        {"a": Region(2, 80), "b": Region(1, 80)},
        [Link(("a", "b"), rate, delay_ms)],
        {"b-0": Host(20, 80, False)},
    )


def measured(topology: Topology, settle: float) -> VirtualSwarm:
    swarm = VirtualSwarm(from_topology(topology), VirtualOptions(payload_bytes=1 << 20, versions=0, settle=settle))
    swarm.run()
    return swarm


def test_measured_rates_and_round_trips_are_those_of_the_network() -> None:
    swarm = measured(network(20.0), 25.0)
    paths = {path.peer: path for path in swarm.hub.statistics["a-0"].paths}
    assert paths["b-0"].rtt == pytest.approx(0.0402, abs=0.002)
    sent = max(path.sent for name in ("a-0", "a-1") for path in swarm.hub.statistics[name].paths if path.peer == "b-0")
    assert sent == pytest.approx(40.0, rel=0.15)
    assert swarm.hub.statistics["b-0"].up == pytest.approx(20.0, rel=0.15)
    assert swarm.hub.plan is not None
    assert swarm.hub.plan.rate == pytest.approx(40.0, rel=0.3)


def test_without_versions_nothing_but_measuring_flows_and_another_seed_has_another_course() -> None:
    swarm = measured(network(20.0), 5.0)
    other = VirtualSwarm(swarm.network, VirtualOptions(payload_bytes=1 << 20, versions=0, settle=5.0, seed=1))
    other.run()
    assert other.clock.events != swarm.clock.events
    assert swarm.probed_bytes > 0
    assert all(node.swarm.received_bytes == 0 for node in swarm.nodes.values())


def test_a_payload_has_all_its_bytes_in_chunks_and_impossible_sizes_are_refused() -> None:
    payload = make_payload(100_000, 30_000)
    assert payload.manifest.sizes == [30_000, 30_000, 30_000, 10_000]
    assert payload.nbytes == 100_000
    assert all(payload.manifest.verify_chunk(i, chunk) for i, chunk in enumerate(payload.chunks))
    with pytest.raises(UsageError, match="at least one"):
        make_payload(10, 100)
    with pytest.raises(UsageError, match="choose larger"):
        make_payload(64 << 20, 8)
