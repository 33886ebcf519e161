"""`p2psync bench`: the figures of the README, on this machine. They are printed, never judged."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from p2psync.cli.output import JsonTarget, report_json
from p2psync.errors import UsageError

app = typer.Typer(help="Measure, beside the limit and beside others.", no_args_is_help=True)

_SCALES = {"MB": 10**6, "GB": 10**9}


@app.callback()
def group() -> None:
    """Measure, beside the limit and beside others."""


@app.command("codec")
def codec(
    size: Annotated[str, typer.Option(help="Bytes of the bf16 model, like 256MB or 1GB.")] = "1GB",
    density: Annotated[float, typer.Option(help="Share of the elements that change.", min=1e-5, max=0.5)] = 0.01,
    rounds: Annotated[int, typer.Option(help="Paired rounds; medians are shown.", min=1)] = 7,
    seed: Annotated[int, typer.Option(help="Of the drawn policy step.")] = 1,
    profile: Annotated[str, typer.Option(help="How it is coded: fast or tight.")] = "fast",
    json: JsonTarget = None,
) -> None:
    """Encode, and decode and apply, one policy step on one core, beside merely reading both versions."""
    from rich.console import Console

    from bench.codec import print_codec_report, run_codec_bench

    report = run_codec_bench(parse_size(size), density, seed, profile=profile, rounds=rounds)
    print_codec_report(report, Console(file=sys.stderr if json == "-" else sys.stdout))
    if json is not None:
        report_json(report, json)


def parse_size(text: str) -> int:
    """Bytes of `256MB` or `1.5GB`. Raises `UsageError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(MB|GB)", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"--size {text!r}: write it like 256MB or 1GB")
    return int(float(found[1]) * _SCALES[found[2].upper()])
