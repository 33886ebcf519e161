"""`p2psync sim rollouts` and `p2psync sim ledger`: the rollout ledger in virtual time."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from p2psync.cli import output
from p2psync.cli.options import JsonTarget


def rollouts(
    speeds: Annotated[
        str | None, typer.Option(help="Tokens/s of each actor, like 1000,3000, instead of the cases shown.")
    ] = None,
    items: Annotated[int, typer.Option(help="Items of a step, with --speeds.", min=1, max=65536)] = 256,
    tokens: Annotated[float, typer.Option(help="Tokens of an item in the mean, with --speeds.", min=1)] = 512.0,
    slots: Annotated[int, typer.Option(help="Items that an actor works on at once, with --speeds.", min=1)] = 1,
    lengths: Annotated[str, typer.Option(help="fixed, exponential or heavy, with --speeds.")] = "exponential",
    steps: Annotated[int, typer.Option(help="Steps, one after another.", min=1)] = 8,
    seed: Annotated[int, typer.Option(help="Of all lengths.", min=0)] = 1,
    json: JsonTarget = None,
) -> None:
    """How long steps of rollout work take: an equal split, first come first served, and the ledger's allotment."""
    from p2psync.bench.rollouts.steps import LENGTHS, Case, Compared, cases, compare
    from p2psync.errors import UsageError

    if lengths not in LENGTHS:
        raise UsageError(f"--lengths {lengths}: choose of {', '.join(LENGTHS)}")
    if speeds is None:
        wanted = cases(seed, steps)
    else:
        try:
            rates = [float(word) for word in speeds.split(",")]
        except ValueError:
            rates = []
        if not rates or not all(0 < rate < 1e9 for rate in rates):
            raise UsageError(f"--speeds {speeds!r}: write it like 1000,3000")
        case = Case(
            name=speeds, speeds=rates, items=items, tokens=tokens, slots=slots, lengths=lengths, steps=steps, seed=seed
        )
        wanted = [case]
    figures = [Compared(case=case, outcomes=compare(case)) for case in wanted]
    lines = []
    for found in figures:
        allotted, equal = found.outcomes[-1], found.outcomes[0]
        shown = "   ".join(f"{outcome.policy} {outcome.total:.1f} s" for outcome in found.outcomes)
        rest = f"ideal {allotted.ideal:.1f} s   hedged {allotted.hedged}   wasted {output.share(allotted.wasted)}"
        lines.append((found.case.name, f"{shown}   ({1 - allotted.total / equal.total:.0%} less than equal)   {rest}"))
    output.report(figures, json, lines)


def ledger(
    seeds: Annotated[str, typer.Option(metavar="FIRST:LAST", help="From FIRST to before LAST.")] = "0:1000",
    json: JsonTarget = None,
) -> None:
    """A small fleet that dies, hangs, lies and repeats itself, and a trainer that is killed, for each seed.

    Every prompt must be answered exactly once per step, nothing stale or forged admitted, nothing acknowledged lost.
    Exit status 1 if a seed broke that.
    """
    from p2psync.bench.rollouts.faults import sweep
    from p2psync.sim.__main__ import parse_seeds

    began = time.perf_counter()
    report = sweep(parse_seeds(seeds), lambda line: typer.echo(line, err=True))
    verdicts = ", ".join(f"{name} {count}" for name, count in sorted(report.verdicts.items()))
    output.report(
        report,
        json,
        [
            ("seeds", f"{report.seeds} in {time.perf_counter() - began:.0f} s, {report.failed} failed"),
            ("faults", f"{report.deaths} deaths of actors, {report.restarts} of trainers, {report.cuts} cuts"),
            ("results", verdicts),
            ("hedged", f"{report.hedged} grants"),
            ("steps", f"{report.steps} with {report.prompts} prompts, each answered once"),
        ],
    )
    if report.failed:
        raise typer.Exit(1)
