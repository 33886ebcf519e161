"""The results of a simulated swarm: the report of `p2psync sim swarm`."""

from __future__ import annotations

import time

import msgspec

from p2psync.topology.bound import broadcast_bound, least_makespan
from p2psync.topology.fluid.churn import Churn
from p2psync.topology.fluid.payload import SCALE
from p2psync.topology.fluid.servers import HEADER_FACTOR
from p2psync.topology.fluid.swarm import FluidOptions, FluidSwarm
from p2psync.topology.fluid.trace import Trace, quantile
from p2psync.topology.network import Network
from p2psync.topology.plan import Plan, predicted_makespan

#: Links that a report names, the busiest first.
_LINKS = 20


class FirstPlanFigures(msgspec.Struct, frozen=True):
    """The first plan. rate: Mbit/s. makespan: the planner's prediction (seconds). cpu: seconds to make it."""

    trees: int
    depth: int
    max_children: int
    rate: float
    makespan: float
    cpu: float


class VersionFigures(msgspec.Struct, frozen=True):
    """One payload. Seconds: `published` from the start, others from then on; None: nobody got it.

    receivers: nodes that lived from its publication to the end. missed: those of them that never had it, because a
    later payload replaced it. ratio: `last` as a multiple of the bound.
    """

    version: int
    published: float
    receivers: int
    p50: float | None
    p99: float | None
    last: float | None
    ratio: float | None
    missed: int


class LinkFigures(msgspec.Struct, frozen=True):
    """A link between regions: copies of a payload that crossed it, and its utilisation."""

    name: str
    copies: float
    used: float


class ChurnFigures(msgspec.Struct, frozen=True):
    """left, joined: nodes. p50, p99, last: seconds from joining to the newest payload, of the joiners that stayed."""

    left: int
    joined: int
    p50: float | None
    p99: float | None
    last: float | None


class SampleFigures(msgspec.Struct, frozen=True):
    """One sample: see `trace.TraceSample`. busiest: the utilisation of the busiest link."""

    time: float
    version: int
    progress: list[float | None]
    busiest: float


class SwarmFigures(msgspec.Struct, frozen=True):
    """Seconds, bytes, Mbit/s. Copies are of one payload, means over all that were published.

    bound: seconds that no plan can beat, headers and churn not counted. copies_into: copies into one region over all
    links, except the trainer's region: the highest of all regions, and the mean; a region whose uplinks cannot serve
    all its nodes needs more than one. wasted: share of received bytes that were not needed. unfinished: live nodes
    without the newest payload at the end. cpu: of the run, without planning. planning: CPU seconds of each plan. trace:
    a fingerprint of all events, equal for equal seeds.
    """

    actors: int
    regions: int
    payload_bytes: int
    chunk_bytes: int
    seed: int
    churn: float
    bound: float
    bound_rate: float
    because: str
    plan: FirstPlanFigures | None
    versions: list[VersionFigures]
    churned: ChurnFigures | None
    unfinished: int
    trainer_copies: float
    copies_into: float
    copies_into_mean: float
    wasted: float
    bans: int
    peers: float
    seconds: float
    events: int
    messages: int
    cpu: float
    cpu_per_actor: float
    planning: list[float]
    trace: str
    region_names: list[str]
    links: list[LinkFigures]
    samples: list[SampleFigures]


def simulate(
    network: Network, options: FluidOptions, *, churn: float = 0.0, idle_hosts: frozenset[str] = frozenset()
) -> tuple[SwarmFigures, Trace]:
    """Runs a swarm. churn: share of nodes that leave, and as many that join, per minute, until the last payload is due.

    Equal arguments give equal figures, except CPU seconds. Raises `UsageError`.
    """
    swarm = FluidSwarm(network, options, idle_hosts)
    swarm.start()
    churning = Churn(swarm, churn, options.versions * options.every)
    churning.start()
    made = len(swarm.hub.planning)
    first = swarm.hub.plan
    began = time.process_time()
    swarm.run()
    cpu = time.process_time() - began - sum(swarm.hub.planning[made:])
    return _figures(swarm, churning, churn, first, cpu), swarm.trace


