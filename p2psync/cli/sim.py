"""`p2psync sim`: the swarm and the rollout ledger in virtual time."""

from __future__ import annotations

from typing import Annotated

import typer

from p2psync.cli.sim_ablation import ablation
from p2psync.cli.sim_rollouts import ledger, rollouts
from p2psync.cli.sim_swarm import swarm
from p2psync.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="The swarm and the ledger in virtual time.")

app.command("rollouts")(rollouts)
app.command("ledger")(ledger)
app.command("swarm")(swarm)
app.command("ablation")(ablation)


@app.command()
def faults(
    seeds: Annotated[str, typer.Option(metavar="FIRST:LAST", help="From FIRST to before LAST.")] = "0:100",
    fault: Annotated[list[str] | None, typer.Option(help="Only these kinds of fault.")] = None,
    liar: Annotated[list[str] | None, typer.Option(help="These liars, in every simulation.")] = None,
) -> None:
    """Whole nodes, hub and engines under drawn faults, one small swarm for each seed; exit status 1 if any failed."""
    from p2psync.sim.__main__ import parse_seeds, sweep
    from p2psync.sim.build import SimConfig
    from p2psync.sim.faults import KINDS
    from p2psync.sim.liars import LIARS

    for option, given, known in (("--fault", fault, KINDS), ("--liar", liar, LIARS)):
        if unknown := set(given or ()) - set(known):
            raise UsageError(f"{option} {sorted(unknown)[0]}: choose of {', '.join(sorted(known))}")
    config = SimConfig(faults=tuple(fault) if fault else None, liars=tuple(liar) if liar else None)
    raise typer.Exit(1 if sweep(parse_seeds(seeds), config) else 0)
