"""Whole nodes over virtual TCP: they measure a drawn network, plan from what they measured, and exchange versions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from p2psync.swarm.control.config import MeasureConfig
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.topology.drawn_report import network_line, summarize_runs
from p2psync.topology.model import Host, Link, Region, Topology
from p2psync.topology.network import from_topology
from p2psync.topology.planner import make_plan
from p2psync.topology.virtual.node import NodeSettings
from p2psync.topology.virtual.policies import MECHANISMS, POLICIES, chosen_policies, policy_named
from p2psync.topology.virtual.report import SimulatedRun, simulate_drawn, simulate_seed, simulation_line
from p2psync.topology.virtual.swarm import VirtualOptions, VirtualSwarm

QUICK = VirtualOptions(payload_bytes=4 << 20, chunk_bytes=64 << 10, versions=2, settle=12.0, limit=60.0)
#: An office with a trainer and a machine far away.
SEED, HOSTS = 1, 4


@pytest.fixture(scope="module")
def drawn() -> SimulatedRun:
    return simulate_seed(SEED, QUICK, hosts=HOSTS)


def test_nodes_measure_a_drawn_network_and_each_version_reaches_all_of_them(drawn: SimulatedRun) -> None:
    versions = drawn.results["default"]
    assert drawn.network.nodes == 3 and len(versions) == 2
    assert all(version.ratio is not None and 1.0 <= version.ratio < 6.0 for version in versions)
    assert versions[0].plan is not None and 0.3 < versions[0].plan < 1.3
    figures = drawn.simulations["default"]
    assert figures.plans > 0 and figures.bans == 0
    assert 0 < figures.probed < 1 << 30


def test_a_version_says_when_its_first_chunk_came_and_how_long_its_last_ones_took(drawn: SimulatedRun) -> None:
    for version in drawn.results["default"]:
        assert version.seconds is not None and version.start is not None and version.tail is not None
        assert version.start >= drawn.network.longest_rtt / 2
        assert 0 <= version.tail < version.seconds - version.start
        assert version.copies is not None and 1.0 <= version.copies <= drawn.network.nodes - 1
        assert version.seconds == pytest.approx(drawn.network.bound * (version.ratio or 0))


def test_equal_seeds_give_equal_traces(drawn: SimulatedRun) -> None:
    (again,) = simulate_drawn(range(SEED, SEED + 1), QUICK, hosts=HOSTS)
    assert again.results == drawn.results
    assert again.simulations["default"].trace == drawn.simulations["default"].trace
    assert summarize_runs([again]).worst in drawn.results["default"]
    assert network_line(drawn)[0] == f"seed {SEED}"
    assert simulation_line(drawn).startswith("probed ")


def test_each_policy_changes_what_it_names_and_nothing_else() -> None:
    plain = VirtualOptions()
    changed = {name: policy.change(plain) for name, policy in POLICIES.items()}
    assert changed["default"] == plain
    assert changed["no-probing"] == replace(plain, node=NodeSettings(measure=MeasureConfig(probe=False)))
    assert changed["one-stream"] == replace(plain, node=NodeSettings(streams=1))
    assert changed["true-plan"] == replace(plain, plan="true")
    assert changed["no-plan"] == replace(plain, plan="none")
    assert changed["no-repair"] == replace(plain, node=NodeSettings(swarm=ExchangeConfig(short_wait=math.inf)))
    assert changed["no-free-parents"] == replace(plain, node=NodeSettings(swarm=ExchangeConfig(held_for=math.inf)))
    assert set(changed) - set(MECHANISMS) == {"default", "no-probing", "one-stream", "true-plan", "no-plan"}


def test_policies_with_a_plus_between_them_act_together() -> None:
    both = policy_named("no-repair+true-plan").change(VirtualOptions())
    assert both == VirtualOptions(plan="true", node=NodeSettings(swarm=ExchangeConfig(short_wait=math.inf)))
    assert chosen_policies("no-plan, no-repair+no-plan", MECHANISMS) == ["no-plan", "no-repair+no-plan"]
    assert chosen_policies("all", MECHANISMS) == list(MECHANISMS)


def test_policies_are_run_side_by_side_on_one_network(drawn: SimulatedRun) -> None:
    options = replace(QUICK, versions=1)
    names = ["default", "no-repair", "no-probing", "true-plan", "no-plan"]
    run = simulate_seed(SEED, options, hosts=HOSTS, policies=names)
    assert list(run.results) == names and run.network == drawn.network
    assert run.results["default"] == drawn.results["default"][:1]
    assert run.simulations["no-probing"].probed == 0 < run.simulations["default"].probed
    (unplanned,), (planned,) = run.results["no-plan"], run.results["true-plan"]
    assert unplanned.plan is None and unplanned.seconds is not None and run.simulations["no-plan"].plans == 0
    assert planned.plan is not None and planned.plan > 0.9


def test_true_plans_are_made_for_the_network_as_it_is() -> None:
    topology = network(20.0)
    swarm = VirtualSwarm(from_topology(topology), VirtualOptions(versions=0, settle=5.0, plan="true"))
    swarm.run()
    assert swarm.hub.plan is not None
    assert swarm.hub.plan.lowest_rate == pytest.approx(make_plan(swarm.network).lowest_rate, rel=0.05)


def test_with_one_stream_nodes_keep_one_connection_to_each_peer() -> None:
    options = VirtualOptions(versions=0, settle=5.0, node=NodeSettings(streams=1))
    swarm = VirtualSwarm(from_topology(network(20.0)), options)
    swarm.run()
    for node in swarm.nodes.values():
        assert [len(links.streams) for links in node.connections.links.values()] == [1, 1]


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
    assert all(node.swarm.statistics.received_bytes == 0 for node in swarm.nodes.values())
