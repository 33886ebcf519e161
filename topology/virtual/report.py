"""The results of swarms on drawn networks over virtual TCP: the report of `p2psync sim swarm --draw`."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from p2psync.topology.drawn_report import DrawnNetwork, DrawnRun, Transfer, drawn_network, tail_seconds, transfer
from p2psync.topology.network import Network, from_topology
from p2psync.topology.places import draw_places
from p2psync.topology.virtual.policies import policy_named
from p2psync.topology.virtual.swarm import VersionRun, VirtualOptions, VirtualSwarm


class SimulationFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation. probed: bytes of probe padding that all nodes sent. plans: that changed anything. cpu: seconds.

    trace: a fingerprint of all events, equal for equal seeds.
    """

    probed: int
    plans: int
    bans: int
    events: int
    cpu: float
    trace: str


class SimulatedRun(DrawnRun, frozen=True, kw_only=True):
    """One drawn network. simulations: by policy, as in `results`, which has a transfer for each version."""

    simulations: dict[str, SimulationFigures]


def simulate_drawn(
    seeds: range, options: VirtualOptions, *, hosts: int = 12, policies: Sequence[str] = ("default",)
) -> Iterator[SimulatedRun]:
    """Runs a swarm on the network of each seed, under each of these policies (names for `policy_named`).

    Equal arguments give equal figures, except CPU seconds. Raises `UsageError`.
    """
    for seed in seeds:
        yield simulate_seed(seed, options, hosts=hosts, policies=policies)


def simulate_seed(
    seed: int, options: VirtualOptions, *, hosts: int = 12, policies: Sequence[str] = ("default",)
) -> SimulatedRun:
    """Runs a swarm on the network that `draw_places` draws from this seed. See `simulate_drawn`."""
    network = from_topology(draw_places(seed, hosts=hosts))
    facts = drawn_network(seed, network, options.payload_bytes)
    results, simulations = {}, {}
    for name in policies:
        swarm = _simulate(network, policy_named(name).change(replace(options, seed=seed)))
        results[name] = [_transfer(swarm, version, facts) for version in swarm.versions]
        simulations[name] = _figures(swarm)
    return SimulatedRun(tcp="virtual", network=facts, settle=options.settle, results=results, simulations=simulations)


def _simulate(network: Network, options: VirtualOptions) -> VirtualSwarm:
    swarm = VirtualSwarm(network, options)
    # Looking for cycles among so many events costs a tenth of the time.
    gc.disable()
    try:
        swarm.run()
    finally:
        gc.enable()
    return swarm


def _transfer(swarm: VirtualSwarm, version: VersionRun, facts: DrawnNetwork) -> Transfer:
    receivers, payload = facts.nodes - 1, swarm.payload_bytes
    return transfer(
        facts,
        max(version.finished.values()) if len(version.finished) == receivers else None,
        plan_rate=version.plan_rate,
        start=max(version.first.values()) if len(version.first) == receivers else None,
        tail=tail_seconds(version.delivered, receivers * payload),
        copies=swarm.sent_bytes(version) / payload,
    )


def _figures(swarm: VirtualSwarm) -> SimulationFigures:
    return SimulationFigures(
        probed=swarm.probed_bytes,
        plans=swarm.hub.changed_plans,
        bans=len(swarm.bans),
        events=swarm.clock.events,
        cpu=swarm.cpu,
        trace=swarm.clock.trace,
    )


def simulation_line(run: SimulatedRun) -> str:
    """Returns what was probed under the first policy, and what all simulations of one network cost, for people."""
    cpu = sum(one.cpu for one in run.simulations.values())
    return f"probed {run.simulations[run.subject].probed / 1e6:.0f} MB; {cpu:.0f} CPU s"
