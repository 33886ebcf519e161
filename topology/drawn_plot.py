"""Draws the ratios to the bound on drawn networks: their distribution, and each network's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p2psync.errors import UsageError
from p2psync.topology.drawn_report import DrawnRun
from p2psync.topology.picture import check_installed

#: Okabe and Ito's colours, which colour-blind people can tell apart.
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#999999", "#E69F00", "#56B4E9")
_INK = "#222222"


def plot_runs(runs: Sequence[DrawnRun], path: Path, beside: Sequence[DrawnRun] = ()) -> None:
    """Writes a .png or .svg file. beside: the same networks elsewhere, of which the first contender or policy is drawn.

    Transfers that did not end are left out of the lines, which then stay below 1. Raises `UsageError` without
    matplotlib, or if the file cannot be written.
    """
    check_installed()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "p2psync"}):
        figure = Figure(figsize=(12.5, 5.2), layout="constrained", facecolor="white")
        axes: Any = figure.subplots(1, 2)
        names = list(dict.fromkeys(name for run in runs for name in run.results))
        for i, name in enumerate(names):
            style = {"color": _COLOURS[i % len(_COLOURS)], "lw": 2.2 if i == 0 else 1.2}
            _distribution(axes[0], runs, name, label=name, **style)
            _networks(axes[1], runs, name, color=style["color"])
        if beside:
            name = f"{beside[0].subject}, {beside[0].tcp} TCP"
            _distribution(axes[0], beside, beside[0].subject, label=name, color=_INK, lw=1.2, ls=":")
            _networks(axes[1], beside, beside[0].subject, color=_INK, mfc="white")
        _frame(axes)
        payload = runs[0].network.payload_bytes / (1 << 20)
        figure.suptitle(f"{payload:.4g} MiB on {len(runs)} drawn networks, {runs[0].tcp} TCP", color=_INK)
        # Without dates and versions, equal runs give equal bytes.
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        try:
            figure.savefig(path, dpi=160, metadata=metadata)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot write {path}: {error}") from error


def _frame(axes: Any) -> None:
    axes[0].axvline(1, color=_INK, ls=(0, (4, 2)), lw=1)
    axes[0].set(
        xscale="log", xlabel="time, as a multiple of the bound", ylabel="share of all transfers", ylim=(0, 1.02)
    )
    axes[1].axhline(1, color=_INK, ls=(0, (4, 2)), lw=1)
    axes[1].set(yscale="log", xlabel="seed of the network", ylabel="median time, as a multiple of the bound")
    axes[1].xaxis.get_major_locator().set_params(integer=True)
    for axis in (axes[0].xaxis, axes[1].yaxis):
        axis.set_major_locator(_ratio_ticks())
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes[0].legend(frameon=False)


def _ratio_ticks() -> Any:
    from matplotlib.ticker import LogLocator

    return LogLocator(subs=(1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 7.0))


def _distribution(axes: Any, runs: Sequence[DrawnRun], name: str, **style: Any) -> None:
    transfers = [one for run in runs for one in run.results.get(name, [])]
    ratios = sorted(one.ratio for one in transfers if one.ratio is not None)
    shares = [(k + 1) / len(transfers) for k in range(len(ratios))]
    axes.step([1.0, *ratios], [0.0, *shares], where="post", **style)


def _networks(axes: Any, runs: Sequence[DrawnRun], name: str, **style: Any) -> None:
    points = [(run.network.seed, run.ratio(name)) for run in runs if run.ratio(name) < float("inf")]
    if points:
        axes.plot(*zip(*points, strict=True), marker="o", ls="", ms=6, **style)
