"""`p2psync doctor`: what this machine can do, and what to mend."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from p2psync.cli.finding import Finding, State
from p2psync.cli.options import JsonTarget
from p2psync.cli.output import report_json

_COLOURS: dict[State, str] = {"ok": typer.colors.GREEN, "could be better": typer.colors.YELLOW, "missing": "red"}


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """ready: nothing that is needed is missing."""

    ready: bool
    findings: list[Finding]


def doctor(
    directory: Annotated[Path, typer.Option("--dir", help="Where weights or versions would be kept.")] = Path(),
    join: Annotated[str | None, typer.Option(metavar="URL", help="Also test this hub and its swarm's ports.")] = None,
    token: Annotated[str | None, typer.Option(help="Join token of that hub.")] = None,
    port: Annotated[
        int, typer.Option(help="Port of the swarm (TCP) that the hub should dial back.", min=1, max=65535)
    ] = 7071,
    json: JsonTarget = None,
) -> None:
    """Show what this machine can do, and the step that mends what could be better.

    Exit 1 only if something is missing without which p2psync does not run, or cannot join the hub of --join.
    """
    found = examine(directory)
    if join is not None:
        found = _report([*found.findings, *_of_hub(join, token, port)])
    if json is not None:
        report_json(found, json)
    if json != "-":
        _show(found.findings)
    if not found.ready:
        raise typer.Exit(1)


def _of_hub(url: str, token: str | None, port: int) -> list[Finding]:
    from p2psync.cli import daemon, doctor_join

    return daemon.run(doctor_join.findings(url, token, port))


def _report(findings: list[Finding]) -> DoctorReport:
    return DoctorReport(ready=not any(f.needed and f.state == "missing" for f in findings), findings=findings)


def examine(directory: Path) -> DoctorReport:
    """Examines the whole machine; takes a few seconds."""
    from p2psync.cli import doctor_machine, doctor_network

    return _report([*doctor_machine.findings(directory), *doctor_network.findings()])


def _show(findings: list[Finding]) -> None:
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        state = typer.style(finding.state.ljust(len("could be better")), fg=_COLOURS[finding.state])
        typer.echo(f"{finding.name:<{width}}  {state}  {finding.detail}")
        if finding.mend:
            typer.echo(f"{'':<{width}}  {'':<15}  → {finding.mend}")
