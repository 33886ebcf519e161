"""Writes the figures of benchmarks as JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from p2psync.cli.output import report_json

#: The option of every benchmark.
CsvTarget = Annotated[
    Path | None,
    typer.Option("--csv", metavar="FILE", help="The figures as CSV: median, least and most of each, a line each."),
]


def write_figures(bench: str, report: Any, figures: Sequence[Any], json: str | None, csv: Path | None) -> None:
    """Writes a report (a struct) and its figures (`p2psync.bench.summary.Figure`) where `--json` and `--csv` say.

    Raises `StoreError` and `UsageError` where that cannot be.
    """
    from p2psync.bench.summary import with_figures, write_csv

    if json is not None:
        report_json(with_figures(bench, report, figures), json)
    if csv is not None:
        write_csv(figures, csv)
