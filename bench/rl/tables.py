"""The tables of the loops, for people."""

from __future__ import annotations

from itertools import groupby
from statistics import median

from rich.console import Console
from rich.table import Table

from p2psync.bench.rl.report import P2PSYNC, LoopLine, LoopRun, RlReport, lines
from p2psync.bench.rl.scale import FIFO, FREE, FULL, SPARSE, STRICT

NAMES = {
    FREE: "no-cost sync",
    P2PSYNC: "p2psync",
    FULL: "full: replaced",
    FIFO: "full: finished",
    STRICT: "full: in order",
    SPARSE: "full: sparse",
}


def print_rl_report(report: RlReport, console: Console | None = None) -> None:
    """Prints the loop's settings, for each network a line for each way, and how to read them."""
    console = console or Console()
    console.print(
        f"\nA loop as of a 16 GB model: {report.generation:g} s of generation and {report.learning:g} s of learning a "
        f"step, prompts of {report.answer:g} s, {report.slots} at a time on each actor, up to {report.staleness} "
        f"version(s) behind; {100 * report.density:g} % of the weights change"
    )
    console.print(
        f"Tokens are arithmetic that takes {report.burnt_share:.2g} of a core here for an actor, optimizer steps wait "
        f"for the clock, {report.faster:g} times as fast; the rest runs: {report.model_bytes / 1e6:g} MB of bf16 "
        "weights over links slower by as much. Round trips and leases are not made faster, so they weigh "
        f"{report.faster:g} times more than there; staging and pauses are charged as of the real model, where "
        f"{report.machine_share:.2g} of a core here stands for an actor's machine",
        style="dim",
    )
    for (regions, gbit), found in groupby(lines(report.runs), lambda line: (line.run.regions, line.run.gbit)):
        console.print(_table(f"{regions} region(s), links of {gbit:g} Gbit/s", list(found), report))
    console.print(
        "full: a newer version takes the place of one under way (replaced), each finishes before the next, or as few "
        "are sent as staleness allows (sparse); lost: to the no-cost sync; to full: to the fastest full broadcast that "
        "ran; to ideal: to one at the bound; idle, of the actors' time: no prompt, no version, paused for a commit, "
        "staging, and no core, which is this machine's doing; behind: versions between an answer and the policy that "
        "learns from it, mean and most; live: until the last actor has it, median, as in the real loop; MB: sent by "
        "the trainer, as they were here. Staging and pauses of full broadcasts are not charged",
        style="dim",
    )
    for text in [*spreads(report), *headlines(report)]:
        console.print(text)
    for run in report.runs:
        for text in _diagnostics(run):
            what = f"{NAMES[run.way]}, {run.gbit:g} Gbit/s, {run.regions} region(s), round {run.round + 1}"
            console.print(f"{what}: {text}", style="dim")
    console.print(
        f"{report.cpu}, {report.cpus_allowed} core(s) for all processes and their network; 1 % of packets were over "
        f"{report.late_ms:.2g} ms late; load before {report.load_before:.1f}",
        style="dim",
    )


def _table(title: str, found: list[LoopLine], report: RlReport) -> Table:
    table = Table(title=title, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    for head in (
        "tokens/s",
        "lost",
        "to full",
        "to ideal",
        "s/step",
        "idle",
        "no prompt",
        "no version",
        "paused",
        "staging",
        "no core",
        "behind",
        "live, s",
        "MB/step",
    ):
        table.add_column(head, justify="right", no_wrap=True)
    for line in found:
        run, idle = line.run, line.run.idle
        table.add_row(
            NAMES[run.way],
            "–" if line.tokens is None else f"{line.tokens:.0f}",
            _percent(line.lost),
            _times(line.times),
            _times(line.to_ideal),
            f"{run.seconds_per_step:.1f}",
            _percent(idle.whole),
            _percent(idle.without_work),
            _percent(idle.without_version),
            _percent(idle.paused),
            _percent(idle.staging),
            _percent(idle.behind),
            f"{run.staleness_mean:.2f}, ≤ {run.staleness_most}",
            f"{median(run.spread) * report.faster:.1f}" if run.spread else "–",
            f"{run.uplink_bytes / 1e6:.2f}",
            style="bold" if run.way == P2PSYNC else "",
        )
    return table


def headlines(report: RlReport) -> list[str]:
    """Returns a line for each network: how p2psync compares with the full broadcast that is fastest."""
    found = []
    for line in lines(report.runs):
        run = line.run
        if run.way != P2PSYNC or line.times is None:
            continue
        copies = [
            f"; one at the bound takes {other.ideal_copy_seconds:.1f} s for a copy and makes "
            f"{other.ideal_tokens_per_second:.0f} tokens/s, p2psync {_times(line.to_ideal)} of them"
            for other in report.runs
            if (other.gbit, other.regions) == (run.gbit, run.regions) and other.ideal_copy_seconds
        ]
        found.append(
            f"{run.gbit:g} Gbit/s, {run.regions} region(s): p2psync makes {line.times:.2f} times the tokens of the "
            f"fastest full broadcast{copies[0] if copies else ''}"
        )
    return found


def _diagnostics(run: LoopRun) -> list[str]:
    found = []
    if run.trouble:
        found.append(run.trouble)
    if run.skipped:
        found.append(f"{run.skipped} version(s) never sent, for a newer one waited: a strict order takes longer")
    if run.other_weights:
        found.append(f"OTHER WEIGHTS than the published ones on {', '.join(run.other_weights)}")
    if run.refused:
        found.append("results that did not count: " + ", ".join(f"{n} {why}" for why, n in run.refused.items()))
    return found


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def spreads(report: RlReport) -> list[str]:
    """Returns a line for each way that ran in several rounds: its median of tokens/s, and their spread."""
    return [
        f"{line.run.gbit:g} Gbit/s, {line.run.regions} region(s): {NAMES[line.run.way]} makes {line.tokens:.0f} "
        f"tokens/s ({line.least:.0f} – {line.most:.0f} in {len(line.runs)} rounds)"
        for line in lines(report.runs)
        if len(line.runs) > 1 and line.tokens is not None
    ]


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}×"
