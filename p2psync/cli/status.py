"""`p2psync status`: the swarm at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from p2psync.cli.options import JoinToken, JsonTarget

if TYPE_CHECKING:
    from p2psync.membership.records import Status


def status(
    url: Annotated[str, typer.Argument(metavar="URL", help="The hub's URL.")],
    token: JoinToken = None,
    json: JsonTarget = None,
) -> None:
    """Show the run, its newest version, and who runs what."""
    from p2psync.cli import daemon
    from p2psync.cli.output import report_json
    from p2psync.cli.status_text import show_status
    from p2psync.net.addresses import check_url

    async def ask() -> Status:
        from p2psync.net.hub_client import HubClient

        async with HubClient(url, token) as client:
            return await client.status()

    found = daemon.run(ask())
    if json is not None:
        report_json(found, json)
    if json != "-":
        show_status(found, check_url(url).host or "")