def _figures(swarm: FluidSwarm, churning: Churn, churn: float, first: Plan | None, cpu: float) -> SwarmFigures:
    network, options, trace = swarm.network, swarm.options, swarm.trace
    bound = broadcast_bound(network)
    least = least_makespan(network, options.payload_bytes)
    plan = None
    if first is not None:
        plan = FirstPlanFigures(
            len(first.shares),
            int(first.depth.max()),
            int(first.children.max()),
            first.lowest_rate,
            predicted_makespan(first, network, options.payload_bytes, options.chunk_bytes),
            swarm.hub.planning[0],
        )
    # Simulated bytes of all payloads.
    whole = swarm.payloads[0].nbytes * options.versions / SCALE
    received = sum(node.swarm.statistics.received_bytes for node in swarm.nodes)
    seconds = swarm.clock.now
    links = [
        LinkFigures(
            f"{network.regions[a]}→{network.regions[b]}",
            server.nbytes / HEADER_FACTOR / whole,
            server.nbytes / server.rate / seconds,
        )
        for (a, b), server in swarm.net.links.items()
    ]
    home = int(network.region[network.trainer])
    into: dict[int, float] = {}
    for (_, b), server in swarm.net.links.items():
        into[b] = into.get(b, 0.0) + (server.nbytes / HEADER_FACTOR / whole if b != home else 0.0)
    actors = len(network.names) - len(swarm.idle_hosts) - 1
    return SwarmFigures(
        actors=actors,
        regions=len(network.regions),
        payload_bytes=options.payload_bytes,
        chunk_bytes=options.chunk_bytes,
        seed=options.seed,
        churn=churn,
        bound=least,
        bound_rate=bound.rate,
        because=bound.because,
        plan=plan,
        versions=[_version(swarm, i, least) for i in range(len(swarm.payloads))],
        churned=_churned(swarm, churning) if churn else None,
        unfinished=len(swarm.unfinished),
        trainer_copies=swarm.live[swarm.trainer].swarm.statistics.sent_bytes / whole,
        copies_into=max(into.values(), default=0.0),
        copies_into_mean=sum(into.values()) / max(1, len({*network.region.tolist()}) - 1),
        wasted=sum(node.swarm.statistics.wasted_bytes for node in swarm.nodes) / max(1, received),
        bans=len(swarm.bans),
        peers=sum(len(node.pipes) for node in swarm.live.values()) / len(swarm.live),
        seconds=seconds,
        events=swarm.clock.events,
        messages=swarm.net.messages,
        cpu=cpu,
        cpu_per_actor=cpu / max(1, actors),
        planning=swarm.hub.planning,
        trace=swarm.clock.trace,
        region_names=list(network.regions),
        links=sorted(links, key=lambda link: (-link.used, link.name))[:_LINKS],
        samples=[
            SampleFigures(
                sample.time,
                sample.version,
                [None if share != share else round(share, 5) for share in sample.progress],
                max(sample.links, default=0.0),
            )
            for sample in trace.samples
        ],
    )


def _version(swarm: FluidSwarm, place: int, least: float) -> VersionFigures:
    published, receivers = swarm.published[place]
    lived = {name for name in receivers if name in swarm.live and swarm.live[name].joined <= published}
    finished = swarm.trace.finished.get(place + 1, {})
    times = [finished[name] - published for name in lived if name in finished]
    return VersionFigures(
        place + 1,
        published,
        len(lived),
        quantile(times, 0.5),
        quantile(times, 0.99),
        quantile(times, 1.0),
        max(times) / least if times else None,
        len(lived) - len(times),
    )


def _churned(swarm: FluidSwarm, churning: Churn) -> ChurnFigures:
    newest = swarm.trace.finished.get(len(swarm.payloads), {})
    published = swarm.published[-1][0]
    # Nodes that had joined before the newest payload count from its publication.
    times = [newest[name] - max(at, published) for name, at in churning.joined.items() if name in newest]
    return ChurnFigures(
        churning.left, churning.joins, quantile(times, 0.5), quantile(times, 0.99), quantile(times, 1.0)
    )


def summary_lines(figures: SwarmFigures) -> list[tuple[str, str]]:
    """Returns the main figures as (label, text)."""
    chunks = -(-figures.payload_bytes // figures.chunk_bytes)
    lines = [
        ("swarm", f"{figures.actors} actors in {figures.regions} regions, {figures.peers:.1f} peers each at the end"),
        ("payload", f"{figures.payload_bytes / 1e6:.1f} MB in {chunks} chunks"),
        ("bound", f"{figures.bound:.2f} s: {figures.bound_rate:.1f} Mbit/s, {figures.because}"),
    ]
    if figures.plan is not None:
        plan = figures.plan
        lines.append(
            (
                "plan",
                f"{plan.trees} trees, up to {plan.depth} hops deep and {plan.max_children} children a node; "
                f"{plan.rate:.1f} Mbit/s; predicted {plan.makespan:.2f} s; made in {plan.cpu:.2f} s",
            )
        )
    lines += [(f"version {version.version}", _version_line(version)) for version in figures.versions]
    if figures.churned is not None:
        churned = figures.churned
        lines.append(("churn", f"{churned.left} left, {churned.joined} joined; {len(figures.planning) - 1} more plans"))
        if churned.last is not None:
            times = f"p50 {churned.p50:.2f} s, p99 {churned.p99:.2f} s, last {churned.last:.2f} s"
            lines.append(("joiners", f"had the newest after {times}"))
    into = f"{figures.copies_into_mean:.2f} into a region, {figures.copies_into:.2f} at most"
    lines += [
        ("converged", "all live nodes" if not figures.unfinished else f"all but {figures.unfinished} live nodes"),
        (
            "copies",
            f"{figures.trainer_copies:.2f} from the trainer, {into}",
        ),
        ("wasted", f"{100 * figures.wasted:.2f} % of the received bytes"),
        (
            "cost",
            f"{figures.cpu:.1f} CPU s, {1000 * figures.cpu_per_actor:.1f} ms an actor; {figures.events} events, "
            f"{figures.messages} messages; planning {sum(figures.planning):.1f} s",
        ),
        ("trace", figures.trace),
    ]
    return lines


def _version_line(version: VersionFigures) -> str:
    if version.last is None:
        return f"none of {version.receivers} nodes has it"
    missed = f"; {version.missed} skipped it" if version.missed else ""
    return (
        f"p50 {version.p50:.2f} s, p99 {version.p99:.2f} s, last {version.last:.2f} s = {version.ratio:.2f} × the bound"
        f"{missed}"
    )
