"""`p2psync bench rl`: the cost of syncing in a reinforcement-learning loop, against none and full broadcast."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2psync.cli.bench_output import CsvTarget, write_figures
from p2psync.cli.option_structs import takes_options
from p2psync.cli.options import JsonTarget
from p2psync.cli.racing import check_can_emulate, console_for, end_as_interrupted, tell, words
from p2psync.errors import UsageError

if TYPE_CHECKING:
    from p2psync.bench.rl.scale import LoopOptions


@dataclass(frozen=True, kw_only=True)
class RlBenchOptions:
    """The options of `p2psync bench rl`."""

    gbit: Annotated[str, typer.Option(help="Gbit/s of each link of the real loop; numbers with commas.")] = "1"
    regions: Annotated[str, typer.Option(help="Regions besides the trainer's, 1 to 4; numbers with commas.")] = "4"
    ways: Annotated[
        str,
        typer.Option(
            help="free, p2psync, full (a newer version takes the place of one under way), full-fifo (each finishes, "
            "the newest waiting one is next), full-strict (each finishes, in order), full-sparse (as few are sent as "
            "--staleness allows): names with commas, or all, of which full-strict only with --staleness above 1, and "
            "full-sparse above 0."
        ),
    ] = "all"
    actors: Annotated[int, typer.Option(help="Actors in each region.", min=1, max=8)] = 2
    generation: Annotated[float, typer.Option(help="Seconds that a step's generation takes.", min=1)] = 60.0
    learning: Annotated[float, typer.Option(help="Seconds that a step's learning takes.", min=0)] = 30.0
    answer: Annotated[float, typer.Option(help="Seconds that a prompt's answers take.", min=0.1)] = 12.0
    slots: Annotated[int, typer.Option(help="Prompts that an actor works on at a time.", min=1)] = 8
    speed: Annotated[float, typer.Option(help="Tokens a second of an actor.", min=1)] = 2560.0
    staleness: Annotated[
        int, typer.Option(help="Versions that an answer may lie behind the policy that learns from it.", min=0)
    ] = 1
    density: Annotated[float, typer.Option(help="Share of the weights that a step changes.", min=1e-5, max=0.5)] = 0.01
    model: Annotated[int, typer.Option(help="MB of bf16 weights that run in place of 16 GB.", min=1)] = 64
    faster: Annotated[
        float, typer.Option(help="Divide all paced times and multiply link rates by this; see below.", min=1)
    ] = 6.0
    cores: Annotated[
        float, typer.Option(help="Cores of an actor's real machine, which generation and staging share.", min=0.1)
    ] = 4.0
    rounds: Annotated[
        int, typer.Option(help="Rounds; all take their turn in each, and each is first in turn.", min=1)
    ] = 1
    steps: Annotated[int, typer.Option(help="Steps of a run, the first two of which do not count.", min=4)] = 12
    full_steps: Annotated[int, typer.Option(help="The same of full broadcast, which takes long.", min=4)] = 6
    congestion: Annotated[str, typer.Option(help="TCP congestion control of all hosts: bbr, cubic, …")] = "bbr"
    settle: Annotated[float, typer.Option(help="Seconds to measure links before the first step, at most.", min=0)] = (
        90.0
    )
    limit: Annotated[float, typer.Option(help="Seconds after which a run is given up.", min=1)] = 900.0
    seed: Annotated[int, typer.Option(help="Seed of drawn weights and of lost packets.")] = 1
    quick: Annotated[bool, typer.Option("--quick", help="Short form: one region, 8 MB, 5 steps.")] = False
    plot: Annotated[Path | None, typer.Option(help="Write a picture, like rl.png.")] = None
    json: JsonTarget = None
    csv: CsvTarget = None


@takes_options(RlBenchOptions)
def rl(options: RlBenchOptions) -> None:
    """Tokens/s of a reinforcement-learning loop over a WAN, against a sync at no cost and full broadcast.

    Real trainer, ledger, actors and sockets on an emulated network; needs root. Optimizer steps are paced by the clock.
    A token is so much arithmetic, calibrated before the runs, that an actor takes a part of a core of this machine. The
    model and the links are smaller by the same factor, so that a whole copy takes as long as 16 GB over the links that
    are named. Staging and pauses cost tokens as those of 16 GB on --cores cores. Round trips, coding and leases are not
    made --faster: they weigh that many times more than in the real loop.
    """
    from p2psync.bench.rl.scale import quick_options

    loop = _loop_options(options)
    check_can_emulate()

    from p2psync.bench.rl.bench import RlBench
    from p2psync.bench.rl.report import figures
    from p2psync.bench.rl.tables import print_rl_report

    end_as_interrupted()
    report = RlBench(quick_options(loop) if options.quick else loop, tell).run()
    print_rl_report(report, console_for(options.json))
    write_figures("rl", report, figures(report), options.json, options.csv)
    if options.plot is not None:
        from p2psync.bench.rl.plot import plot_rl_report

        plot_rl_report(report, options.plot)


def _loop_options(options: RlBenchOptions) -> LoopOptions:
    """Returns the loop that the options describe. Raises `UsageError`."""
    from p2psync.bench.rl.scale import LoopOptions

    ways, counts = _ways(options), _region_counts(options.regions)
    if options.plot is not None:
        from p2psync.bench.plot import check_installed

        check_installed()
    return LoopOptions(
        gbits=_numbers("--gbit", options.gbit),
        regions=counts,
        ways=ways,
        actors=options.actors,
        generation=options.generation,
        learning=options.learning,
        answer=options.answer,
        slots=options.slots,
        speed=options.speed,
        staleness=options.staleness,
        density=options.density,
        steps=options.steps,
        full_steps=options.full_steps,
        model_bytes=options.model * 10**6,
        faster=options.faster,
        cores=options.cores,
        rounds=options.rounds,
        congestion=options.congestion,
        settle=options.settle,
        limit=options.limit,
        seed=options.seed,
    )


def _ways(options: RlBenchOptions) -> list[str]:
    """Returns the ways of syncing that are compared."""
    from p2psync.bench.rl.scale import SPARSE, STRICT, WAYS

    if options.ways == "all":
        return [way for way in WAYS if options.staleness > {STRICT: 1, SPARSE: 0}.get(way, -1)]
    chosen = words(options.ways)
    if not chosen or set(chosen) - set(WAYS):
        raise UsageError(f"--ways {options.ways!r}: choose all, or of {', '.join(WAYS)}")
    return chosen


def _region_counts(text: str) -> list[int]:
    numbers = _numbers("--regions", text)
    counts = [int(number) for number in numbers]
    if counts != numbers or not all(1 <= count <= 4 for count in counts):
        raise UsageError(f"--regions {text!r}: whole numbers from 1 to 4")
    return counts


def _numbers(flag: str, text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",") if word.strip()]
    except ValueError:
        found = []
    if not found or min(found) <= 0:
        raise UsageError(f"{flag} {text!r}: write numbers above 0 with commas")
    return found
