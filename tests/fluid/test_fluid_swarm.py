"""Swarms on a fluid network: near the bound, under churn, and reproducible."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from p2psync.topology.draw import draw_topology
from p2psync.topology.fluid.churn import spare_hosts
from p2psync.topology.fluid.report import SwarmFigures, simulate
from p2psync.topology.fluid.swarm import FluidOptions, FluidSwarm, NotConvergedError
from p2psync.topology.fluid.trace import STEPS, Trace
from p2psync.topology.network import Network, from_topology

SMALL = FluidOptions(payload_bytes=24 << 20, chunk_bytes=128 << 10, samples_every=0.1)


def drawn(actors: int, regions: int, seed: int = 1) -> Network:
    return from_topology(draw_topology(actors + 1, regions, seed=seed))


@pytest.fixture(scope="module")
def run() -> tuple[SwarmFigures, Trace]:
    """60 actors, once."""
    return simulate(drawn(60, 5), SMALL)


def test_all_nodes_finish_near_the_bound_and_the_trainer_sends_one_copy(run: tuple[SwarmFigures, Trace]) -> None:
    figures, _ = run
    (version,) = figures.versions
    assert figures.unfinished == 0
    assert (version.receivers, version.missed) == (60, 0)
    assert version.ratio is not None and 1 < version.ratio < 1.16
    assert 0.99 < figures.trainer_copies < 1.01
    assert figures.copies_into < 1.12
    assert figures.wasted < 0.004
    assert figures.bans == 0


@pytest.mark.parametrize("seed", [2, 4])
def test_queues_stay_short_while_hundreds_of_haves_arrive(seed: int) -> None:
    figures, _ = simulate(drawn(300, 15, seed), replace(SMALL, payload_bytes=64 << 20, chunk_bytes=256 << 10))
    (version,) = figures.versions
    assert version.missed == 0
    assert version.ratio is not None and version.ratio < 1.24
    assert figures.wasted < 0.01


def test_the_trace_records_each_nodes_and_regions_progress(run: tuple[SwarmFigures, Trace]) -> None:
    figures, trace = run
    held: dict[str, list[int]] = {}
    times = []
    for when, node, version, nbytes in trace.points:
        assert version == 1
        held.setdefault(node, []).append(nbytes)
        times.append(when)
    assert times == sorted(times)
    assert all(len(steps) == STEPS and steps == sorted(steps) and steps[-1] == 24 << 20 for steps in held.values())
    assert len(held) == 60
    for a in range(5):
        progress = [sample.progress[a] for sample in figures.samples]
        assert progress == sorted(progress) and progress[-1] == 1
    assert 0 < max(sample.busiest for sample in figures.samples) <= 1.3
    assert sum(link.copies for link in figures.links) >= 4


def test_the_same_seed_gives_the_same_trace_and_another_one_does_not() -> None:
    network = drawn(30, 3)
    options = replace(SMALL, payload_bytes=8 << 20, versions=2, every=2.0)
    found = [simulate(network, replace(options, seed=seed), churn=10.0) for seed in (5, 5, 6)]
    same = [
        msgspec.structs.replace(figures, cpu=0.0, cpu_per_actor=0.0, planning=[], plan=None) for figures, _ in found
    ]
    assert same[0] == same[1]
    assert found[0][1].points == found[1][1].points
    assert same[0].trace != same[2].trace


def test_a_seed_replays_in_another_process_with_another_hash_seed() -> None:
    code = (
        "from tests.fluid.test_fluid_swarm import *\n"
        "options = replace(SMALL, payload_bytes=2 << 20, versions=2, every=1.0)\n"
        "print(simulate(drawn(20, 2), options, churn=20.0)[0].trace)"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(traces) == 1


def test_all_live_nodes_converge_under_churn() -> None:
    # Six tenths of the nodes leave per minute, and several plans are made.
    network = drawn(66, 4)
    idle_hosts = spare_hosts(network.names, network.names[network.trainer], 6, 3)
    options = replace(SMALL, payload_bytes=16 << 20, versions=4, every=3.0)
    wasted = []
    for seed in range(3, 6):
        figures, trace = simulate(network, replace(options, seed=seed), churn=0.6, idle_hosts=idle_hosts)
        check_churned(figures, trace, network)
        wasted.append(figures.wasted)
    # A node that lost a parent requests chunks from others that may still be in flight.
    assert sum(wasted) / len(wasted) < 0.05


def check_churned(figures: SwarmFigures, trace: Trace, network: Network) -> None:
    assert figures.churned is not None
    assert figures.churned.left >= 4 and figures.churned.joined >= 4
    assert len(figures.planning) > 4
    assert figures.unfinished == 0
    assert all(version.missed == 0 for version in figures.versions)
    assert trace.finished[4].keys() >= {name for name in network.names if name in trace.finished[3]}


def test_without_a_plan_all_chunks_are_pulled() -> None:
    figures, _ = simulate(drawn(30, 3), replace(SMALL, payload_bytes=8 << 20, planned=False))
    assert figures.plan is None and figures.planning == []
    assert figures.unfinished == 0


def test_a_joining_node_fetches_the_newest_payload() -> None:
    network = drawn(20, 2)
    idle_hosts = frozenset(network.names[-1:])
    swarm = FluidSwarm(network, replace(SMALL, payload_bytes=8 << 20), idle_hosts)
    swarm.start()
    swarm.clock.at(3.0, swarm.join, network.names[-1])
    swarm.run()
    swarm.churning = False
    before = swarm.trace.finished[1].copy()
    assert network.names[-1] not in before
    swarm.clock.run(20.0, lambda: False)
    assert network.names[-1] in swarm.trace.finished[1]
    # The next plan includes it.
    assert swarm.hub.plan is not None and network.names[-1] in swarm.hub.plan.names
    assert swarm.live[network.names[-1]].plan is not None


def test_unfinished_nodes_are_named() -> None:
    swarm = FluidSwarm(drawn(10, 2), replace(SMALL, limit=0.5))
    swarm.start()
    swarm.run()
    with pytest.raises(NotConvergedError, match="10 nodes did not get"):
        swarm.check()


def test_the_trace_is_written_as_csv(run: tuple[SwarmFigures, Trace], tmp_path: Path) -> None:
    run[1].write(tmp_path / "trace.csv")
    lines = (tmp_path / "trace.csv").read_text().splitlines()
    assert lines[0] == "seconds,node,version,bytes"
    assert len(lines) == 1 + 60 * STEPS
    assert math.isclose(float(lines[1].split(",")[0]), run[1].points[0][0])


def test_all_nodes_finish_near_the_bound_when_all_uplinks_bind() -> None:
    network = from_topology(draw_topology(121, 20, seed=1, trainer_rate=1000.0))
    figures, _ = simulate(network, replace(SMALL, payload_bytes=48 << 20))
    assert "uplinks" in figures.because
    assert figures.plan is not None and figures.plan.rate > 0.94 * figures.bound_rate
    assert figures.plan.depth <= 12
    (version,) = figures.versions
    assert version.ratio is not None and version.ratio < 1.48
