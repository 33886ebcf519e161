"""`p2psync hub`: the hub alone, where the trainer should not be reached by actors, or comes and goes."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from p2psync.cli.options import EventsTarget, HostOption, HubToken


def hub(
    trust: Annotated[list[str], typer.Option(help="A trainer's public key, or a file with it; may be repeated.")],
    host: HostOption = "",
    port: Annotated[int, typer.Option(help="Port (HTTP); 0: any.", min=0, max=65535)] = 7070,
    token: HubToken = None,
    ttl: Annotated[float, typer.Option(help="Seconds of a lease.", min=1)] = 10.0,
    plan: Annotated[bool, typer.Option(help="Plan from what nodes measure who sends what to whom.")] = True,
    json: EventsTarget = None,
) -> None:
    """Run the hub alone: leases, announcements, members, the plan."""
    from p2psync.cli import daemon
    from p2psync.observe.events import Note, Trouble

    show = daemon.EventOutput(json)
    trusted = daemon.trusted_keys(trust)

    async def build() -> None:
        from p2psync.membership.hub import HubConfig
        from p2psync.net.addresses import listen_host
        from p2psync.net.hub import HubService
        from p2psync.net.listening import printed_hub_url

        planner = None
        if plan:
            from p2psync.topology.plan_process import PlanProcess

            planner = PlanProcess(int(time.time()))

        service = HubService(
            HubConfig(trusted=trusted, ttl=ttl),
            token=token,
            planner=planner,
            on_trouble=lambda message: show(Trouble(message)),
        )
        bound = await service.start(listen_host(host), port)
        show(Note(f"hub at {printed_hub_url(listen_host(host), (), bound)}"))
        try:
            await daemon.until_stopped()
        finally:
            await service.stop()

    daemon.in_loop(build)
