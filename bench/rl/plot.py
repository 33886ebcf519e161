"""A picture of the loops: their tokens/s, and what their actors and trainers did when."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from p2psync.bench.rl.report import P2PSYNC, LoopRun, RlReport, lines
from p2psync.bench.rl.scale import FIFO, FREE, FULL, SPARSE, STRICT
from p2psync.bench.rl.tables import NAMES
from p2psync.errors import UsageError

#: Okabe and Ito's colours, which colour-blind people can tell apart.
_COLOURS = {FREE: "#999999", P2PSYNC: "#D55E00", FULL: "#0072B2", FIFO: "#56B4E9", STRICT: "#009E73", SPARSE: "#CC79A7"}
_INK = "#222222"


def plot_rl_report(report: RlReport, path: Path) -> None:
    """Write a PNG (or what the suffix says). Raises `UsageError` without matplotlib, or if it cannot be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'p2psync[bench]'") from error
    figure = Figure(figsize=(12.5, 5.2), layout="constrained", facecolor="white")
    axes: Any = figure.subplots(1, 2, width_ratios=[1, 1.3])
    _rates(axes[0], report)
    _times(axes[1], report)
    figure.suptitle(
        f"A loop as of a 16 GB model: {report.generation:g} s of generation, {report.learning:g} s of learning a step, "
        f"up to {report.staleness} version(s) behind",
        color=_INK,
    )
    figure.text(
        *(0.995, 0.975),
        f"{report.model_bytes / 1e6:g} MB of weights, {report.faster:g} times as fast; {report.cpu}, "
        f"{report.cpus_allowed} core(s)",
        ha="right",
        fontsize=7,
        color="#777777",
    )
    try:
        figure.savefig(path, dpi=160)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {path}: {error}") from error


def _rates(axes: Any, report: RlReport) -> None:
    """Bars of tokens/s, network by network."""
    networks = groupby(lines(report.runs), lambda line: (line.run.gbit, line.run.regions))
    labels, places, at = [], [], 0.0
    named: set[str] = set()
    for (gbit, regions), found in networks:
        group = [line for line in found if line.tokens is not None]
        for line in group:
            run, tokens = line.run, (line.tokens or 0.0) / 1000
            label = "" if run.way in named else NAMES[run.way]
            named.add(run.way)
            bar = axes.bar(at, tokens, width=0.9, color=_COLOURS.get(run.way), label=label)
            axes.bar_label(bar, [f"{tokens:.1f}"], fontsize=7)
            at += 1
        places.append(at - (len(group) + 1) / 2)
        labels.append(f"{gbit:g} Gbit/s\n{regions} region(s)")
        at += 0.6
    axes.set_xticks(places, labels, fontsize=8)
    axes.set(ylabel="thousand tokens/s learned from")
    if named:
        axes.legend(frameon=False, fontsize=8)


def _times(axes: Any, report: RlReport) -> None:
    """Draws a row for each way's middle run: answers there, learning, and when the version was live on the actors."""
    runs = [line.run for line in lines(report.runs) if line.run.steps]
    for row, run in enumerate(runs):
        _row(axes, row, run, report.faster)
    axes.set_yticks(
        range(len(runs)), [f"{NAMES[run.way]}\n{run.gbit:g} Gbit/s, {run.regions}" for run in runs], fontsize=7
    )
    axes.invert_yaxis()
    axes.set(
        xlabel="seconds of the real loop; bars: learning; dots: the new version is live on an actor", xlim=(0, None)
    )


def _row(axes: Any, row: int, run: LoopRun, faster: float) -> None:
    for step in run.steps:
        axes.barh(
            *(row, (step.published - step.collected) * faster),
            left=step.collected * faster,
            height=0.5,
            color=_COLOURS.get(run.way),
            alpha=0.7,
        )
        moments = [moment * faster for moment in step.live.values()]
        axes.plot(moments, [row + 0.33] * len(moments), ".", ms=3, color=_INK)
