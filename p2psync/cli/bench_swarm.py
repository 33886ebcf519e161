"""`p2psync bench swarm`: the swarm against aria2, libtorrent and a star of rsync on an emulated network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2psync.cli.bench_output import CsvTarget, write_figures
from p2psync.cli.option_structs import takes_options
from p2psync.cli.options import JsonTarget
from p2psync.cli.racing import check_can_emulate, chosen_words, console_for, end_as_interrupted, tell
from p2psync.cli.wan_plan import parse_bytes
from p2psync.errors import UsageError

if TYPE_CHECKING:
    from p2psync.bench.swarm.race import Race, RaceOptions


@dataclass(frozen=True, kw_only=True)
class SwarmBenchOptions:
    """The options of `p2psync bench swarm`."""

    file: Annotated[
        Path | None, typer.Argument(metavar="TOPOLOGY.toml", help="The network; with --quick there is one.")
    ] = None
    size: Annotated[str, typer.Option(help="Bytes to carry, incompressible, like 2MiB or 64MiB.")] = "64MiB"
    delta: Annotated[bool, typer.Option("--delta", help="p2psync publishes a delta of that size, not an anchor.")] = (
        False
    )
    base: Annotated[str, typer.Option(help="Bytes of the weights that the delta changes.")] = "256MB"
    baselines: Annotated[
        str, typer.Option(help="aria2, libtorrent, libtorrent-super, rsync: names with commas, all or none.")
    ] = "all"
    p2psync: Annotated[bool, typer.Option("--p2psync/--no-p2psync", help="Whether p2psync takes part.")] = True
    congestion: Annotated[
        str, typer.Option(help="TCP congestion control of all hosts; of bbr p2psync chooses what to use where.")
    ] = "bbr"
    rounds: Annotated[
        int,
        typer.Option(help="Rounds; all take their turn in each, and each is first in turn. Medians are shown.", min=1),
    ] = 5
    cold: Annotated[
        bool,
        typer.Option(
            "--cold/--no-cold",
            help="As many cold rounds, too: all processes run, and nothing is connected or measured.",
        ),
    ] = True
    faults: Annotated[
        bool,
        typer.Option("--faults", help="p2psync again with a relay killed halfway, and with a link cut to a tenth."),
    ] = False
    slower: Annotated[
        float, typer.Option(help="Divide all rates by this: for networks faster than this machine can carry.", min=1)
    ] = 1.0
    limit: Annotated[float, typer.Option(help="Seconds after which a run is given up.", min=1)] = 300.0
    piece: Annotated[str, typer.Option(help="Bytes of the torrents' pieces.")] = "64KiB"
    settle: Annotated[float, typer.Option(help="Seconds to measure and plan before a warm run, at most.", min=0)] = 60.0
    seed: Annotated[int, typer.Option(help="Seed of drawn weights and of lost packets.")] = 1
    quick: Annotated[bool, typer.Option("--quick", help="Short form: 4 hosts, 4 MiB, one round.")] = False
    plot: Annotated[Path | None, typer.Option(help="Write a picture, like swarm.png.")] = None
    json: JsonTarget = None
    csv: CsvTarget = None


@takes_options(SwarmBenchOptions)
def swarm(options: SwarmBenchOptions) -> None:
    """Seconds until the last of all hosts has everything, against aria2, libtorrent, a star of rsync and the bound.

    On an emulated network of real processes; needs root. Times are medians; ratios are to the least time that any
    broadcast could take on this network.
    """
    from p2psync.bench.swarm.contenders import BASELINES
    from p2psync.bench.swarm.report import figures
    from p2psync.bench.swarm.tables import print_swarm_report

    if options.quick == (options.file is not None):
        raise UsageError("name a topology file, such as examples/topologies/lan-12.toml, or give --quick")
    baselines = chosen_words("--baselines", options.baselines, BASELINES)
    check_can_emulate()
    race = _race(options, _race_options(options, baselines))

    end_as_interrupted()
    report = race.run()
    print_swarm_report(report, console_for(options.json))
    write_figures("swarm", report, figures(report), options.json, options.csv)
    if options.plot is not None:
        from p2psync.bench.swarm.plot import plot_swarm_report

        plot_swarm_report(report, options.plot)


def _race_options(options: SwarmBenchOptions, baselines: list[str]) -> RaceOptions:
    from p2psync.bench.swarm.contenders import P2PSYNC
    from p2psync.bench.swarm.race import RaceOptions

    return RaceOptions(
        payload_bytes=parse_bytes("--size", options.size),
        contenders=([P2PSYNC] if options.p2psync else []) + baselines,
        rounds=options.rounds,
        congestion=options.congestion,
        base=parse_bytes("--base", options.base) if options.delta else 0,
        limit=options.limit,
        cold=options.cold,
        with_faults=options.faults,
        piece=parse_bytes("--piece", options.piece),
        settle=options.settle,
        seed=options.seed,
    )


def _race(options: SwarmBenchOptions, race_options: RaceOptions) -> Race:
    """Returns the race on the network that is named, or the short form. Raises `UsageError` for a bad file."""
    from p2psync.bench.swarm.race import Race, quick_options
    from p2psync.topology.model import load

    if options.file is None:
        topology, race_options = quick_options(race_options)
        return Race("short form", topology, race_options, tell)
    name, topology = options.file.name, load(options.file)
    if options.slower > 1:
        name, topology = f"{name}, {options.slower:g} times slower", topology.slower(options.slower)
    return Race(name, topology, race_options, tell)
