"""A picture of a race: how fast the payload came to the receivers, and how long each contender took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p2psync.bench.swarm.report import HEADERS, RaceRun, SwarmReport, lines
from p2psync.errors import UsageError

#: Okabe and Ito's colours, which colour-blind people can tell apart.
_COLOURS = {
    "p2psync": "#D55E00",
    "aria2": "#0072B2",
    "libtorrent": "#009E73",
    "libtorrent-super": "#CC79A7",
    "rsync": "#999999",
}
_INK = "#222222"


def plot_swarm_report(report: SwarmReport, path: Path) -> None:
    """Write a PNG (or what the suffix says). Raises `UsageError` without matplotlib, or if it cannot be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'p2psync[bench]'") from error
    figure = Figure(figsize=(12.5, 5.2), layout="constrained", facecolor="white")
    axes: Any = figure.subplots(1, 2, width_ratios=[1.4, 1])
    _progress(axes[0], report)
    _bars(axes[1], report)
    figure.suptitle(
        f"{report.topology}: {report.payload_bytes / (1 << 20):.4g} MiB to {len(report.receivers)} hosts, "
        f"{report.congestion}",
        color=_INK,
    )
    figure.text(0.995, 0.97, f"{report.cpu}, {report.cpus_allowed} core(s)", ha="right", fontsize=7, color="#777777")
    try:
        figure.savefig(path, dpi=160)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {path}: {error}") from error


def _progress(axes: Any, report: SwarmReport) -> None:
    """Draws each contender's middle run: a thin line for each receiver."""
    for name, run in middle_runs(report.runs).items():
        for i in range(len(report.receivers)):
            points = [(sample.seconds, sample.received[i] / run.payload_bytes) for sample in run.progress]
            axes.plot(*zip(*points, strict=True), color=_COLOURS.get(name), lw=0.7, alpha=0.6, label="" if i else name)
    axes.axvline(report.floor, color=_INK, ls=(0, (4, 2)), lw=1, label="floor")
    axes.axhline(HEADERS, color="#bbbbbb", lw=0.8)
    axes.set(xlabel="seconds", ylabel="received, headers included, in payloads", ylim=(0, None), xlim=(0, None))
    axes.legend(frameon=False)


def _bars(axes: Any, report: SwarmReport) -> None:
    found = [line for line in lines(report.runs) if line.ratio is not None]
    names = [", ".join(filter(None, (x.contender, "cold" if x.cold else "", x.fault))) for x in found]
    ratios = [line.ratio or 0.0 for line in found]
    bars = axes.barh(names, ratios, color=[_COLOURS.get(line.contender) for line in found])
    axes.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=3)
    axes.axvline(1, color=_INK, ls=(0, (4, 2)), lw=1)
    axes.invert_yaxis()
    axes.set(xlabel="until the last host has everything, to the floor")
    axes.margins(x=0.12)


def middle_runs(runs: list[RaceRun]) -> dict[str, RaceRun]:
    """Returns each contender's warm run of median time, without faults, among those that came to an end."""
    found: dict[str, list[RaceRun]] = {}
    for run in runs:
        if run.seconds is not None and run.progress and not run.cold and not run.fault:
            found.setdefault(run.contender, []).append(run)
    return {name: sorted(those, key=lambda run: run.seconds or 0.0)[len(those) // 2] for name, those in found.items()}
