"""`p2psync bench`: the figures of the README, on this machine. They are printed, never judged."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from p2psync.cli.bench_output import CsvTarget, write_figures
from p2psync.cli.bench_pause import pause
from p2psync.cli.bench_relay import relay
from p2psync.cli.bench_rl import rl
from p2psync.cli.bench_swarm import swarm
from p2psync.cli.options import JsonTarget
from p2psync.errors import UsageError

app = typer.Typer(help="Measure p2psync against bounds and other systems.", no_args_is_help=True)
app.command("swarm")(swarm)
app.command("relay")(relay)
app.command("pause")(pause)
app.command("rl")(rl)

_T = TypeVar("_T", int, float)
_SCALES = {"MB": 10**6, "GB": 10**9}


@app.callback()
def group() -> None:
    """Measure p2psync against bounds and other systems."""


@app.command("codec")
def codec(
    size: Annotated[str, typer.Option(help="Bytes of the drawn bf16 model, like 256MB or 4GB; 0MB: none.")] = "1GB",
    density: Annotated[
        list[float] | None,
        typer.Option(
            help="Share of the elements that change; again for more. Default: 0.01, 0.1, 0.25, 0.5.", min=1e-5, max=0.5
        ),
    ] = None,
    trajectories: Annotated[
        Path | None,
        typer.Option(help="Folder of recorded GRPO runs, measured too; missing ones are recorded first."),
    ] = None,
    models: Annotated[str, typer.Option(help="Of the trajectories.")] = "qwen3,smollm2",
    rates: Annotated[str, typer.Option(help="Learning rates of the trajectories.")] = "1e-6,3e-6,5e-6",
    steps: Annotated[str, typer.Option(help="Steps of the trajectories, up to 24.")] = "1,5,20,24",
    baselines: Annotated[str, typer.Option(help="Other formats: all, none, or names with commas.")] = "all",
    part: Annotated[str, typer.Option(help="What zstd, xdelta3 and bsdiff are given of the model; slow.")] = "16MB",
    rounds: Annotated[int, typer.Option(help="Paired rounds; medians are shown.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 1,
    profile: Annotated[str, typer.Option(help="Whose speed is measured: all, fast, tight; none: sizes alone.")] = "all",
    plot: Annotated[Path | None, typer.Option(help="Write a picture, like codec.png.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short form: 24 MB, three densities, two rounds.")] = False,
    json: JsonTarget = None,
    csv: CsvTarget = None,
) -> None:
    """Size and speed of deltas of real and of drawn policy steps, against bounds, other formats and merely reading."""
    from dataclasses import replace
    from itertools import chain

    from rich.console import Console

    from p2psync.bench import codec as bench
    from p2psync.bench import trajectories as recorded
    from p2psync.bench.report import figures
    from p2psync.bench.tables import print_codec_report
    from p2psync.delta.container import PROFILES

    console = Console(file=sys.stderr if json == "-" else sys.stdout)
    if not console.is_terminal:
        console.width = 180  # a log has no width of its own, and the tables need some
    notes = Console(stderr=True)
    chosen = {"all": PROFILES, "none": ()}.get(profile, (profile,))
    if unknown := set(chosen) - set(PROFILES):
        raise UsageError(f"--profile {sorted(unknown)[0]!r}: choose all, none, {', '.join(PROFILES)}")
    if plot is not None:
        from p2psync.bench.plot import check_installed, plot_codec_report

        check_installed()
    densities, model_bytes = density or list(bench.DENSITIES), parse_size(size)
    options = bench.CodecOptions(
        profiles=chosen,
        baselines={"all": bench.BASELINE_NAMES, "none": ()}.get(baselines, tuple(_words(baselines))),
        rounds=rounds,
        part_bytes=parse_size(part, "--part"),
        all_cores=len(os.sched_getaffinity(0)),
    )
    if quick:
        densities, model_bytes, options = density or [0.003, 0.01, 0.04], 24 * 10**6, bench.quick_options(options)
    if model_bytes:
        options = replace(options, budget_density=min(densities, key=lambda share: abs(share - 0.01)))

    with notes.status("") as status:

        def progress(line: str) -> None:
            status.update(line)
            if not notes.is_terminal:
                print(line, file=sys.stderr, flush=True)

        deltas = bench.drawn(model_bytes, densities, seed, progress) if model_bytes else iter(())
        if trajectories is not None:
            numbers = _numbers("--steps", steps, int)
            if not all(1 <= number <= recorded.STEPS for number in numbers):
                raise UsageError(f"--steps {steps!r}: from 1 to {recorded.STEPS}")
            folders = recorded.make_missing(
                trajectories, _words(models), _numbers("--rates", rates, float), progress=progress
            )
            deltas = chain(deltas, *(recorded.replay(folder, numbers) for folder in folders))
        report = bench.run_codec_bench(deltas, options, progress)
    print_codec_report(report, console)
    write_figures("codec", report, figures(report), json, csv)
    if plot is not None:
        plot_codec_report(report, plot)


@app.command("compare")
def compare(
    one: Annotated[Path, typer.Argument(metavar="A.json", help="What a bench wrote with --json.")],
    other: Annotated[Path, typer.Argument(metavar="B.json", help="Another report of the same bench.")],
) -> None:
    """Two reports of one bench side by side: medians, spread, and the ratio of the second to the first."""
    from rich.console import Console

    from p2psync.bench.summary import compare_reports

    console = Console()
    if not console.is_terminal:
        console.width = 180
    console.print(compare_reports(one, other))


def parse_size(text: str, flag: str = "--size") -> int:
    """Bytes of `256MB` or `1.5GB`. Raises `UsageError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(MB|GB)", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"{flag} {text!r}: write it like 256MB or 1GB")
    return int(float(found[1]) * _SCALES[found[2].upper()])


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(flag: str, text: str, kind: Callable[[str], _T]) -> list[_T]:
    try:
        return [kind(word) for word in _words(text)]
    except ValueError:
        raise UsageError(f"{flag} {text!r}: write numbers with commas") from None
