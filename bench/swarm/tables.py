"""The race's table, for people."""

from __future__ import annotations

import statistics

from rich.console import Console
from rich.table import Table

from p2psync.bench.swarm.contenders import LIBTORRENT, P2PSYNC, SUPER
from p2psync.bench.swarm.report import HEADERS, SwarmLine, SwarmReport, lines, times_faster


def print_swarm_report(report: SwarmReport, console: Console | None = None) -> None:
    """Prints the payload and the network, a line for each contender and kind of run, and how to read them."""
    console = console or Console()
    what = f"{'a delta' if report.delta else 'a payload'} of {report.payload_bytes / (1 << 20):.4g} MiB"
    console.print(
        f"\n[bold]{report.topology}[/bold]: {what} to {len(report.receivers)} hosts, {report.congestion}; at most "
        f"{report.bound:.4g} Mbit/s to all at once, because of {report.because}"
    )
    console.print(f"floor {report.floor:.2f} s; with TCP and IP headers about {report.floor * HEADERS:.2f} s")
    found = lines(report.runs)
    console.print(_table(found))
    for line in comparisons(found):
        console.print(line)
    for start, seconds in longer_times(report).items():
        console.print(f"{P2PSYNC}, from when: {start}: {seconds:.2f} s", style="dim")
    if planned := [run.planned for run in report.runs if run.planned and not run.cold]:
        console.print(f"plans, from measuring, had {min(planned):.4g} to {max(planned):.4g} Mbit/s", style="dim")
    for fault, ratio in fault_ratios(found).items():
        console.print(f"{P2PSYNC}, {fault}: {ratio:.2f} times the run without{_replanned(found, fault)}")
    for text in [*report.skipped, *(_trouble(report))]:
        console.print(text, style="dim")
    console.print(
        f"{report.cpu}, {report.cpus_allowed} core(s) for all hosts and their network; 1 % of packets were over "
        f"{report.late_ms:.2g} ms late; load before {report.load_before:.1f}",
        style="dim",
    )


def comparisons(found: list[SwarmLine]) -> list[str]:
    """Returns a line for each other contender; of one client's two options the better one counts."""
    found_lines = []
    for cold in (False, True):
        ratios = {
            name: ratio
            for name in dict.fromkeys(line.contender for line in found if line.contender != P2PSYNC)
            if (ratio := times_faster(found, P2PSYNC, name, cold=cold)) is not None
        }
        if LIBTORRENT in ratios and SUPER in ratios:
            worse = max(LIBTORRENT, SUPER, key=lambda name: ratios[name])
            del ratios[worse]
        found_lines += [
            f"{name} takes {ratio:.2f} times as long as {P2PSYNC}{', cold' if cold else ''}"
            for name, ratio in ratios.items()
        ]
    return found_lines


def longer_times(report: SwarmReport) -> dict[str, float]:
    """Returns medians of p2psync, warm and undisturbed, counted from earlier moments."""
    runs = [run.more_seconds for run in report.runs if run.contender == P2PSYNC and not run.cold and not run.fault]
    runs = [more for more in runs if more]
    return {start: statistics.median(more[start] for more in runs) for start in (runs[0] if runs else {})}


def fault_ratios(found: list[SwarmLine]) -> dict[str, float]:
    """Returns how many times as long p2psync takes with each fault."""
    plain = next(
        (line.seconds for line in found if (line.contender, line.cold, line.fault) == (P2PSYNC, False, "")), None
    )
    if not plain:
        return {}
    return {line.fault: line.seconds / plain for line in found if line.fault and line.seconds}


def _replanned(found: list[SwarmLine], fault: str) -> str:
    after = next((line.replanned for line in found if (line.contender, line.fault) == (P2PSYNC, fault)), None)
    return "" if after is None else f", replanned {after:.1f} s after it"


def _trouble(report: SwarmReport) -> list[str]:
    return [f"{run.contender}, round {run.round + 1}: {run.trouble}" for run in report.runs if run.trouble]


def _table(found: list[SwarmLine]) -> Table:
    table = Table("", title="Until the last host has everything, verified", title_justify="left")
    for head in (
        "runs",
        "median, s",
        "least – most",
        "to the floor",
        "copies from the trainer",
        "copies into a region, at most",
        "CPU seconds, all hosts",
    ):
        table.add_column(head, justify="right")
    for line in found:
        name = ", ".join(filter(None, (line.contender, "cold" if line.cold else "", line.fault)))
        table.add_row(
            name,
            str(line.runs) if line.runs == line.finished else f"{line.finished} of {line.runs}",
            _number(line.seconds),
            f"{_number(line.least)} – {_number(line.most)}",
            _number(line.ratio),
            f"{line.trainer_copies:.2f}",
            _number(line.region_copies),
            f"{line.cpu_seconds:.1f}",
            style="bold" if line.contender == P2PSYNC else "",
        )
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
