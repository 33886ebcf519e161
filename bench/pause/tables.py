"""The benchmark of the pause on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from p2psync.bench.pause.report import PauseReport, ShareReport


def print_pause_report(report: PauseReport, console: Console) -> None:
    """Prints a table for each share, and how the pause compares with the baselines."""
    for share in report.shares:
        console.print(_table(report, share))
        for line in _lines(share):
            console.print(line)
    console.print(
        f"{report.model}, {report.model_bytes / 1e6:.0f} MB, tensor parallel {report.tensor_parallel}, "
        f"{report.requests} requests running; {report.cpu}"
    )


def _table(report: PauseReport, share: ShareReport) -> Table:
    table = Table(title=f"{100 * share.share:g} % changed: {share.elements:,} live elements of rank 0")
    table.add_column("what")
    for column in ("changed elements", "p50, ms", "least – p99", "ns an element", "runs", "to a bare scatter"):
        table.add_column(column, justify="right")
    for times in share.times:
        ratio = share.ratio(times.name, "scatter")
        compared = f"{ratio:.2f}" if ratio is not None else ""
        table.add_row(
            times.title,
            f"{times.elements:,}",
            f"{1e3 * times.p50:.2f}",
            f"{1e3 * min(times.runs):.2f} – {1e3 * times.p99:.2f}",
            f"{1e9 * times.p50 / max(1, times.elements):.1f}",
            str(len(times.runs)),
            compared,
        )
    return table


def _lines(share: ShareReport) -> list[str]:
    found = []
    for name, said in (
        ("scatter", "a bare scatter"),
        ("sparse_loader", "vLLM's sparse loader"),
        ("reload", "a reload"),
    ):
        still, wrote = share.ratio("pause", name), share.ratio("write", name)
        if still is not None and wrote is not None:
            found.append(
                f"for {share.elements:,} changed elements the engine stood still {still:.2f} times as long as {said} "
                f"takes, and wrote {wrote:.2f}"
            )
    return found
