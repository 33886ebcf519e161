"""`p2psync wan`: networks between regions, planned on paper and emulated on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from p2psync.cli import output
from p2psync.cli.output import JsonTarget
from p2psync.errors import UsageError

if TYPE_CHECKING:
    from topology.network import Network
    from topology.plan import Plan

app = typer.Typer(help="Networks between regions: plan for them, emulate them.", no_args_is_help=True)

TopologyFile = Annotated[Path, typer.Argument(metavar="TOPOLOGY", help="A topology file (TOML).")]

_SCALES = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


@app.callback()
def group() -> None:
    """Networks between regions: plan for them, emulate them."""


class LoadFigures(msgspec.Struct, frozen=True):
    """One link: Mbit/s that the plan sends, and what it has."""

    kind: str
    name: str
    mbit: float
    capacity: float


class TreeFigures(msgspec.Struct, frozen=True):
    """One tree: its share of the chunks, how deep it is, and the parent of each node."""

    share: float
    depth: int
    parents: dict[str, str]


class PlanFigures(msgspec.Struct, frozen=True):
    """What `p2psync wan plan` finds. Rates in Mbit/s, times in seconds.

    exact: whether the bound can be reached, or is an upper bound. rate: what every node gets by the plan. slow: nodes
    that take less, because their own downlink is slower. egress: copies of everything that the trainer sends.
    """

    topology: str
    nodes: int
    bound: float
    exact: bool
    because: str
    least_makespan: float
    rate: float
    ratio: float
    makespan: float
    payload_bytes: int
    egress: float
    most_children: int
    unreachable: list[str]
    slow: dict[str, float]
    loads: list[LoadFigures]
    trees: list[TreeFigures]


@app.command("plan")
def plan(
    file: TopologyFile,
    size: Annotated[str, typer.Option(help="Bytes to send, like 2MiB or 1GB.")] = "64MiB",
    chunk: Annotated[str, typer.Option(help="Bytes of a chunk.")] = "64KiB",
    children: Annotated[int, typer.Option(help="Most children of a node in one tree.", min=2, max=1024)] = 16,
    trees: Annotated[int, typer.Option(help="Trees shown in full, the heaviest first.", min=0)] = 3,
    png: Annotated[Path | None, typer.Option(help="Draw the plan to this .png file.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the plan to this .svg file.")] = None,
    json: JsonTarget = None,
) -> None:
    """The largest possible broadcast rate, the trees that come near it, and the load of every link."""
    from topology.bound import broadcast_bound, least_makespan
    from topology.model import load
    from topology.network import from_topology
    from topology.plan import link_loads, predicted_makespan
    from topology.planner import make_plan

    payload, piece = parse_bytes("--size", size), parse_bytes("--chunk", chunk)
    for picture, suffix in ((png, ".png"), (svg, ".svg")):
        if picture is not None and picture.suffix.lower() != suffix:
            raise UsageError(f"--{suffix[1:]} {picture}: the name should end in {suffix}")
    network = from_topology(load(file))
    made = make_plan(network, most_children=children)
    part = network.only(network.reachable())
    bound = broadcast_bound(part)
    loads = link_loads(made, network)
    figures = PlanFigures(
        topology=str(file),
        nodes=network.size,
        bound=bound.rate if part.size > 1 else 0.0,
        exact=bound.exact,
        because=bound.because,
        least_makespan=least_makespan(part, payload),
        rate=made.lowest_rate if part.size > 1 else 0.0,
        ratio=made.ratio,
        makespan=predicted_makespan(made, network, payload, piece),
        payload_bytes=payload,
        egress=made.egress(made.trainer),
        most_children=int(made.children.max()),
        unreachable=list(made.unreachable),
        slow=made.slow,
        loads=[LoadFigures(one.kind, one.name, round(one.load, 3), one.capacity) for one in loads],
        trees=_tree_figures(made) if json is not None else [],
    )
    if json != "-":
        _show(figures, made, network, trees)
    if json is not None:
        output.report_json(figures, json)
    for picture in (png, svg):
        if picture is not None:
            from topology.picture import draw

            title = f"{file.name}: {figures.rate:.1f} of at most {figures.bound:.1f} Mbit/s to all {part.size - 1}"
            draw(made, part, loads, title, picture)


def parse_bytes(option: str, text: str) -> int:
    """Bytes of `2MiB`, `1.5GB` or `4096`. Raises `UsageError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B|)", text.strip(), re.IGNORECASE)
    count = int(float(found[1]) * _SCALES[found[2].upper()]) if found else 0
    if not 0 < count <= 1 << 50:
        raise UsageError(f"{option} {text!r}: write it like 64MiB or 1GB")
    return count


def _show(figures: PlanFigures, made: Plan, network: Network, trees: int) -> None:
    from topology.plan import link_loads
    from topology.text import load_lines, region_tree_lines, region_trees, tree_lines

    exact = "" if figures.exact else " at most"
    lines = [
        ("bound", f"{figures.bound:.1f} Mbit/s{exact}: {figures.because}"),
        ("plan", f"{figures.rate:.1f} Mbit/s to everyone, {100 * figures.ratio:.1f} % of the bound"),
        (
            "makespan",
            f"{output.seconds(figures.makespan)} for {output.size(figures.payload_bytes)}; "
            f"never less than {output.seconds(figures.least_makespan)}",
        ),
        ("trainer", f"{made.names[made.trainer]} sends {figures.egress:.2f} copies"),
        (
            "trees",
            f"{len(made.shares)}, up to {int(made.depth.max())} hops deep, up to {figures.most_children} children",
        ),
    ]
    if figures.slow:
        names = ", ".join(f"{name} {rate:.0f}" for name, rate in sorted(figures.slow.items())[:6])
        lines.append(("slow", f"own downlinks bind, the others do not wait and get {made.rate:.1f} Mbit/s: {names}"))
    if figures.unreachable:
        lines.append(("unreachable", ", ".join(figures.unreachable[:12])))
    output.report(figures, None, lines)
    ways = region_trees(made, network)
    root = int(network.region[network.names.index(made.names[made.trainer])])
    if len(ways) > 1 or ways[0][1]:
        typer.echo("\nways across regions, and the share of all chunks that each carries")
        for share, arcs in ways[:12]:
            shown = list(region_tree_lines(arcs, network, root))
            typer.echo(f"{100 * share:5.1f} %  {shown[0]}")
            for line in shown[1:]:
                typer.echo(f"         {line}")
        if len(ways) > 12:
            typer.echo(f"  … and {len(ways) - 12} more")
    for tree in range(min(trees, len(made.shares))):
        typer.echo(f"\ntree {tree + 1}: {100 * made.shares[tree]:.1f} % of all chunks")
        for line in tree_lines(made, tree):
            typer.echo(f"  {line}")
    typer.echo("\nload of every link")
    for line in load_lines(link_loads(made, network)):
        typer.echo(f"  {line}")


def _tree_figures(made: Plan) -> list[TreeFigures]:
    found = []
    for tree, share in enumerate(made.shares.tolist()):
        parents = {
            made.names[i]: made.names[parent] for i, parent in enumerate(made.parents[tree].tolist()) if parent >= 0
        }
        found.append(TreeFigures(round(share, 6), int(made.depth[tree].max()), parents))
    return found
