"""`p2psync bench swarm`: the swarm against aria2, libtorrent and a star of rsync on an emulated network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2psync.cli.bench_output import CsvTarget, write_figures
from p2psync.cli.drawn_networks import DrawnOutput, DrawOptions
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
        Path | None, typer.Argument(metavar="TOPOLOGY.toml", help="The network, unless --draw or --quick has one.")
    ] = None
    drawn: DrawOptions
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
        str | None,
        typer.Option(
            help="TCP congestion control of all hosts; of bbr p2psync chooses what to use where [bbr; with --draw "
            "cubic where the kernel has no bbr]."
        ),
    ] = None
    rounds: Annotated[
        int,
        typer.Option(help="Rounds; all take their turn in each, and each is first in turn. Medians are shown.", min=1),
    ] = 5
    cold: Annotated[
        bool | None,
        typer.Option(
            "--cold/--no-cold",
            help="As many cold rounds, too: all processes run, and nothing is connected or measured [yes; with --draw "
            "no].",
        ),
    ] = None
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

    With --draw on one drawn network after the other: a line for each, with why p2psync took so long, then medians and
    spread of all, and where another one was faster. --json writes a line for each network, with all its runs.
    """
    from p2psync.bench.swarm.contenders import BASELINES

    options.drawn.check()
    if [options.quick, options.file is not None, options.drawn.draw is not None].count(True) != 1:
        raise UsageError(
            "name a topology file, such as examples/topologies/lan-12.toml, or give --draw FIRST:LAST or --quick"
        )
    baselines = chosen_words("--baselines", options.baselines, BASELINES)
    race_options = _race_options(options, baselines)
    if options.drawn.draw is not None:
        _race_drawn(options, race_options)
    else:
        _race_named(options, race_options)


def _race_named(options: SwarmBenchOptions, race_options: RaceOptions) -> None:
    """Races on the network that is named, or the short form."""
    from p2psync.bench.swarm.report import figures
    from p2psync.bench.swarm.tables import print_swarm_report

    check_can_emulate()
    race = _race(options, race_options)

    end_as_interrupted()
    report = race.run()
    print_swarm_report(report, console_for(options.json))
    write_figures("swarm", report, figures(report), options.json, options.csv)
    if options.plot is not None:
        from p2psync.bench.swarm.plot import plot_swarm_report

        plot_swarm_report(report, options.plot)


def _race_drawn(options: SwarmBenchOptions, race_options: RaceOptions) -> None:
    """Races on the drawn network of each seed."""
    from p2psync.bench.summary import write_csv
    from p2psync.bench.swarm.drawn_races import drawn_figures, race_drawn
    from p2psync.net.tcp import PREFERRED, offers

    if not options.p2psync:
        raise UsageError("--draw judges p2psync: leave --no-p2psync out")
    seeds = options.drawn.seeds
    out = DrawnOutput.prepare(options.drawn, options.json, options.plot)
    check_can_emulate()
    if options.congestion is None and not offers(race_options.congestion):
        race_options = replace(race_options, congestion=PREFERRED[1])

    end_as_interrupted()
    runs = out.show(race_drawn(seeds, race_options, hosts=options.drawn.hosts, slower=options.slower, progress=tell))
    if options.csv is not None:
        write_csv(drawn_figures(runs), options.csv)


def _race_options(options: SwarmBenchOptions, baselines: list[str]) -> RaceOptions:
    from p2psync.bench.swarm.contenders import P2PSYNC
    from p2psync.bench.swarm.race import RaceOptions

    return RaceOptions(
        payload_bytes=parse_bytes("--size", options.size),
        contenders=([P2PSYNC] if options.p2psync else []) + baselines,
        rounds=options.rounds,
        congestion="bbr" if options.congestion is None else options.congestion,
        base=parse_bytes("--base", options.base) if options.delta else 0,
        limit=options.limit,
        cold=options.drawn.draw is None if options.cold is None else options.cold,
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
