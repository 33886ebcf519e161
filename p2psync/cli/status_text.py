"""The text of `p2psync status`: the run, one row for each member, and why some wait."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from msgspec import structs
from rich.markup import escape

from p2psync.membership.checks import printable_line
from p2psync.membership.records import HUB_HOST, Member, Status, View
from p2psync.membership.runs import run_name, short_run

if TYPE_CHECKING:
    from rich.console import Console


#: Columns that a narrow terminal goes without, the first first; every one of them is in `--json`.
_SPARED = ("digest", "up/down", "fetches at", "region", "heard", "role", "name")
#: Characters of a node's name that are shown.
_NAME = 24


def show_status(found: Status, hub_host: str = "") -> None:
    """Print a hub's status. hub_host: the name by which this machine reaches the hub."""
    from rich.console import Console

    view = found.view
    console = Console(file=sys.stdout)
    head = "none yet" if view.head is None else str(view.head)
    named = run_name(view.run) if view.run else "run none yet"
    console.print(named, soft_wrap=True, highlight=False)
    console.print(f"version {head}  epoch {view.epoch}  hub up {_ago(found.uptime)}", soft_wrap=True, highlight=False)
    if view.claim:
        console.print(printable_line(view.claim), soft_wrap=True, markup=False, highlight=False)
    _show_members(console, _rows(found, hub_host))
    for line in _waiting(found):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    anchors = [a for a in view.lineage if a.base is None]
    deltas = [a for a in view.lineage if a.base is not None]
    console.print(
        f"{len(anchors)} anchor{'s' * (len(anchors) != 1)} ({_mb(sum(a.payload_bytes for a in anchors))}), "
        f"{len(deltas)} delta{'s' * (len(deltas) != 1)} ({_mb(sum(a.payload_bytes for a in deltas))}) to be had"
    )
    if found.note:
        console.print(found.note, soft_wrap=True, markup=False, highlight=False)


def _same_run(member: Member, view: View) -> bool:
    return member.run in ("", view.run)


def _waiting(found: Status) -> list[str]:
    """Lines for nodes at another run, and for nodes that wait, with the reason; nodes of one reason share a line."""
    waits = {age.node: age.waits for age in found.ages}
    nodes: dict[str, list[str]] = {}
    for member in found.view.members:
        place = ""
        if not _same_run(member, found.view):
            place = f"version {member.version} of run {short_run(member.run)}, epoch {member.epoch}"
        reason = printable_line(waits.get(member.info.node, ""))
        if place or reason:
            nodes.setdefault(": ".join(filter(None, (place, reason))), []).append(_called(member))
    return [f"← {_names(who)} {what}" for what, who in nodes.items()]


def _called(member: Member) -> str:
    return printable_line(member.info.name)[:_NAME] or member.info.node[:8]


def _names(nodes: list[str]) -> str:
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return f"{', '.join(nodes[:3])}{more}:"


def _rows(found: Status, hub_host: str) -> list[dict[str, str]]:
    """One row for each member, the trainer first: the text of each column."""
    view = found.view
    ages = {age.node: age for age in found.ages}
    rows = []
    for member in sorted(view.members, key=lambda m: (m.info.role != "trainer", m.info.region, m.info.node)):
        info, age = member.info, ages.get(member.info.node)
        if info.host == HUB_HOST and hub_host:
            info = structs.replace(info, host=hub_host)
        rows.append(
            {
                "node": info.node[:8],
                "name": printable_line(info.name)[:_NAME] or "–",
                "role": info.role,
                "region": info.region or "–",
                "address": info.location,
                "version": ("–" if member.version is None else str(member.version))
                + ("" if member.version == view.head and _same_run(member, view) else " ←"),
                "digest": member.digest[:12],
                "fetches at": f"{8e-6 * member.fetch_rate:.4g} Mbit/s" if member.fetch_rate else "–",
                "up/down": f"{_rate(age.up)}/{_rate(age.down)} Mbit/s" if age and (age.up or age.down) else "–",
                "heard": _ago(age.heard) if age else "–",
            }
        )
    return rows


def _show_members(console: Console, rows: list[dict[str, str]]) -> None:
    """Prints a table that fits the terminal: it omits columns rather than cutting their texts."""
    from rich.table import Table

    titles = ["node", "name", "role", "region", "address", "version", "digest", "fetches at", "up/down", "heard"]
    shown = shown_columns(titles, rows, console.width if console.is_terminal else None)
    if not console.is_terminal:
        console.width = max(console.width, _width(shown, rows))
    table = Table(box=None, pad_edge=False)
    for title in shown:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(escape(row[title]) for title in shown))
    console.print(table)
    if left := [title for title in titles if title not in shown]:
        console.print(f"not shown here: {', '.join(left)}; --json - has all")


def shown_columns(titles: list[str], rows: list[dict[str, str]], width: int | None) -> list[str]:
    """The columns for a terminal of this width (characters; None: as wide as it takes), in their order."""
    shown = list(titles)
    for spared in _SPARED:
        if width is None or _width(shown, rows) <= width:
            break
        shown.remove(spared)
    return shown


def _width(titles: list[str], rows: list[dict[str, str]]) -> int:
    """Characters of a table, with two between columns."""
    return sum(max(len(text) for text in [title, *(row[title] for row in rows)]) + 2 for title in titles)


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _rate(mbit: float) -> str:
    return f"{mbit:.4g}" if mbit else "–"
