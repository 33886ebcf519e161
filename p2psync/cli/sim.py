"""`p2psync sim`: the swarm and the rollout ledger in virtual time."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated

import typer

from p2psync.cli import output
from p2psync.cli.options import JsonTarget
from p2psync.cli.sim_rollouts import ledger, rollouts
from p2psync.cli.wan_plan import parse_bytes
from p2psync.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="The swarm and the ledger in virtual time.")

app.command("rollouts")(rollouts)
app.command("ledger")(ledger)

#: Of the hosts of a drawn network, so many more for each actor are there for nodes that join later.
_SPARE = 0.1


@app.command()
def swarm(
    actors: Annotated[int, typer.Option(help="Actors of a drawn network.", min=1)] = 1000,
    regions: Annotated[int, typer.Option(help="Regions of a drawn network.", min=1)] = 50,
    topology: Annotated[Path | None, typer.Option(help="A topology file instead of a drawn network.")] = None,
    hidden: Annotated[
        float, typer.Option(help="Share of a drawn network's hosts that can only dial out.", min=0, max=1)
    ] = 0.2,
    trainer_up: Annotated[
        float, typer.Option(help="Mbit/s of the trainer's uplink in a drawn network.", min=1, max=1e6)
    ] = 150.0,
    payload: Annotated[str, typer.Option(help="Bytes of each version, like 64MiB.")] = "64MiB",
    chunk: Annotated[str, typer.Option(help="Bytes of a chunk.")] = "256KiB",
    versions: Annotated[
        int | None, typer.Option(help="Versions published one after another [1; with --draw 2].", min=1)
    ] = None,
    every: Annotated[
        float | None, typer.Option(help="Seconds between versions [1.5 times what the bound allows].", min=0.001)
    ] = None,
    churn: Annotated[
        float, typer.Option(help="Share of the nodes that leave in a minute, while as many join.", min=0, max=60)
    ] = 0.0,
    others: Annotated[int, typer.Option(help="Peers that each node dials besides those of the plan.", min=0)] = 4,
    seed: Annotated[int, typer.Option(help="Of the network and of everything that is drawn.", min=0)] = 1,
    no_plan: Annotated[bool, typer.Option("--no-plan", help="No plan: everything is pulled.")] = False,
    limit: Annotated[float, typer.Option(help="Virtual seconds after the last version.", min=1)] = 300.0,
    trace: Annotated[Path | None, typer.Option(help="Who held how much when, as CSV.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture, like sim.png.")] = None,
    draw: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:LAST",
            help="Whole nodes over virtual TCP instead, which measure a network of places: one drawn from each seed.",
        ),
    ] = None,
    settle: Annotated[
        float, typer.Option(help="With --draw: virtual seconds of measuring before the first version.", min=1)
    ] = 60.0,
    json: JsonTarget = None,
) -> None:
    """A payload's way to thousands of actors: the real exchange and planner over a flow-level network.

    The same options give the same trace. Exit status 1 if a live node has not got the newest version in the end.

    With --draw nodes measure their network themselves, over connections with BBR, queues and losses, and the hub plans
    from what they report; of the options above only --payload, --chunk, --versions, --limit, --settle and --json count.
    """
    if draw is not None:
        _draw(
            draw, parse_bytes("--payload", payload), parse_bytes("--chunk", chunk), versions or 2, settle, limit, json
        )
        return
    from p2psync.topology.bound import least_makespan
    from p2psync.topology.draw import draw_topology
    from p2psync.topology.fluid.report import simulate, summary_lines
    from p2psync.topology.fluid.swarm import FluidOptions
    from p2psync.topology.model import load
    from p2psync.topology.network import from_topology
    from p2psync.topology.picture import check_installed

    if plot is not None:
        check_installed()
    idle_hosts: frozenset[str] = frozenset()
    if topology is not None:
        described = load(topology)
        network = from_topology(described)
        if described.event:
            typer.echo(f"{topology}: its events do not happen in virtual time; `p2psync wan run` has them", err=True)
    else:
        more = int(_SPARE * actors) if churn else 0
        network = from_topology(
            draw_topology(actors + more + 1, regions, seed=seed, hidden=hidden, trainer_rate=trainer_up)
        )
        idle_hosts = spare_hosts(network.names, network.names[network.trainer], more, seed)
    if network.size < 2 or not network.reachable().all():
        raise UsageError("a node of the network cannot be reached: see `p2psync wan plan` for which")
    size = parse_bytes("--payload", payload)
    options = FluidOptions(
        payload_bytes=size,
        chunk_bytes=parse_bytes("--chunk", chunk),
        versions=versions or 1,
        every=every if every is not None else 1.5 * least_makespan(network, size),
        planned=not no_plan,
        others=others,
        seed=seed,
        limit=limit,
    )
    # Nothing here goes round in circles, and looking for such among millions of objects costs more the more there are.
    gc.disable()
    try:
        figures, found = simulate(network, options, churn=churn, idle_hosts=idle_hosts)
    finally:
        gc.enable()
    output.report(figures, json, summary_lines(figures))
    if trace is not None:
        found.write(trace)
    if plot is not None:
        from p2psync.topology.fluid.plot import plot_swarm

        plot_swarm(figures, found, plot)
    if figures.unfinished:
        raise typer.Exit(1)


def _draw(
    draw: str, payload_bytes: int, chunk_bytes: int, versions: int, settle: float, limit: float, json: str | None
) -> None:
    """Simulates whole nodes on one drawn network for each seed."""
    from p2psync.sim.__main__ import parse_seeds
    from p2psync.topology.virtual.report import seed_line, simulate_drawn, summary_lines
    from p2psync.topology.virtual.swarm import VirtualOptions

    options = VirtualOptions(
        payload_bytes=payload_bytes, chunk_bytes=chunk_bytes, versions=versions, settle=settle, limit=limit
    )
    summary = simulate_drawn(
        parse_seeds(draw, "--draw"),
        options,
        on_figures=lambda figures: typer.echo("  ".join(seed_line(figures)), err=json == "-"),
    )
    output.report(summary, json, summary_lines(summary))
    if summary.worst == float("inf"):
        raise typer.Exit(1)


def spare_hosts(names: tuple[str, ...], trainer: str, count: int, seed: int) -> frozenset[str]:
    """Hosts on which no node runs at first, drawn by seed."""
    import random

    return frozenset(random.Random(seed).sample([name for name in names if name != trainer], count))


@app.command()
def faults(
    seeds: Annotated[str, typer.Option(metavar="FIRST:LAST", help="From FIRST to before LAST.")] = "0:100",
    fault: Annotated[list[str] | None, typer.Option(help="Only these kinds of fault.")] = None,
    liar: Annotated[list[str] | None, typer.Option(help="These liars, in every simulation.")] = None,
) -> None:
    """Whole nodes, hub and engines under drawn faults, one small swarm for each seed; exit status 1 if any failed."""
    from p2psync.sim.__main__ import parse_seeds, sweep
    from p2psync.sim.build import SimConfig
    from p2psync.sim.faults import KINDS
    from p2psync.sim.liars import LIARS

    for option, given, known in (("--fault", fault, KINDS), ("--liar", liar, LIARS)):
        if unknown := set(given or ()) - set(known):
            raise UsageError(f"{option} {sorted(unknown)[0]}: choose of {', '.join(sorted(known))}")
    config = SimConfig(faults=tuple(fault) if fault else None, liars=tuple(liar) if liar else None)
    raise typer.Exit(1 if sweep(parse_seeds(seeds), config) else 0)
