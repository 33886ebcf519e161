"""`p2psync publish`: publish one checkpoint to a hub, seed it until the actors have it, and go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2psync.cli.option_structs import takes_options
from p2psync.cli.options import EventsTarget, HostOption, HubUrl, JoinToken, NodeOptions, SwarmPort
from p2psync.cli.publishing_options import CheckpointOptions, CodingOptions, SuccessionOptions
from p2psync.errors import P2PSyncError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from p2psync.cli.daemon import EventOutput
    from p2psync.trainer.config import TrainerConfig
    from p2psync.trainer.node import TrainerNode


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """The options of `p2psync publish`."""

    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The checkpoint.")]
    to: HubUrl
    key: Annotated[Path, typer.Option(help="The signing key; the hub must trust it.")]
    store: Annotated[Path, typer.Option(help="Where versions are kept from one publish to the next.")]
    host: HostOption = ""
    port: SwarmPort = 0
    node: NodeOptions
    token: JoinToken = None
    checkpoint: CheckpointOptions
    coding: CodingOptions
    actors: Annotated[int, typer.Option(help="Seed until so many actors run it, and all that are there.", min=0)] = 1
    straggler_timeout: Annotated[
        float, typer.Option(help="Seconds that the others are waited for once so many actors run it.", min=0)
    ] = 60.0
    timeout: Annotated[float, typer.Option(help="Give up seeding after so many seconds.", min=0)] = 600.0
    succession: SuccessionOptions
    json: EventsTarget = None


@takes_options(PublishOptions)
def publish(options: PublishOptions) -> None:
    """Publish one checkpoint to a hub that runs by itself."""
    from p2psync.cli import daemon
    from p2psync.cli.keys import read_key

    show = daemon.EventOutput(options.json)
    key = read_key(options.key)
    superseded = options.succession.superseded_run()
    daemon.in_loop(lambda: _run(options, key, superseded, show))


async def _run(options: PublishOptions, key: Ed25519PrivateKey, superseded: str, show: EventOutput) -> None:
    """Publishes the checkpoint, and returns when the actors have it."""
    import asyncio

    from p2psync.cli import daemon
    from p2psync.trainer.node import TrainerNode

    node = TrainerNode(_trainer_config(options, key, superseded), show)
    async with daemon.running(node):
        seeding = asyncio.create_task(_seed(node, options, show))
        await daemon.until_stopped(seeding, asyncio.create_task(node.until_broken()))


async def _seed(node: TrainerNode, options: PublishOptions, show: EventOutput) -> None:
    """Publishes the checkpoint and seeds it until enough actors run it. Raises `P2PSyncError` when the time is up."""
    import asyncio

    from p2psync.observe.events import Note, Trouble
    from p2psync.trainer.daemon import publish_checkpoint

    if await publish_checkpoint(node, options.directory, options.checkpoint.rules()) is None:
        show(Note("the checkpoint holds the same bits as the last version: nothing to publish"))
    await node.anchored()
    announced = False
    try:
        async with asyncio.timeout(options.timeout):
            await node.announced()
            announced = True
            left = await node.until_running(options.actors, options.straggler_timeout)
    except TimeoutError:
        raise P2PSyncError(node.adoption.out_of_time(options.actors, options.timeout, announced=announced)) from None
    if left.waiting:
        show(Trouble(f"not waiting any longer: {left}; the others get it from those that have it"))


def _trainer_config(options: PublishOptions, key: Ed25519PrivateKey, superseded: str) -> TrainerConfig:
    from p2psync.trainer.config import TrainerConfig

    return TrainerConfig(
        store=options.store,
        key=key,
        hub_url=options.to,
        host=options.host,
        port=options.port,
        advertise=options.node.advertise,
        region=options.node.region,
        name=options.node.name,
        token=options.token,
        profile=options.coding.profile,
        link_mbps=options.coding.link_mbps,
        take_over=options.succession.take_over,
        supersede=superseded,
    )
