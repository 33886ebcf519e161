"""`p2psync sim swarm`: a swarm in virtual time, as flows between thousands of nodes, or as whole nodes over TCP."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2psync.cli import output
from p2psync.cli.drawn_networks import DrawnOutput, DrawOptions
from p2psync.cli.option_structs import takes_options
from p2psync.cli.options import JsonTarget
from p2psync.cli.wan_plan import parse_bytes
from p2psync.errors import UsageError

if TYPE_CHECKING:
    from p2psync.topology.network import Network

#: Of the hosts of a drawn network, so many more for each actor are there for nodes that join later.
_SPARE = 0.1


@dataclass(frozen=True, kw_only=True)
class SimSwarmOptions:
    """The options of `p2psync sim swarm`."""

    actors: Annotated[int, typer.Option(help="Actors of a drawn network.", min=1)] = 1000
    regions: Annotated[int, typer.Option(help="Regions of a drawn network.", min=1)] = 50
    topology: Annotated[Path | None, typer.Option(help="A topology file instead of a drawn network.")] = None
    hidden: Annotated[
        float, typer.Option(help="Share of a drawn network's hosts that can only dial out.", min=0, max=1)
    ] = 0.2
    trainer_up: Annotated[
        float, typer.Option(help="Mbit/s of the trainer's uplink in a drawn network.", min=1, max=1e6)
    ] = 150.0
    payload: Annotated[str, typer.Option(help="Bytes of each version, like 64MiB.")] = "64MiB"
    chunk: Annotated[str, typer.Option(help="Bytes of a chunk.")] = "256KiB"
    versions: Annotated[
        int | None, typer.Option(help="Versions published one after another [1; with --draw 2].", min=1)
    ] = None
    every: Annotated[
        float | None, typer.Option(help="Seconds between versions [1.5 times what the bound allows].", min=0.001)
    ] = None
    churn: Annotated[
        float, typer.Option(help="Share of the nodes that leave in a minute, while as many join.", min=0, max=60)
    ] = 0.0
    others: Annotated[int, typer.Option(help="Peers that each node dials besides those of the plan.", min=0)] = 4
    seed: Annotated[int, typer.Option(help="Of the network and of everything that is drawn.", min=0)] = 1
    no_plan: Annotated[bool, typer.Option("--no-plan", help="No plan: everything is pulled.")] = False
    limit: Annotated[float, typer.Option(help="Virtual seconds after the last version.", min=1)] = 300.0
    trace: Annotated[Path | None, typer.Option(help="Who held how much when, as CSV.")] = None
    plot: Annotated[Path | None, typer.Option(help="Write a picture, like sim.png.")] = None
    drawn: DrawOptions
    settle: Annotated[
        float, typer.Option(help="With --draw: virtual seconds of measuring before the first version.", min=1)
    ] = 60.0
    policy: Annotated[
        str,
        typer.Option(
            help="With --draw: settings to run side by side: default, no-probing, one-stream, true-plan, no-plan, or "
            "one mechanism switched off, as `sim ablation` lists them; names with commas, or all."
        ),
    ] = "default"
    json: JsonTarget = None


@takes_options(SimSwarmOptions)
def swarm(options: SimSwarmOptions) -> None:
    """A payload's way to thousands of actors: the real exchange and planner over a flow-level network.

    The same options give the same trace. Exit status 1 if a live node has not got the newest version in the end.

    With --draw nodes measure their network themselves, over connections with BBR, queues and losses, and the hub plans
    from what they report; each network's line says why it took so long, and --json writes a line for each. Of the
    options before --draw only --payload, --chunk, --versions, --limit and --plot count then.
    """
    options.drawn.check()
    if options.drawn.draw is not None:
        _simulate_nodes(options)
    elif options.policy != "default":
        raise UsageError("--policy changes whole nodes: give --draw, too")
    else:
        _simulate_flows(options)


def _simulate_flows(options: SimSwarmOptions) -> None:
    """Simulates flows between many nodes."""
    from p2psync.topology.bound import least_makespan
    from p2psync.topology.fluid.plot import plot_swarm
    from p2psync.topology.fluid.report import simulate, summary_lines
    from p2psync.topology.fluid.swarm import FluidOptions
    from p2psync.topology.picture import check_installed

    if options.plot is not None:
        check_installed()
    network, idle_hosts = _network(options)
    size = parse_bytes("--payload", options.payload)
    fluid_options = FluidOptions(
        payload_bytes=size,
        chunk_bytes=parse_bytes("--chunk", options.chunk),
        versions=options.versions or 1,
        every=options.every if options.every is not None else 1.5 * least_makespan(network, size),
        planned=not options.no_plan,
        others=options.others,
        seed=options.seed,
        limit=options.limit,
    )
    # Nothing here goes round in circles, and looking for such among millions of objects costs more the more there are.
    gc.disable()
    try:
        figures, found = simulate(network, fluid_options, churn=options.churn, idle_hosts=idle_hosts)
    finally:
        gc.enable()
    output.report(figures, options.json, summary_lines(figures))
    if options.trace is not None:
        found.write(options.trace)
    if options.plot is not None:
        plot_swarm(figures, found, options.plot)
    if figures.unfinished:
        raise typer.Exit(1)


def _network(options: SimSwarmOptions) -> tuple[Network, frozenset[str]]:
    """Returns the network that is named or drawn, and its hosts without a node at first. Raises `UsageError`."""
    from p2psync.topology.draw import draw_topology
    from p2psync.topology.fluid.churn import spare_hosts
    from p2psync.topology.model import load
    from p2psync.topology.network import from_topology

    idle_hosts: frozenset[str] = frozenset()
    if options.topology is not None:
        described = load(options.topology)
        network = from_topology(described)
        if described.event:
            events = "its events do not happen in virtual time; `p2psync wan run` has them"
            typer.echo(f"{options.topology}: {events}", err=True)
    else:
        more = int(_SPARE * options.actors) if options.churn else 0
        hosts = options.actors + more + 1
        drawn = draw_topology(
            hosts, options.regions, seed=options.seed, hidden=options.hidden, trainer_rate=options.trainer_up
        )
        network = from_topology(drawn)
        idle_hosts = spare_hosts(network.names, network.names[network.trainer], more, options.seed)
    if network.size < 2 or not network.reachable().all():
        raise UsageError("a node of the network cannot be reached: see `p2psync wan plan` for which")
    return network, idle_hosts


def _simulate_nodes(options: SimSwarmOptions) -> None:
    """Simulates whole nodes on one network of places for each seed."""
    from p2psync.topology.virtual.policies import POLICIES, chosen_policies
    from p2psync.topology.virtual.report import simulate_drawn, simulation_line
    from p2psync.topology.virtual.swarm import VirtualOptions

    policies = chosen_policies(options.policy, POLICIES)
    virtual_options = VirtualOptions(
        payload_bytes=parse_bytes("--payload", options.payload),
        chunk_bytes=parse_bytes("--chunk", options.chunk),
        versions=options.versions or 2,
        settle=options.settle,
        limit=options.limit,
    )
    seeds = options.drawn.seeds
    out = DrawnOutput.prepare(options.drawn, options.json, options.plot)
    runs = simulate_drawn(seeds, virtual_options, hosts=options.drawn.hosts, policies=policies)
    shown = out.show(runs, note=simulation_line)
    if any(one.seconds is None for run in shown for found in run.results.values() for one in found):
        raise typer.Exit(1)
