"""One picture of a report: bits per changed unit against density, and speeds as shares of reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.report import CodecReport, DeltaReport
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
    "independent": ("nothing known", "#444444", (0, (1, 1.5))),
    "exponent": ("given the old exponent", "#444444", (0, (5, 2))),
    "history": ("given exponent and history", "#444444", (0, (8, 2, 1, 2))),
}
_INK = "#222222"


def plot_codec_report(report: CodecReport, path: Path) -> None:
    """Write a PNG (or what the suffix says). Raises `UsageError` without matplotlib, or if it cannot be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'p2psync[bench]'") from error
    timed = max((delta for delta in report.deltas if delta.speeds), key=_speed_order, default=None)
    figure = Figure(figsize=(13.5, 5.8) if timed else (8.6, 5.8), layout="constrained", facecolor="white")
    axes: Any = figure.subplots(1, 2 if timed else 1, width_ratios=[1.25, 1] if timed else None, squeeze=False)[0]
    _sizes(axes[0], report.deltas)
    if timed is not None:
        _speeds(axes[1], timed)
    figure.text(
        0.995,
        0.005,
        f"{report.cpu}, {report.cpus_allowed} core(s)",
        ha="right",
        va="bottom",
        fontsize=7,
        color="#777777",
    )
    try:
        figure.savefig(path, dpi=160)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {path}: {error}") from error


def _speed_order(delta: DeltaReport) -> float:
    """The nearest to 1 % changed, of those that were timed."""
    return -abs(delta.density - 0.01)


def _sizes(axes: Any, deltas: list[DeltaReport]) -> None:
    ordered = sorted(deltas, key=lambda delta: delta.density)
    for name, (colour, marker) in _STYLES.items():
        found = [(100 * d.density, size) for d in ordered if (size := d.format(name)) and size.bits < 60]
        if not found:
            continue
        ours = name in ("fast", "tight")
        axes.plot(
            [x for x, _ in found],
            [size.bits for _, size in found],
            color=colour,
            marker=marker,
            ms=6 if ours else 4.5,
            lw=2.2 if ours else 1.1,
            alpha=1 if ours else 0.9,
            zorder=4 if ours else 3,
            label=found[0][1].title,
        )
    for name, (title, colour, dashes) in _BOUNDS.items():
        points = [(100 * d.density, bound.bits) for d in ordered if (bound := getattr(d.bounds, name)) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, ls=dashes, lw=1.2, zorder=2, label=f"bound: {title}")
    lowest = [(100 * d.density, d.bounds.exponent.bits) for d in ordered]
    if len(lowest) > 1:
        x, y = zip(*lowest, strict=True)
        axes.fill_between(x, 0, y, color="#444444", alpha=0.06, lw=0, zorder=1)
    _frame(axes, "Bits per changed element, everything counted")
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [4, 5, 6, 7, 8, 10, 12, 16, 20, 26, 32, 48]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylim(4, 60)
    axes.minorticks_off()
    at = [t for t in (0.1, 0.2, 0.3, 0.5, 1, 2, 3, 4, 6, 10) if _within(t, ordered)]
    axes.set_xticks(at, [f"{tick:g} %" for tick in at])
    axes.set_xlabel("changed elements of the model", color=_INK)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: -float(handles[i].get_ydata()[0]))
    axes.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        fontsize=8,
        frameon=False,
        ncols=2,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.11),
    )


def _within(tick: float, ordered: list[DeltaReport]) -> bool:
    return 0.8 * 100 * ordered[0].density <= tick <= 1.25 * 100 * ordered[-1].density


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
            axes.text(ratio + 0.015 * top, y, text, va="center", fontsize=8, color=_INK, zorder=4)
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
