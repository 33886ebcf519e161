"""Draws a plan: regions and the load of the links between them, and the heaviest trees."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from p2psync.errors import UsageError
from p2psync.topology.network import Floats, Ints, Network
from p2psync.topology.plan import LinkLoad, Plan, link_loads
from p2psync.topology.text import region_trees

#: Trees drawn next to the map.
_TREES = 6
#: Links that are labelled with their figures, the heaviest first.
_LABELS = 16
#: Up to this many nodes each one is labelled.
_NAMED = 30
_INK, _QUIET, _PAPER, _BACKGROUND = "#22303c", "#8a97a3", "#ffffff", "#eef2f5"


def check_installed() -> None:
    """Raise `UsageError` if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("pictures need matplotlib: pip install 'p2psync[plot]'")


def draw(plan: Plan, network: Network, title: str, path: Path) -> None:
    """Draws to a .png or .svg file; unreachable nodes are left out. Raises `UsageError`."""
    check_installed()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    network = network.only(np.isin(network.names, plan.names))
    loads = link_loads(plan, network)
    chosen = _different_trees(plan, network)
    columns = 1 if len(chosen) <= 2 else 2
    rows = max(1, -(-len(chosen) // columns))
    with pyplot.rc_context({"font.size": 9, "svg.hashsalt": "p2psync", "font.family": "DejaVu Sans"}):
        figure = pyplot.figure(figsize=(8.2 + 3.1 * columns, 7.4), facecolor=_PAPER)
        grid = figure.add_gridspec(rows, 1 + columns, width_ratios=[8.2 / 3.1] + [1] * columns)
        figure.subplots_adjust(left=0.01, right=0.99, top=0.9, bottom=0.08, wspace=0.04, hspace=0.16)
        spots, centres, radii = _layout(network)
        whole = figure.add_subplot(grid[:, 0])
        _draw_background(whole, network, centres, radii, names=True)
        _links(whole, network, centres, radii, loads)
        _nodes(whole, plan, network, spots, loads)
        for k, (tree, share) in enumerate(chosen):
            axes = figure.add_subplot(grid[k // columns, 1 + k % columns])
            colour = pyplot.get_cmap("tab10")(k % 10)
            _draw_background(axes, network, centres, radii, names=False)
            _tree(axes, plan, tree, spots, colour)
            axes.set_title(f"{100 * share:.0f} % of the chunks", fontsize=8.5, color=colour, pad=2)
        figure.text(0.015, 0.955, title, fontsize=13, color=_INK, weight="bold")
        figure.text(
            0.015,
            0.025,
            "Arrows: wide by Mbit/s, red where full. Dots: nodes and their uplinks in Mbit/s, red where full; the "
            "star is the trainer.\nRight: the routes that carry most, one tree of each; thin strokes end at leaves.",
            fontsize=8,
            color=_QUIET,
        )
        # Without dates and versions, the same plan gives the same bytes.
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        try:
            figure.savefig(path, dpi=130, metadata=metadata)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: {error}") from None
        finally:
            pyplot.close(figure)


def _different_trees(plan: Plan, network: Network) -> list[tuple[int, float]]:
    """Returns the trees to draw: the heaviest tree of each of the heaviest routes across regions."""
    if len(network.regions) == 1 or not (network.region != network.region[0]).any():
        return [(k, float(plan.shares[k])) for k in range(min(_TREES, len(plan.shares)))]
    chosen = []
    for share, arcs in region_trees(plan, network)[:_TREES]:
        for tree, row in enumerate(plan.parents):
            child = np.flatnonzero(row >= 0)
            own = Counter(zip(network.region[row[child]].tolist(), network.region[child].tolist(), strict=True))
            if {pair: count for pair, count in own.items() if pair[0] != pair[1]} == arcs:
                chosen.append((tree, share))
                break
    return chosen


def _layout(network: Network) -> tuple[Floats, Floats, Floats]:
    """Returns (position of each node, centre of each region, radius of each): regions on a circle, the trainer's on the
    left."""
    members = network.members()
    regions = len(members)
    sizes = np.array([len(nodes) for nodes in members])
    radii = np.where(sizes > 0, 0.13 + 0.075 * np.sqrt(np.minimum(sizes, 40)), 0)
    if regions == 1:
        centres = np.zeros((1, 2))
        radii = np.array([1.0])
    else:
        home = int(network.region[network.trainer])
        order = [home, *[a for a in range(regions) if a != home]]
        angle = np.zeros(regions)
        angle[order] = np.pi - 2 * np.pi * np.arange(regions) / regions
        # A circle large enough that neighbours do not touch.
        radii *= min(1.0, 0.64 * np.sin(np.pi / regions) / radii.max())
        centres = np.stack([np.cos(angle), np.sin(angle)], axis=1) * 1.05
    spots = np.zeros((network.size, 2))
    for a, nodes in enumerate(members):
        spots[nodes] = centres[a] + _ring(len(nodes), radii[a])
    return spots, centres, radii


def _ring(count: int, radius: float) -> Floats:
    """Returns positions within a region: a ring of a few nodes, a sunflower pattern of many."""
    if count == 1:
        return np.zeros((1, 2))
    k = np.arange(count)
    if count <= 16:
        angle, reach = np.pi - 2 * np.pi * k / count, np.full(count, 0.68 * radius)
    else:
        angle, reach = k * np.pi * (3 - np.sqrt(5)), 0.85 * radius * np.sqrt((k + 0.5) / count)
    return np.stack([reach * np.cos(angle), reach * np.sin(angle)], axis=1)


def _draw_background(axes: Any, network: Network, centres: Floats, radii: Floats, *, names: bool) -> None:
    from matplotlib.patches import Circle

    axes.set_aspect("equal")
    axes.axis("off")
    reach = float(np.abs(centres).max() + radii.max()) * 1.08
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)
    for a, (centre, radius) in enumerate(zip(centres, radii, strict=True)):
        if not radius:
            continue
        axes.add_patch(Circle(centre, radius, facecolor=_BACKGROUND, edgecolor="#d5dde3", linewidth=1, zorder=1))
        if names:
            outward = 1 if centre[1] >= -1e-9 else -1
            axes.text(
                centre[0],
                centre[1] + outward * (radius + 0.04),
                network.regions[a],
                ha="center",
                va="bottom" if outward > 0 else "top",
                fontsize=11,
                weight="bold",
                color=_INK,
                zorder=6,
            )


def _links(axes: Any, network: Network, centres: Floats, radii: Floats, loads: list[LinkLoad]) -> None:
    """Draws arrows between regions, their width by load and their colour by utilisation."""
    from matplotlib import colormaps
    from matplotlib.patches import FancyArrowPatch

    index = {name: a for a, name in enumerate(network.regions)}
    carried = [load for load in loads if load.kind == "link" and load.load > 1e-9]
    top = max((load.load for load in carried), default=1.0)
    for load in [one for one in loads if one.kind == "link" and one.load <= 1e-9]:
        a, b = (index[name] for name in load.name.split("→"))
        axes.plot(*centres[[a, b]].T, color="#dfe5ea", linewidth=0.8, zorder=0)
    labelled = {load.name for load in sorted(carried, key=lambda one: -one.load)[:_LABELS]}
    for load in sorted(carried, key=lambda one: one.share):
        a, b = (index[name] for name in load.name.split("→"))
        direction = centres[b] - centres[a]
        length = float(np.hypot(*direction))
        direction /= length
        side = np.array([-direction[1], direction[0]]) * 0.028
        start, end = centres[a] + direction * radii[a] + side, centres[b] - direction * radii[b] + side
        colour = colormaps["YlOrRd"](0.25 + 0.6 * min(1.0, load.share))
        arrow = FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=8 + 6 * load.load / top,
            linewidth=0.8 + 7 * load.load / top,
            color=colour,
            connectionstyle="arc3,rad=-0.08",
            shrinkA=1,
            shrinkB=2,
            zorder=2,
        )
        axes.add_patch(arrow)
        if load.name in labelled:
            # Off the middle, so that labels of crossing links do not meet.
            at = start + (end - start) * 0.36 + side * 0.9 + np.array([-direction[1], direction[0]]) * 0.025 * length
            axes.text(
                *at,
                f"{load.load:.0f}/{load.capacity:.0f}",
                fontsize=8,
                ha="center",
                va="center",
                color=_INK,
                zorder=5,
                bbox={"boxstyle": "round,pad=0.15", "facecolor": _PAPER, "edgecolor": colour, "linewidth": 0.8},
            )


def _nodes(axes: Any, plan: Plan, network: Network, spots: Floats, loads: list[LinkLoad]) -> None:
    from matplotlib import colormaps

    full = {load.name: load.share for load in loads if load.kind == "up"}
    colours = [colormaps["YlOrRd"](0.05 + 0.8 * min(1.0, full.get(name, 0.0))) for name in network.names]
    size = 90 if network.size <= _NAMED else max(6, 1500 / network.size)
    others = np.arange(network.size) != network.trainer
    axes.scatter(*spots[others].T, s=size, c=np.array(colours)[others], edgecolors=_INK, linewidths=0.6, zorder=4)
    axes.scatter(
        *spots[network.trainer],
        s=max(2.6 * size, 150),
        c=[colours[network.trainer]],
        marker="*",
        edgecolors=_INK,
        zorder=5,
    )
    if network.size > _NAMED:
        return
    alone = len(network.regions) == 1
    for i, name in enumerate(network.names):
        short = name.removeprefix(f"{network.regions[network.region[i]]}-")
        axes.annotate(
            f"{name}\n{network.up[i]:g} Mbit/s" if alone else f"{short}: {network.up[i]:g}",
            spots[i],
            textcoords="offset points",
            xytext=(0, -9),
            ha="center",
            va="top",
            fontsize=7.5 if alone else 6.5,
            color=_INK,
            zorder=6,
        )


def _tree(axes: Any, plan: Plan, tree: int, spots: Floats, colour: Any) -> None:
    """Draws one tree, with thick strokes to relays."""
    from matplotlib.collections import LineCollection

    row: Ints = plan.parents[tree]
    child = np.flatnonzero(row >= 0)
    relays = plan.children[tree, child] > 0
    few = len(child) <= 60
    for some, width, alpha in ((~relays, 0.9 if few else 0.3, 0.6), (relays, 2.0 if few else 0.8, 1.0)):
        ends = np.stack([spots[row[child[some]]], spots[child[some]]], axis=1)
        axes.add_collection(LineCollection(list(ends), colors=[colour], linewidths=width, alpha=alpha, zorder=3))
    size = 16 if few else 2
    axes.scatter(*spots[child].T, s=np.where(relays, 1.8 * size, size), color=colour, linewidths=0, zorder=4)
    axes.scatter(*spots[plan.trainer], s=6 * size, marker="*", color=_INK, linewidths=0, zorder=5)
