"""`p2psync sim ablation`: what each mechanism of a node gives on drawn networks, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2psync.cli.wan_plan import parse_bytes


def ablation(
    results: Annotated[
        Path, typer.Argument(help="JSON lines of runs: those that are there are not made again.", dir_okay=False)
    ],
    draw: Annotated[str, typer.Option(metavar="FIRST:LAST", help="The networks, as `wan draw` draws them.")] = "0:200",
    hosts: Annotated[int, typer.Option(help="The most hosts of a network.", min=3)] = 12,
    policy: Annotated[
        str,
        typer.Option(help="Policies of `sim swarm --policy`, with commas; a+b: both at once; all: each mechanism."),
    ] = "all",
    payload: Annotated[str, typer.Option(help="Bytes of each version, like 64MiB.")] = "64MiB",
    versions: Annotated[int, typer.Option(help="Versions published one after another.", min=1)] = 2,
    table: Annotated[bool, typer.Option("--table", help="Run nothing: print the table of what is there.")] = False,
) -> None:
    """Measures each mechanism of a node: switches it off on drawn networks in virtual time, and compares.

    Prints a Markdown table: ratios to the bound, and the geometric mean of the ratios to those of the whole node. A run
    can be interrupted and continued, also by several processes with results of their own and different networks.
    """
    from p2psync.sim.__main__ import parse_seeds
    from p2psync.topology.virtual.ablation import AblationFile, ablate, ablation_rows, ablation_table
    from p2psync.topology.virtual.policies import MECHANISMS, chosen_policies
    from p2psync.topology.virtual.swarm import VirtualOptions

    chosen = chosen_policies(policy, MECHANISMS)
    kept = AblationFile(results)
    if not table:
        options = VirtualOptions(payload_bytes=parse_bytes("--payload", payload), versions=versions)
        for run in ablate(kept, parse_seeds(draw, "--draw"), chosen, options, hosts=hosts):
            ratios = " ".join("unfinished" if one.ratio is None else f"{one.ratio:.2f}" for one in run.versions)
            typer.echo(f"seed {run.network.seed}  {run.policy}: {ratios}", err=True)
    for line in ablation_table(ablation_rows(kept.runs)):
        typer.echo(line)
