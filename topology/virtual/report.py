"""The results of swarms on drawn networks over virtual TCP: the report of `p2psync sim swarm --draw`."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

import msgspec

from p2psync.errors import UsageError
from p2psync.topology.bound import broadcast_bound, least_makespan
from p2psync.topology.fluid.trace import quantile
from p2psync.topology.network import from_topology
from p2psync.topology.places import draw_places
from p2psync.topology.virtual.swarm import VirtualOptions, VirtualSwarm


class DrawnVersion(msgspec.Struct, frozen=True):
    """One version. ratio: the last node's seconds as a multiple of the bound; None: not every node got it in time.

    plan: the measured plan's rate when it was published, as a share of the bound; 0: there was no plan.
    """

    ratio: float | None
    last: float | None
    plan: float


class DrawnFigures(msgspec.Struct, frozen=True):
    """One drawn network. bound_rate: Mbit/s. bound, longest_rtt: seconds. loss: the most that a link loses.

    probed: bytes of probe padding that all nodes sent. trace: a fingerprint of all events, equal for equal seeds.
    """

    seed: int
    nodes: int
    places: list[str]
    longest_rtt: float
    loss: float
    bound_rate: float
    bound: float
    versions: list[DrawnVersion]
    probed: int
    plans: int
    bans: int
    events: int
    cpu: float
    trace: str


class DrawnSummary(msgspec.Struct, frozen=True):
    """All networks. Ratios: of all versions together; inf: some node did not get one in time."""

    payload_bytes: int
    settle: float
    median: float
    p90: float
    worst: float
    networks: list[DrawnFigures]


def simulate_drawn(
    seeds: range,
    options: VirtualOptions,
    *,
    hosts: int = 12,
    on_figures: Callable[[DrawnFigures], None] = lambda figures: None,
) -> DrawnSummary:
    """Runs a swarm on the network of each seed. Equal arguments give equal figures, except CPU seconds.

    on_figures: told of each network as soon as it is done. Raises `UsageError`.
    """
    networks = []
    for seed in seeds:
        networks.append(simulate_seed(seed, options, hosts))
        on_figures(networks[-1])
    ratios = sorted(
        float("inf") if version.ratio is None else version.ratio for one in networks for version in one.versions
    )
    median, p90 = quantile(ratios, 0.5), quantile(ratios, 0.9)
    if median is None or p90 is None:
        raise UsageError("no network was simulated: give at least one seed and one version")
    return DrawnSummary(options.payload_bytes, options.settle, median, p90, ratios[-1], networks)


def simulate_seed(seed: int, options: VirtualOptions, hosts: int = 12) -> DrawnFigures:
    """Runs a swarm on the network that `draw_places` draws from this seed."""
    network = from_topology(draw_places(seed, hosts=hosts))
    swarm = VirtualSwarm(network, replace(options, seed=seed))
    # Looking for cycles among so many events costs a tenth of the time.
    gc.disable()
    try:
        swarm.run()
    finally:
        gc.enable()
    rate, least = broadcast_bound(network).rate, least_makespan(network, options.payload_bytes)
    versions = []
    for version in swarm.versions:
        has_all = len(version.finished) == network.size - 1
        last = max(version.finished.values()) if has_all else None
        versions.append(DrawnVersion(last / least if last is not None else None, last, version.plan_rate / rate))
    return DrawnFigures(
        seed=seed,
        nodes=network.size,
        places=list(network.regions),
        longest_rtt=2 * float(network.delay.max()),
        loss=float(network.loss.max()),
        bound_rate=rate,
        bound=least,
        versions=versions,
        probed=swarm.probed_bytes,
        plans=swarm.hub.changed_plans,
        bans=len(swarm.bans),
        events=swarm.clock.events,
        cpu=swarm.cpu,
        trace=swarm.clock.trace,
    )


def seed_line(figures: DrawnFigures) -> tuple[str, str]:
    """Returns one network's figures as (label, text)."""
    versions = ", ".join(
        f"{'unfinished' if version.ratio is None else f'{version.ratio:.2f}'} (plan {100 * version.plan:.0f} %)"
        for version in figures.versions
    )
    text = (
        f"{figures.nodes} nodes: {' '.join(figures.places)}; up to {1000 * figures.longest_rtt:.0f} ms, "
        f"{100 * figures.loss:.1f} % loss; bound {figures.bound_rate:.1f} Mbit/s, {figures.bound:.1f} s; "
        f"× the bound: {versions}; probed {figures.probed / 1e6:.0f} MB; {figures.cpu:.0f} CPU s"
    )
    return f"seed {figures.seed}", text


def summary_lines(summary: DrawnSummary) -> list[tuple[str, str]]:
    """Returns the figures of all networks as (label, text)."""
    text = f"median {summary.median:.2f}, p90 {summary.p90:.2f}, worst {summary.worst:.2f} × the bound"
    return [("all", f"{text}; {len(summary.networks)} networks, {summary.settle:.0f} s of measuring")]
