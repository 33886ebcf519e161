"""Draws a simulated swarm: each region's progress over time, and the share of finished nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p2psync.errors import UsageError
from p2psync.topology.fluid.report import SwarmFigures
from p2psync.topology.fluid.trace import Trace

_INK, _QUIET = "#222222", "#777777"


def plot_swarm(figures: SwarmFigures, trace: Trace, path: Path) -> None:
    """Writes a PNG (or the format of the suffix). Raises `UsageError` without matplotlib, or if the file cannot be
    written."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'p2psync[plot]'") from error
    figure = Figure(figsize=(12.5, 5.2), layout="constrained", facecolor="white")
    axes: Any = figure.subplots(1, 2, width_ratios=[1.5, 1])
    _regions(axes[0], figures, matplotlib.colormaps["viridis"])
    _nodes(axes[1], figures, trace)
    churn = f", {100 * figures.churn:g} % leave and join a minute" if figures.churn else ""
    figure.suptitle(
        f"{figures.actors} actors in {figures.regions} regions, {figures.payload_bytes / (1 << 20):.4g} MiB{churn}",
        color=_INK,
    )
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {path}: {error}") from error


def _regions(axes: Any, figures: SwarmFigures, colours: Any) -> None:
    """Draws a line for each region and version: the mean share that its live nodes hold."""
    for a in range(figures.regions):
        colour = colours(a / max(1, figures.regions - 1))
        for version in figures.versions:
            points = [(version.published, 0.0)]
            points += [
                (s.time, share)
                for s in figures.samples
                if s.version == version.version and (share := s.progress[a]) is not None
            ]
            axes.plot(*zip(*points, strict=True), color=colour, lw=0.8, alpha=0.7)
    busiest = [(s.time, s.busiest) for s in figures.samples]
    axes.plot(*zip(*busiest, strict=True), color=_QUIET, lw=0.8, ls=":", label="use of the busiest region link")
    for i, version in enumerate(figures.versions):
        line = axes.axvline(version.published + figures.bound, color=_INK, ls=(0, (4, 2)), lw=1)
        if i == 0:
            line.set_label("bound")
    axes.set(xlabel="seconds", ylabel="share of the newest payload held, a line for each region", ylim=(0, 1.05))
    axes.set_xlim(0, None)
    axes.legend(loc="lower right", framealpha=1, edgecolor="white")


def _nodes(axes: Any, figures: SwarmFigures, trace: Trace) -> None:
    """Draws the share of nodes that have all chunks, by time since the version was published."""
    for version in figures.versions:
        times = sorted(t - version.published for t in trace.finished.get(version.version, {}).values())
        shares = [(k + 1) / len(times) for k in range(len(times))]
        axes.plot([t / figures.bound for t in times], shares, lw=1.2, label=f"version {version.version}")
    axes.axvline(1, color=_INK, ls=(0, (4, 2)), lw=1)
    axes.set(
        xlabel="time since publication, in bounds",
        ylabel="share of nodes that have all chunks",
        ylim=(0, 1.02),
    )
    axes.set_xlim(0, None)
    axes.legend(frameon=False, loc="upper left")
