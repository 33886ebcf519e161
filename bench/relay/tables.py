"""The relay bench's tables, for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from p2psync.bench.relay.bench import limit_of
from p2psync.bench.relay.report import RelayLine, RelayReport, kinds, lines, times_cheaper
from p2psync.bench.swarm.contenders import P2PSYNC


def print_relay_report(report: RelayReport, console: Console | None = None) -> None:
    """Prints a table for each size and limit, a comparison, and an explanation."""
    console = console or Console()
    to = "a leaf" if report.leaves == 1 else f"{report.leaves} leaves"
    console.print(f"\n[bold]A relay[/bold] that receives everything once and passes it on to {to}, {report.congestion}")
    for (rate, size), runs in kinds(report.passages).items():
        found = lines(runs)
        if found:
            console.print(_table(f"{size / (1 << 20):.4g} MiB, links of {limit_of(rate)}", found))
        for baseline in dict.fromkeys(run.contender for run in runs if run.contender != P2PSYNC):
            times = times_cheaper(runs, P2PSYNC, baseline)
            if times is not None:
                console.print(f"{baseline} takes {times:.2f} times the CPU time of {P2PSYNC} for the same bytes")
    for run in report.passages:
        if run.trouble:
            console.print(f"{run.contender}, round {run.round + 1}: {run.trouble}", style="dim")
    for text in report.skipped:
        console.print(text, style="dim")
    console.print(
        "CPU time: of the relay's process alone, user and kernel; part of the kernel's work of receiving a packet "
        "counts to whoever sent it, at all contenders alike\n"
        f"{report.cpu}, {report.cpus_allowed} core(s) for seed, relay and leaves; files on {report.file_system}; "
        f"load before {report.load_before:.1f}",
        style="dim",
    )


def _table(title: str, found: list[RelayLine]) -> Table:
    table = Table("", title=title, title_justify="left")
    for head in (
        "runs",
        "CPU s per GB",
        "MB per CPU s",
        "of a core at 1 Gbit/s",
        "seconds",
        "Mbit/s through",
        "of a core in use",
        "received, to the payload",
        "pieces of",
    ):
        table.add_column(head, justify="right")
    for line in found:
        table.add_row(
            line.contender,
            str(line.runs),
            f"{line.per_gb:.2f}{_spread(line, line.per_gb_least, line.per_gb_most)}",
            f"{line.per_cpu_second:.0f}",
            f"{line.share:.2f}",
            f"{line.seconds:.2f}{_spread(line, line.seconds_least, line.seconds_most)}",
            f"{line.through:.0f}",
            f"{line.busy:.2f}",
            f"{line.waste:.3f}",
            f"{line.piece_bytes / 1024:.0f} KiB",
            style="bold" if line.contender == P2PSYNC else "",
        )
    return table


def _spread(line: RelayLine, least: float, most: float) -> str:
    return f" ({least:.2f} – {most:.2f})" if line.runs > 1 else ""
