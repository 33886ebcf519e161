"""`p2psync bench`: the figures of the README, on this machine. They are printed, never judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2psync.cli.bench_codec import codec
from p2psync.cli.bench_pause import pause
from p2psync.cli.bench_relay import relay
from p2psync.cli.bench_rl import rl
from p2psync.cli.bench_swarm import swarm

app = typer.Typer(help="Measure p2psync against bounds and other systems.", no_args_is_help=True)
app.command("swarm")(swarm)
app.command("relay")(relay)
app.command("pause")(pause)
app.command("rl")(rl)
app.command("codec")(codec)


@app.callback()
def group() -> None:
    """Measure p2psync against bounds and other systems."""


@app.command("compare")
def compare(
    one: Annotated[Path, typer.Argument(metavar="A.json", help="What a bench wrote with --json.")],
    other: Annotated[Path, typer.Argument(metavar="B.json", help="Another report of the same bench.")],
) -> None:
    """Two reports of one bench side by side: medians, spread, and the ratio of the second to the first."""
    from rich.console import Console

    from p2psync.bench.summary import compare_reports

    console = Console()
    if not console.is_terminal:
        console.width = 180
    console.print(compare_reports(one, other))
