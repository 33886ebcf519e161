"""How the benchmarks hand out their figures: JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2psync.cli.output import report_json

if TYPE_CHECKING:
    import msgspec

    from p2psync.bench.summary import Figure

#: The option of every benchmark.
CsvTarget = Annotated[
    Path | None,
    typer.Option("--csv", metavar="FILE", help="The figures as CSV: median, least and most of each, a line each."),
]


def write_figures(
    bench: str, report: msgspec.Struct, figures: Sequence[Figure], json: str | None, csv: Path | None
) -> None:
    """Writes a report where `--json` and `--csv` say. Raises `StoreError` and `UsageError` where that cannot be."""
    from p2psync.bench.summary import with_figures, write_csv

    if json is not None:
        report_json(with_figures(bench, report, figures), json)
    if csv is not None:
        write_csv(figures, csv)
