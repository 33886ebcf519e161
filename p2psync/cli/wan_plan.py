"""`p2psync wan plan`: the best possible rate of a network, and the plan that comes near it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from p2psync.cli import output
from p2psync.cli.options import JsonTarget
from p2psync.errors import UsageError

TopologyFile = Annotated[Path, typer.Argument(metavar="TOPOLOGY", help="A topology file (TOML).")]

_SCALES = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


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
    """The largest possible broadcast rate, the trees that come near it, and the load of every link.

    Exit status 1 if a node cannot be reached.
    """
    from p2psync.topology.figures import plan_figures
    from p2psync.topology.model import load
    from p2psync.topology.network import from_topology
    from p2psync.topology.planner import make_plan
    from p2psync.topology.text import detail_lines, summary_lines

    payload, piece = parse_bytes("--size", size), parse_bytes("--chunk", chunk)
    for picture, suffix in ((png, ".png"), (svg, ".svg")):
        if picture is not None and picture.suffix.lower() != suffix:
            raise UsageError(f"--{suffix[1:]} {picture}: the name should end in {suffix}")
    if png or svg:
        from p2psync.topology.picture import check_installed, draw

        check_installed()
    network = from_topology(load(file))
    made = make_plan(network, max_children=children)
    figures = plan_figures(made, network, payload, piece)
    output.report(figures, json, summary_lines(figures))
    if json != "-" and not made.reaches_nobody:
        for line in detail_lines(made, network, trees):
            typer.echo(line)
    for picture in (png, svg):
        if picture is not None:
            receivers = len(made.names) - 1
            title = f"{file.name}: {figures.rate:.1f} of at most {figures.bound:.1f} Mbit/s to all {receivers}"
            draw(made, network, title, picture)
    if figures.unreachable:
        raise typer.Exit(1)


def parse_bytes(option: str, text: str) -> int:
    """Bytes of `2MiB`, `1.5GB` or `4096`. Raises `UsageError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B|)", text.strip(), re.IGNORECASE)
    count = int(float(found[1]) * _SCALES[found[2].upper()]) if found else 0
    if not 0 < count <= 1 << 50:
        raise UsageError(f"{option} {text!r}: write it like 64MiB or 1GB")
    return count
