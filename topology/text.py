"""A plan as text: the bound, the trees indented, the load of every link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from p2psync.topology.figures import PlanFigures
from p2psync.topology.network import Ints, Network
from p2psync.topology.plan import LinkLoad, Plan, link_loads

#: Shown at most: routes across regions, and unreachable nodes.
_MAX_ROUTES = 12
_MAX_UNREACHABLE = 12


def summary_lines(figures: PlanFigures) -> list[tuple[str, str]]:
    """Returns the main figures as (label, text)."""
    if figures.nodes - len(figures.unreachable) < 2:
        lines = [("plan", f"reaches nobody: {figures.because if figures.nodes < 2 else 'no node can be reached'}")]
        return lines + _unreachable(figures)
    receivers = figures.nodes - 1 - len(figures.unreachable)
    everyone = f"{receivers} of {figures.nodes - 1} nodes" if figures.unreachable else "everyone"
    upper = "" if figures.exact else " at most"
    times = f"{_seconds(figures.makespan)} for {_size(figures.payload_bytes)}"
    lines = [
        ("bound", f"{figures.bound:.1f} Mbit/s{upper}: {figures.because}"),
        ("plan", f"{figures.rate:.1f} Mbit/s to {everyone}, {100 * figures.ratio:.1f} % of the bound"),
        ("makespan", f"{times}; never less than {_seconds(figures.least_makespan)}"),
        ("trainer", f"{figures.trainer} sends {figures.egress:.2f} copies"),
        ("trees", f"{len(figures.trees)}, up to {figures.depth} hops deep and {figures.max_children} children a node"),
    ]
    if figures.slow:
        names = ", ".join(f"{name} {rate:g}" for name, rate in sorted(figures.slow.items())[:6])
        lines.append(("slow", f"bound by their own downlinks, while the others get {figures.others:.1f}: {names}"))
    return lines + _unreachable(figures)


def _unreachable(figures: PlanFigures) -> list[tuple[str, str]]:
    """Returns a line with the first nodes that nothing can reach."""
    names = figures.unreachable
    if not names:
        return []
    more = f" and {len(names) - _MAX_UNREACHABLE} more" if len(names) > _MAX_UNREACHABLE else ""
    return [("unreachable", f"{len(names)} of {figures.nodes}: {', '.join(names[:_MAX_UNREACHABLE])}{more}")]


def detail_lines(plan: Plan, network: Network, trees: int) -> Iterator[str]:
    """Yields the routes across regions, the heaviest trees, and the load of every link. trees: how many are shown in
    full."""
    routes = region_trees(plan, network)
    root = int(network.region[network.names.index(plan.names[plan.trainer])])
    if routes[0][1]:
        yield "\nroutes across regions, and the share of all chunks that each carries"
        for share, arcs in routes[:_MAX_ROUTES]:
            for number, line in enumerate(region_tree_lines(arcs, network, root)):
                yield (f"{100 * share:5.1f} %  " if number == 0 else " " * 9) + line
        if len(routes) > _MAX_ROUTES:
            yield f"  … and {len(routes) - _MAX_ROUTES} more"
    for tree in range(min(trees, len(plan.shares))):
        yield f"\ntree {tree + 1}: {100 * plan.shares[tree]:.1f} % of all chunks"
        yield from (f"  {line}" for line in tree_lines(plan, tree))
    yield "\nload of every link"
    yield from (f"  {line}" for line in load_lines(link_loads(plan, network)))


def region_trees(plan: Plan, network: Network) -> list[tuple[float, dict[tuple[int, int], int]]]:
    """Returns the different routes of trees across regions, the heaviest first: (share of all chunks, copies by (from,
    to)).

    network: the one the plan was made for. A tree may send a region several copies if the region's own uplinks are too
    slow.
    """
    region = _region_in_plan(plan, network)
    found: dict[tuple[tuple[int, int, int], ...], float] = {}
    for row, share in zip(plan.parents, plan.shares, strict=True):
        child = np.flatnonzero(row >= 0)
        pairs = np.stack([region[row[child]], region[child]], axis=1)
        counts = Counter(map(tuple, pairs[pairs[:, 0] != pairs[:, 1]].tolist()))
        key = tuple(sorted((a, b, copies) for (a, b), copies in counts.items()))
        found[key] = found.get(key, 0.0) + float(share)
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return [(share, {(a, b): copies for a, b, copies in key}) for key, share in ordered]


def tree_lines(plan: Plan, tree: int, *, most: int = 60) -> Iterator[str]:
    """Yields one tree, indented; of a large one the first `most` nodes."""
    children: dict[int, list[int]] = {}
    for child, parent in enumerate(plan.parents[tree].tolist()):
        children.setdefault(parent, []).append(child)
    stack, shown = [(plan.trainer, 0)], 0
    while stack and shown < most:
        node, depth = stack.pop()
        own = children.get(node, [])
        yield f"{'  ' * depth}{plan.names[node]}" + (f"  → {len(own)}" if own else "")
        stack += [(child, depth + 1) for child in sorted(own, key=lambda i: (len(children.get(i, [])), -i))]
        shown += 1
    if stack:
        yield f"… and {len(plan.names) - shown} more"


def region_tree_lines(arcs: dict[tuple[int, int], int], network: Network, root: int) -> Iterator[str]:
    """Yields one route across regions, indented; `×3` where a region gets three copies."""
    first: dict[int, int] = {}
    waiting = [root]
    seen = {root}
    while waiting:
        a = waiting.pop(0)
        for b in sorted(b for (source, b) in arcs if source == a and b not in seen):
            first[b] = a
            seen.add(b)
            waiting.append(b)

    def lines(a: int, depth: int) -> Iterator[str]:
        copies = sum(count for (_, b), count in arcs.items() if b == a)
        yield f"{'  ' * depth}{network.regions[a]}" + (f"  ×{copies}" if copies > 1 else "")
        for b in sorted(b for b, parent in first.items() if parent == a):
            yield from lines(b, depth + 1)

    return lines(root, 0)


def load_lines(loads: list[LinkLoad], *, most: int = 40) -> Iterator[str]:
    """Yields a table of every link between regions and limited pair, and the fullest uplinks and downlinks."""
    links = sorted((load for load in loads if load.kind in ("link", "pair")), key=lambda load: -load.share)
    own = sorted((load for load in loads if load.kind in ("up", "down") and load.load > 0), key=lambda one: -one.share)
    shown = links[:most] + own[:8]
    width = max((len(load.name) for load in shown), default=0)
    for load in shown:
        bar = "█" * round(20 * min(1.0, load.share))
        kind = {"up": "up  ", "down": "down", "link": "link", "pair": "pair"}[load.kind]
        yield (
            f"{kind} {load.name.ljust(width)} {load.load:8.1f} of {load.capacity:8.1f} Mbit/s {100 * load.share:4.0f} %"
            f"  {bar}"
        ).rstrip()
    left = len(links) + len(own) - len(shown)
    if left > 0:
        yield f"… and {left} that are less full; all of them with --json"


def _region_in_plan(plan: Plan, network: Network) -> Ints:
    index = {name: i for i, name in enumerate(network.names)}
    return network.region[[index[name] for name in plan.names]]


def _seconds(elapsed: float) -> str:
    return f"{elapsed:.2f} s" if elapsed < 99.5 else f"{elapsed / 60:.1f} min"


def _size(count: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"
