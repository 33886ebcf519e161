"""One picture of a report: bits per changed unit against density, and speeds as shares of reading."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from p2psync.bench.report import CodecReport, DeltaReport
from p2psync.errors import UsageError

#: Colour and marker of each format; Okabe and Ito's colours, which colour-blind people can tell apart.
_STYLES = {
    "int32": ("#999999", "v"),
    "sparrow": ("#CC79A7", "s"),
    "pulse": ("#E69F00", "D"),
    "nemo": ("#56B4E9", "^"),
    "xor": ("#009E73", "P"),
    "xdelta3": ("#999999", "x"),
    "bsdiff": ("#666666", "+"),
    "fast": ("#0072B2", "o"),
    "tight": ("#D55E00", "o"),
}
_BOUNDS = {
    "independent": ("nothing known", (0, (1, 1.5))),
    "exponent": ("given the old exponent", (0, (5, 2))),
    "history": ("given exponent and history", (0, (8, 2, 1, 2))),
}
#: Of recorded deltas; the first bound would only clutter them.
_BOUND_MARKS = {"exponent": "_", "history": "1"}
_DARK = "#444444"
_INK = "#222222"


def check_installed() -> None:
    """Raise `UsageError` without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'p2psync[plot]'")


def plot_codec_report(report: CodecReport, path: Path) -> None:
    """Write a PNG (or what the suffix says). Raises `UsageError` without matplotlib, or if it cannot be written."""
    check_installed()
    from matplotlib.figure import Figure

    timed = max((delta for delta in report.deltas if delta.speeds), key=_speed_order, default=None)
    figure = Figure(figsize=(13.5, 5.8) if timed else (8.6, 5.8), layout="constrained", facecolor="white")
    axes: Any = figure.subplots(1, 2 if timed else 1, width_ratios=[1.25, 1] if timed else None, squeeze=False)[0]
    _sizes(axes[0], report.deltas)
    if timed is not None:
        _speeds(axes[1], timed)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, ncols=4 if timed else 3, loc="outside lower center")
    figure.text(0.995, 0.008, f"{report.cpu}, {report.cpus_allowed} core(s)", ha="right", fontsize=7, color="#777777")
    try:
        figure.savefig(path, dpi=160)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {path}: {error}") from error


def _speed_order(delta: DeltaReport) -> float:
    """The nearest to 1 % changed, of those that were timed."""
    return -abs(delta.density - 0.01)


def _sizes(axes: Any, deltas: list[DeltaReport]) -> None:
    """Lines for drawn deltas; recorded ones are open marks, since their models and learning rates differ."""
    drawn = sorted((d for d in deltas if d.rate is None), key=lambda delta: delta.density)
    recorded = [delta for delta in deltas if delta.rate is not None]
    for name, (colour, marker) in _STYLES.items():
        is_p2psync = name in ("fast", "tight")
        style = {"color": colour, "marker": marker, "ms": 6.5 if is_p2psync else 5, "zorder": 4 if is_p2psync else 3}
        title = next((size.title for d in deltas if (size := d.format(name))), name)
        _line(axes, _points(drawn, name), title, lw=2.2 if is_p2psync else 1.1, **style)
        _marks(axes, _points(recorded, name), "" if _points(drawn, name) else title, **style)
    for name, (title, dashes) in _BOUNDS.items():
        label = f"bound: {title}"
        _line(axes, _bound_points(drawn, name), label, color=_DARK, ls=dashes, lw=1.2, zorder=2)
        if name not in _BOUND_MARKS:
            continue
        style = {"color": _DARK, "marker": _BOUND_MARKS[name], "ms": 8, "zorder": 2}
        _marks(axes, _bound_points(recorded, name), "" if _bound_points(drawn, name) else label, **style)
    _frame(axes, "Bits per changed element, everything counted")
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [4, 5, 6, 7, 8, 10, 12, 16, 20, 26, 32, 48]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylim(3.8, 60)
    axes.minorticks_off()
    shares = [100 * delta.density for delta in deltas]
    at = [t for t in (0.1, 0.2, 0.3, 0.5, 1, 2, 3, 4, 6, 10) if 0.8 * min(shares) <= t <= 1.25 * max(shares)]
    axes.set_xticks(at, [f"{tick:g} %" for tick in at])
    kinds = [word for word, found in (("lines: drawn", drawn), ("open marks: real training", recorded)) if found]
    axes.set_xlabel(f"changed elements of the model ({', '.join(kinds)})", color=_INK)


def _points(deltas: list[DeltaReport], name: str) -> list[tuple[float, float]]:
    found = [(100 * d.density, size.bits) for d in deltas if (size := d.format(name))]
    return [point for point in found if point[1] < 60]


def _bound_points(deltas: list[DeltaReport], name: str) -> list[tuple[float, float]]:
    return [(100 * d.density, bound.bits) for d in deltas if (bound := getattr(d.bounds, name)) is not None]


def _line(axes: Any, points: list[tuple[float, float]], label: str, **style: Any) -> None:
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)


def _marks(axes: Any, points: list[tuple[float, float]], label: str, **style: Any) -> None:
    if points:
        face = {} if style["marker"] in "x+_1" else {"mfc": "white"}
        axes.plot(*zip(*points, strict=True), ls="", mew=1.3, label=label or "_", **face, **style)


def _speeds(axes: Any, delta: DeltaReport) -> None:
    cores = sorted({speed.threads for speed in delta.speeds})
    profiles = list(dict.fromkeys(speed.profile for speed in delta.speeds))
    rows = [("scan and extract", profiles[0], "scan_ratio", "#888888")]
    for field, title in (("encode_ratio", "encode"), ("decode_ratio", "decode and apply")):
        rows += [(f"{title}, {profile}", profile, field, _STYLES[profile][0]) for profile in profiles]
    height = 0.8 / len(cores)
    top = 1.0
    for place, (_, profile, field, colour) in enumerate(rows):
        for turn, threads in enumerate(cores):
            speed = next(s for s in delta.speeds if s.profile == profile and s.threads == threads)
            ratio = getattr(speed, field)
            top = max(top, ratio)
            y = place + (turn - (len(cores) - 1) / 2) * height
            axes.barh(y, ratio, height * 0.9, color=colour, alpha=1 if threads == cores[-1] else 0.55, zorder=3)
            text = f"{ratio:.2f}   {ratio * speed.read_rate / 1e9:.1f} GB/s, {threads} core" + "s" * (threads > 1)
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
            axes.text(ratio + 0.02 * top, y, text, va="center", fontsize=8, color=_INK, zorder=4, bbox=box)
    axes.axvline(1, color="#444444", lw=1.2, ls=(0, (5, 2)), zorder=2)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * top)
    _frame(axes, "Speed as a share of merely reading both copies")
    axes.set_xlabel(
        f"{delta.name}, {100 * delta.density:.2f} % of {delta.model_bytes / 1e9:.2f} GB changed", color=_INK
    )
    axes.grid(False, axis="y")


def _frame(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK, pad=10)
    axes.grid(True, color="#dddddd", lw=0.6, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=_INK)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
