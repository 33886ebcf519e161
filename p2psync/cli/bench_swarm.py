"""`p2psync bench swarm`: the swarm against aria2, libtorrent and a star of rsync on an emulated network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2psync.cli.bench_output import CsvTarget, write_figures
from p2psync.cli.options import JsonTarget
from p2psync.cli.racing import console_for, end_as_interrupted, tell
from p2psync.cli.wan_plan import parse_bytes
from p2psync.errors import P2PSyncError, UsageError


def swarm(
    file: Annotated[
        Path | None, typer.Argument(metavar="TOPOLOGY.toml", help="The network; with --quick there is one.")
    ] = None,
    size: Annotated[str, typer.Option(help="Bytes to carry, incompressible, like 2MiB or 64MiB.")] = "64MiB",
    delta: Annotated[
        bool, typer.Option("--delta", help="p2psync publishes a delta of that size, not an anchor.")
    ] = False,
    base: Annotated[str, typer.Option(help="Bytes of the weights that the delta changes.")] = "256MB",
    baselines: Annotated[
        str, typer.Option(help="aria2, libtorrent, libtorrent-super, rsync: names with commas, all or none.")
    ] = "all",
    p2psync: Annotated[bool, typer.Option("--p2psync/--no-p2psync", help="Whether p2psync takes part.")] = True,
    congestion: Annotated[
        str, typer.Option(help="TCP congestion control of all hosts; of bbr p2psync chooses what to use where.")
    ] = "bbr",
    rounds: Annotated[
        int,
        typer.Option(help="Rounds; all take their turn in each, and each is first in turn. Medians are shown.", min=1),
    ] = 5,
    cold: Annotated[
        bool,
        typer.Option(
            "--cold/--no-cold",
            help="As many cold rounds, too: all processes run, and nothing is connected or measured.",
        ),
    ] = True,
    faults: Annotated[
        bool,
        typer.Option("--faults", help="p2psync again with a relay killed halfway, and with a link cut to a tenth."),
    ] = False,
    slower: Annotated[
        float, typer.Option(help="Divide all rates by this: for networks faster than this machine can carry.", min=1)
    ] = 1.0,
    limit: Annotated[float, typer.Option(help="Seconds after which a run is given up.", min=1)] = 300.0,
    piece: Annotated[str, typer.Option(help="Bytes of the torrents' pieces.")] = "64KiB",
    settle: Annotated[
        float, typer.Option(help="Seconds to measure and plan before a warm run, at most.", min=0)
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of drawn weights and of lost packets.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Short form: 4 hosts, 4 MiB, one round.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a picture, like swarm.png.")] = None,
    json: JsonTarget = None,
    csv: CsvTarget = None,
) -> None:
    """Seconds until the last of all hosts has everything, against aria2, libtorrent, a star of rsync and the bound.

    On an emulated network of real processes; needs root. Times are medians; ratios are to the least time that any
    broadcast could take on this network.
    """

    from p2psync.bench.swarm.contenders import BASELINES, P2PSYNC
    from p2psync.bench.swarm.race import Race, RaceOptions, quick_options
    from p2psync.bench.swarm.report import figures
    from p2psync.bench.swarm.tables import print_swarm_report
    from p2psync.topology.emulator import why_not
    from p2psync.topology.model import load

    if quick == (file is not None):
        raise UsageError("name a topology file, such as examples/topologies/lan-12.toml, or give --quick")
    chosen = {"all": list(BASELINES), "none": []}.get(
        baselines, [word.strip() for word in baselines.split(",") if word.strip()]
    )
    if unknown := set(chosen) - set(BASELINES):
        raise UsageError(f"--baselines {sorted(unknown)[0]!r}: choose all, none, or of {', '.join(BASELINES)}")
    if reason := why_not():
        raise P2PSyncError(reason)
    options = RaceOptions(
        payload_bytes=parse_bytes("--size", size),
        contenders=([P2PSYNC] if p2psync else []) + chosen,
        rounds=rounds,
        congestion=congestion,
        base=parse_bytes("--base", base) if delta else 0,
        limit=limit,
        cold=cold,
        with_faults=faults,
        piece=parse_bytes("--piece", piece),
        settle=settle,
        seed=seed,
    )
    if file is not None:
        name, topology = file.name, load(file)
        if slower > 1:
            name, topology = f"{name}, {slower:g} times slower", topology.slower(slower)
    else:
        topology, options = quick_options(options)
        name = "short form"

    end_as_interrupted()
    report = Race(name, topology, options, tell).run()
    print_swarm_report(report, console_for(json))
    write_figures("swarm", report, figures(report), json, csv)
    if plot is not None:
        from p2psync.bench.swarm.plot import plot_swarm_report

        plot_swarm_report(report, plot)
