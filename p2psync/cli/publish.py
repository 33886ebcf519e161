"""`p2psync publish`: publish one checkpoint to a hub, seed it until the actors have it, and go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2psync.cli.checkpoint_options import FollowLinks, Ignore, Inside, TrainingState
from p2psync.cli.options import Advertise, EventsTarget, HostOption, Name
from p2psync.errors import P2PSyncError


def publish(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The checkpoint.")],
    to: Annotated[str, typer.Option(help="The hub's URL.")],
    key: Annotated[Path, typer.Option(help="The signing key; the hub must trust it.")],
    store: Annotated[Path, typer.Option(help="Where versions are kept from one publish to the next.")],
    host: HostOption = "",
    port: Annotated[int, typer.Option(help="Port of the swarm (TCP); 0: any.", min=0, max=65535)] = 0,
    advertise: Advertise = "",
    region: Annotated[str, typer.Option(help="Where this machine is: any word.")] = "",
    name: Name = "",
    token: Annotated[str | None, typer.Option(help="Join token.")] = None,
    inside: Inside = None,
    ignore: Ignore = None,
    training_state: TrainingState = False,
    follow_links: FollowLinks = False,
    profile: Annotated[
        str,
        typer.Option(help="How deltas are coded: fast, tight or auto (the last actor commits soonest)."),
    ] = "auto",
    link_mbps: Annotated[
        float, typer.Option(help="What the slowest link gives, for auto; 0: as actors measure it.", min=0)
    ] = 0.0,
    actors: Annotated[int, typer.Option(help="Seed until so many actors run it, and all that are there.", min=0)] = 1,
    straggler_timeout: Annotated[
        float, typer.Option(help="Seconds that the others are waited for once so many actors run it.", min=0)
    ] = 60.0,
    timeout: Annotated[float, typer.Option(help="Give up seeding after so many seconds.", min=0)] = 600.0,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Take the hub from another run on purpose, though its trainer is at work."),
    ] = False,
    supersede: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="Go back on purpose: go on from --store under a new run, which takes the place of RUN at every actor.",
        ),
    ] = "",
    json: EventsTarget = None,
) -> None:
    """Publish one checkpoint to a hub that runs by itself."""
    import asyncio

    from p2psync.cli import daemon
    from p2psync.cli.keys import read_key
    from p2psync.membership.runs import parse_run
    from p2psync.observe.events import Note, Trouble

    show = daemon.EventOutput(json)
    signing = read_key(key)
    superseded = parse_run(supersede, "--supersede") if supersede else ""

    async def build() -> None:
        from p2psync.trainer.config import TrainerConfig
        from p2psync.trainer.daemon import publish_checkpoint
        from p2psync.trainer.node import TrainerNode
        from p2psync.trainer.watch.locations import CheckpointRules

        config = TrainerConfig(
            store=store,
            key=signing,
            hub_url=to,
            host=host,
            port=port,
            advertise=advertise,
            region=region,
            name=name,
            token=token,
            profile=profile,
            link_mbps=link_mbps,
            take_over=take_over,
            supersede=superseded,
        )
        node = TrainerNode(config, show)
        rules = CheckpointRules(
            inside=inside, ignore=tuple(ignore or ()), training_state=training_state, follow_links=follow_links
        )

        async def seed() -> None:
            if await publish_checkpoint(node, directory, rules) is None:
                show(Note("the checkpoint holds the same bits as the last version: nothing to publish"))
            await node.anchored()
            announced = False
            try:
                async with asyncio.timeout(timeout):
                    await node.announced()
                    announced = True
                    left = await node.until_running(actors, straggler_timeout)
            except TimeoutError:
                raise P2PSyncError(node.adoption.out_of_time(actors, timeout, announced=announced)) from None
            if left.waiting:
                show(Trouble(f"not waiting any longer: {left}; the others get it from those that have it"))

        await node.start()
        try:
            await daemon.until_stopped(asyncio.create_task(seed()), asyncio.create_task(node.until_broken()))
        finally:
            await node.stop()

    daemon.in_loop(build)
