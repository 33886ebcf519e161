"""`p2psync bench codec`: size and speed of deltas, beside bounds, other formats and merely reading."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from p2psync.cli.bench_output import CsvTarget, write_figures
from p2psync.cli.option_structs import takes_options
from p2psync.cli.options import JsonTarget
from p2psync.cli.racing import words
from p2psync.errors import UsageError

if TYPE_CHECKING:
    from p2psync.bench.codec import CodecOptions
    from p2psync.bench.deltas import ModelDelta

T = TypeVar("T", int, float)
_SCALES = {"MB": 10**6, "GB": 10**9}


@dataclass(frozen=True, kw_only=True)
class CodecBenchOptions:
    """The options of `p2psync bench codec`."""

    size: Annotated[str, typer.Option(help="Bytes of the drawn bf16 model, like 256MB or 4GB; 0MB: none.")] = "1GB"
    density: Annotated[
        list[float] | None,
        typer.Option(
            help="Share of the elements that change; again for more. Default: 0.01, 0.1, 0.25, 0.5.", min=1e-5, max=0.5
        ),
    ] = None
    trajectories: Annotated[
        Path | None,
        typer.Option(help="Folder of recorded GRPO runs, measured too; missing ones are recorded first."),
    ] = None
    models: Annotated[str, typer.Option(help="Of the trajectories.")] = "qwen3,smollm2"
    rates: Annotated[str, typer.Option(help="Learning rates of the trajectories.")] = "1e-6,3e-6,5e-6"
    steps: Annotated[str, typer.Option(help="Steps of the trajectories, up to 24.")] = "1,5,20,24"
    baselines: Annotated[str, typer.Option(help="Other formats: all, none, or names with commas.")] = "all"
    part: Annotated[str, typer.Option(help="What zstd, xdelta3 and bsdiff are given of the model; slow.")] = "16MB"
    rounds: Annotated[int, typer.Option(help="Paired rounds; medians are shown.", min=1)] = 5
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 1
    profile: Annotated[str, typer.Option(help="Whose speed is measured: all, fast, tight; none: sizes alone.")] = "all"
    plot: Annotated[Path | None, typer.Option(help="Write a picture, like codec.png.")] = None
    quick: Annotated[bool, typer.Option("--quick", help="Short form: 24 MB, three densities, two rounds.")] = False
    json: JsonTarget = None
    csv: CsvTarget = None


@takes_options(CodecBenchOptions)
def codec(options: CodecBenchOptions) -> None:
    """Size and speed of deltas of real and of drawn policy steps, against bounds, other formats and merely reading."""
    from rich.console import Console

    from p2psync.bench.codec import run_codec_bench
    from p2psync.bench.report import figures
    from p2psync.bench.tables import print_codec_report

    console = Console(file=sys.stderr if options.json == "-" else sys.stdout)
    if not console.is_terminal:
        console.width = 180  # a log has no width of its own, and the tables need some
    notes = Console(stderr=True)
    profiles = _profiles(options.profile)
    if options.plot is not None:
        from p2psync.bench.plot import check_installed, plot_codec_report

        check_installed()
    model_bytes, densities = _drawn_model(options)
    settings = _codec_options(options, profiles, model_bytes, densities)

    with notes.status("") as status:

        def progress(line: str) -> None:
            status.update(line)
            if not notes.is_terminal:
                print(line, file=sys.stderr, flush=True)

        report = run_codec_bench(_deltas(options, model_bytes, densities, progress), settings, progress)
    print_codec_report(report, console)
    write_figures("codec", report, figures(report), options.json, options.csv)
    if options.plot is not None:
        plot_codec_report(report, options.plot)


def _profiles(text: str) -> tuple[str, ...]:
    from p2psync.delta.container import PROFILES

    chosen = {"all": PROFILES, "none": ()}.get(text, (text,))
    if unknown := set(chosen) - set(PROFILES):
        raise UsageError(f"--profile {sorted(unknown)[0]!r}: choose all, none, {', '.join(PROFILES)}")
    return chosen


def _drawn_model(options: CodecBenchOptions) -> tuple[int, list[float]]:
    """Returns the bytes of the drawn model, and the densities of its deltas."""
    from p2psync.bench.codec import DENSITIES

    model_bytes = parse_size(options.size)
    if options.quick:
        return 24 * 10**6, options.density or [0.003, 0.01, 0.04]
    return model_bytes, options.density or list(DENSITIES)


def _codec_options(
    options: CodecBenchOptions, profiles: tuple[str, ...], model_bytes: int, densities: list[float]
) -> CodecOptions:
    from p2psync.bench.codec import BASELINE_NAMES, CodecOptions, quick_options

    settings = CodecOptions(
        profiles=profiles,
        baselines={"all": BASELINE_NAMES, "none": ()}.get(options.baselines, tuple(words(options.baselines))),
        rounds=options.rounds,
        part_bytes=parse_size(options.part, "--part"),
        all_cores=len(os.sched_getaffinity(0)),
    )
    if options.quick:
        settings = quick_options(settings)
    if model_bytes:
        settings = replace(settings, budget_density=min(densities, key=lambda share: abs(share - 0.01)))
    return settings


def _deltas(
    options: CodecBenchOptions, model_bytes: int, densities: list[float], progress: Callable[[str], None]
) -> Iterator[ModelDelta]:
    """Returns the drawn deltas, then those of the recorded runs. Raises `UsageError`."""
    from p2psync.bench.codec import drawn

    deltas = drawn(model_bytes, densities, options.seed, progress) if model_bytes else iter(())
    if options.trajectories is None:
        return deltas
    from p2psync.bench import trajectories as recorded

    numbers = _numbers("--steps", options.steps, int)
    if not all(1 <= number <= recorded.STEPS for number in numbers):
        raise UsageError(f"--steps {options.steps!r}: from 1 to {recorded.STEPS}")
    models, rates = words(options.models), _numbers("--rates", options.rates, float)
    folders = recorded.make_missing(options.trajectories, models, rates, progress=progress)
    return chain(deltas, *(recorded.replay(folder, numbers) for folder in folders))


def parse_size(text: str, flag: str = "--size") -> int:
    """Bytes of `256MB` or `1.5GB`. Raises `UsageError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(MB|GB)", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"{flag} {text!r}: write it like 256MB or 1GB")
    return int(float(found[1]) * _SCALES[found[2].upper()])


def _numbers(flag: str, text: str, kind: Callable[[str], T]) -> list[T]:
    try:
        return [kind(word) for word in words(text)]
    except ValueError:
        raise UsageError(f"{flag} {text!r}: write numbers with commas") from None
