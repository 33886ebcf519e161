"""The tables of the loops, for people."""

from __future__ import annotations

from itertools import groupby
from statistics import median

from rich.console import Console
from rich.table import Table

from p2psync.bench.rl.report import FREE, FULL, P2PSYNC, LoopLine, LoopRun, RlReport, lines

NAMES = {FREE: "no-cost sync", P2PSYNC: "p2psync", FULL: "full broadcast"}


def print_rl_report(report: RlReport, console: Console | None = None) -> None:
    """What the loop is like; for each network a line for each way; how to read it."""
    console = console or Console()
    console.print(
        f"\nA loop as of a 16 GB model: {report.generation:g} s of generation and {report.learning:g} s of learning a "
        f"step, prompts of {report.answer:g} s, {report.slots} at a time on each actor, up to {report.staleness} "
        f"version(s) behind; {100 * report.density:g} % of the weights change"
    )
    console.print(
        f"Tokens and optimizer steps are paced by the clock, {report.faster:g} times as fast; the rest runs: "
        f"{report.model_bytes / 1e6:g} MB of bf16 weights over links slower by as much. Round trips, pauses and leases "
        f"are not made faster, so they weigh {report.faster:g} times more than there",
        style="dim",
    )
    for (regions, gbit), found in groupby(lines(report.runs), lambda line: (line.run.regions, line.run.gbit)):
        console.print(_table(f"{regions} region(s), links of {gbit:g} Gbit/s", list(found), report))
    console.print(
        "of most: of what actors make that never idle; lost: to the no-cost sync; behind: versions between an answer "
        "and the policy that learns from it, mean and most; live after: until the last actor has it, as in the real "
        "loop; pauses and MB are as they were here",
        style="dim",
    )
    for run in report.runs:
        for text in _remarks(run):
            console.print(f"{NAMES[run.way]}, {run.gbit:g} Gbit/s, {run.regions} region(s): {text}", style="dim")
    console.print(
        f"{report.cpu}, {report.cpus_allowed} core(s) for all processes and their network; 1 % of packets were over "
        f"{report.late_ms:.2g} ms late; load before {report.load_before:.1f}",
        style="dim",
    )


def _table(title: str, found: list[LoopLine], report: RlReport) -> Table:
    table = Table("", title=title, title_justify="left")
    for head in (
        "tokens/s",
        "of most",
        "lost",
        "to full",
        "s/step",
        "idle",
        "no prompt",
        "no version",
        "paused",
        "pause p50",
        "p99, ms",
        "behind",
        "live after, s",
        "sent, MB/step",
    ):
        table.add_column(head, justify="right")
    for line in found:
        run, idle = line.run, line.run.idle
        table.add_row(
            NAMES[run.way],
            f"{run.tokens_per_second:.0f}",
            _percent(run.share),
            _percent(line.lost),
            "–" if line.times is None else f"{line.times:.2f}×",
            f"{run.seconds_per_step:.1f}",
            _percent(idle.whole),
            _percent(idle.without_work),
            _percent(idle.without_version),
            _percent(idle.paused),
            _ms(run.pause(50)),
            _ms(run.pause(99)),
            f"{run.staleness_mean:.2f}, ≤ {run.staleness_most}",
            f"{median(run.spread) * report.faster:.1f}" if run.spread else "–",
            f"{run.uplink_bytes / 1e6:.2f}",
            style="bold" if run.way == P2PSYNC else "",
        )
    return table


def _remarks(run: LoopRun) -> list[str]:
    found = []
    if run.trouble:
        found.append(run.trouble)
    if run.other_weights:
        found.append(f"OTHER WEIGHTS than the published ones on {', '.join(run.other_weights)}")
    if run.refused:
        found.append("results that did not count: " + ", ".join(f"{n} {why}" for why, n in run.refused.items()))
    return found


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:.1f}"
