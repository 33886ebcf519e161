"""`p2psync status`: the swarm at a glance."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from p2psync.cli import daemon
from p2psync.cli.output import report_json
from p2psync.membership.checks import line_of
from p2psync.membership.records import Member, Status, View
from p2psync.membership.runs import run_name, short_run


def status(
    url: Annotated[str, typer.Argument(metavar="URL", help="The hub's URL.")],
    token: Annotated[str | None, typer.Option(help="Join token.")] = None,
    json: Annotated[str | None, typer.Option(help="The figures as JSON to FILE, or - for stdout.")] = None,
) -> None:
    """Show the run, its newest version, and who runs what."""

    async def ask() -> Status:
        from p2psync.net.hub_client import HubClient

        async with HubClient(url, token) as client:
            return await client.status()

    found = daemon.run(ask())
    if json is not None:
        report_json(found, json)
    if json != "-":
        _show(found)


def _show(found: Status) -> None:
    from rich.console import Console
    from rich.table import Table

    view = found.view
    console = Console(file=sys.stdout)
    head = "none yet" if view.head is None else str(view.head)
    named = run_name(view.run) if view.run else "run none yet"
    console.print(
        f"{named}  epoch {view.epoch}  version {head}  hub up {_ago(found.uptime)}", soft_wrap=True, highlight=False
    )
    if view.claim:
        console.print(line_of(view.claim), soft_wrap=True, markup=False, highlight=False)
    table = Table(box=None, pad_edge=False)
    for title in ("node", "role", "region", "address", "version", "digest", "fetches at", "up/down", "heard"):
        table.add_column(title)
    ages = {age.node: age for age in found.ages}
    for member in sorted(view.members, key=lambda m: (m.info.role != "trainer", m.info.region, m.info.node)):
        info, age = member.info, ages.get(member.info.node)
        behind = "" if member.version == view.head and _same_run(member, view) else " ←"
        table.add_row(
            info.node[:8],
            info.role,
            info.region or "–",
            f"{info.host}:{info.port}" if info.port else "dials out",
            ("–" if member.version is None else str(member.version)) + behind,
            member.digest[:12],
            f"{8e-6 * member.fetch_rate:.4g} Mbit/s" if member.fetch_rate else "–",
            f"{_rate(age.up)}/{_rate(age.down)} Mbit/s" if age and (age.up or age.down) else "–",
            _ago(age.heard) if age else "–",
        )
    console.print(table)
    for line in _waiting(found):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    anchors = [a for a in view.lineage if a.base is None]
    deltas = [a for a in view.lineage if a.base is not None]
    console.print(
        f"{len(anchors)} anchor{'s' * (len(anchors) != 1)} ({_mb(sum(a.payload_bytes for a in anchors))}), "
        f"{len(deltas)} delta{'s' * (len(deltas) != 1)} ({_mb(sum(a.payload_bytes for a in deltas))}) to be had"
    )
    if found.remark:
        console.print(found.remark)


def _same_run(member: Member, view: View) -> bool:
    return member.run in ("", view.run)


def _waiting(found: Status) -> list[str]:
    """Who runs a version of another run, and why who waits does so; nodes of one answer in one line."""
    waits = {age.node: age.waits for age in found.ages}
    nodes: dict[str, list[str]] = {}
    for member in found.view.members:
        place = ""
        if not _same_run(member, found.view):
            place = f"version {member.version} of run {short_run(member.run)}, epoch {member.epoch}"
        reason = line_of(waits.get(member.info.node, ""))
        if place or reason:
            nodes.setdefault(": ".join(filter(None, (place, reason))), []).append(member.info.node[:8])
    return [f"← {_names(who)} {what}" for what, who in nodes.items()]


def _names(nodes: list[str]) -> str:
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return f"{', '.join(nodes[:3])}{more}:"


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _rate(mbit: float) -> str:
    return f"{mbit:.4g}" if mbit else "–"
