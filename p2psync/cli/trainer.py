"""`p2psync trainer`: publish each checkpoint that a framework writes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2psync.cli.option_structs import takes_options
from p2psync.cli.options import ConnectionOptions, EventsTarget, HostOption, HubToken, NodeOptions, SwarmPort
from p2psync.cli.publishing_options import CheckpointOptions, CodingOptions, SuccessionOptions
from p2psync.errors import UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from p2psync.cli.daemon import EventOutput
    from p2psync.trainer.config import TrainerConfig
    from p2psync.trainer.daemon import WatchConfig
    from p2psync.trainer.node import TrainerNode


class Backlog(StrEnum):
    """Which checkpoints are published where several wait."""

    newest = "newest"
    all = "all"


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """The options of `p2psync trainer`."""

    watch: Annotated[Path, typer.Option(help="The directory that the framework writes checkpoints to.")]
    store: Annotated[Path | None, typer.Option(help="Where versions are kept [DIR/.p2psync].")] = None
    key: Annotated[Path | None, typer.Option(help="The signing key; made if it is missing [STORE/trainer.key].")] = None
    hub: Annotated[str | None, typer.Option(help="Use the hub at this URL instead of embedding one.")] = None
    host: HostOption = ""
    hub_port: Annotated[int, typer.Option(help="Port of the embedded hub (HTTP); 0: any.", min=0, max=65535)] = 7070
    port: SwarmPort = 7071
    node: NodeOptions
    token: HubToken = None
    marker: Annotated[str | None, typer.Option(help="A checkpoint is complete once this file is in it.")] = None
    settle: Annotated[
        float, typer.Option(help="Without a marker: seconds without a change; 0: atomic renames.", min=0)
    ] = 1.0
    backlog: Annotated[
        Backlog, typer.Option(help="Of checkpoints that wait: publish the newest, or all, oldest first.")
    ] = Backlog.newest
    checkpoint: CheckpointOptions
    connections: ConnectionOptions
    coding: CodingOptions
    squash: Annotated[bool, typer.Option(help="Squash deltas into one for actors that are behind.")] = True
    keep: Annotated[
        int, typer.Option(help="Versions that an absent actor may be behind and still get by deltas.", min=0)
    ] = 64
    anchor_ratio: Annotated[
        float, typer.Option(help="A new anchor once deltas outweigh the last by this.", min=0.01)
    ] = 1.0
    anchor_deltas: Annotated[int, typer.Option(help="A new anchor after so many deltas, however small.", min=1)] = 256
    anchor_hours: Annotated[
        float, typer.Option(help="A new anchor once the last one is so many hours old.", min=0.01)
    ] = 24.0
    ttl: Annotated[float, typer.Option(help="Seconds of a lease at the embedded hub.", min=1)] = 10.0
    plan: Annotated[
        bool, typer.Option(help="The embedded hub plans, from what nodes measure, who sends what to whom.")
    ] = True
    rollouts: Annotated[
        bool, typer.Option(help="Serve the ledger of rollout work; the framework's token goes to STORE/rollouts.token.")
    ] = False
    max_staleness: Annotated[
        int, typer.Option(help="With --rollouts: versions that a result may lie behind the newest.", min=0)
    ] = 1
    succession: SuccessionOptions
    json: EventsTarget = None

    @property
    def store_directory(self) -> Path:
        """Where versions are kept."""
        return self.store or self.watch / ".p2psync"

    @property
    def key_file(self) -> Path:
        """The file of the signing key."""
        return self.key or self.store_directory / "trainer.key"


@takes_options(TrainerOptions)
def trainer(options: TrainerOptions) -> None:
    """Publish each checkpoint that appears in a directory; embeds the hub."""
    from p2psync.cli import daemon

    show = daemon.EventOutput(options.json)
    if not options.watch.is_dir():
        raise UsageError(f"{options.watch} is not a directory: --watch wants the one that the framework writes to")
    if options.rollouts and options.hub is not None:
        raise UsageError("--rollouts: the ledger is served by the trainer's own hub; leave --hub out")
    if options.succession.take_over and options.hub is None:
        raise UsageError("--take-over: nobody else holds the hub that this trainer embeds; name another with --hub")
    superseded = options.succession.superseded_run()
    daemon.in_loop(lambda: _run(options, superseded, show))


async def _run(options: TrainerOptions, superseded: str, show: EventOutput) -> None:
    """Publishes checkpoints until told to stop."""
    import asyncio

    from p2psync.cli import daemon
    from p2psync.cli.keys import make_key, read_key
    from p2psync.observe.events import Note
    from p2psync.protocol.keys import public_text
    from p2psync.trainer.daemon import WatchDaemon
    from p2psync.trainer.ledger.daemon import DaemonLedger
    from p2psync.trainer.node import TrainerNode

    file = options.key_file
    is_new = not file.exists()
    key = make_key(file) if is_new else read_key(file)
    config = _trainer_config(options, key, superseded)
    if is_new:
        show(Note(f"{file} did not exist: made a new key there; actors that trust another key refuse it"))
    work = DaemonLedger(options.store_directory, options.max_staleness) if options.rollouts else None
    node = TrainerNode(config, show) if work is None else TrainerNode(config, work.admit_before(show), work.mount)
    watching = WatchDaemon(node, options.watch, config=_watch_config(options), on_event=show)
    async with daemon.running(node):
        if work is not None:
            work.started(node.position)
        url, public = _hub_url(node), public_text(key.public_key().public_bytes_raw())
        show(Note(f"hub at {url}; actors: {daemon.join_command(url, public, options.token)}"))
        await daemon.until_stopped(asyncio.create_task(watching.run()), asyncio.create_task(node.until_broken()))


def _hub_url(node: TrainerNode) -> str:
    """Returns the hub's URL as actors elsewhere may use it."""
    from p2psync.net.addresses import advertised_hosts, listen_host
    from p2psync.net.listening import printed_hub_url

    if node.hub is None:
        return node.hub_url
    config = node.config
    return printed_hub_url(listen_host(config.host), advertised_hosts(config.advertise), node.hub.port)


def _watch_config(options: TrainerOptions) -> WatchConfig:
    from p2psync.trainer.daemon import WatchConfig

    return WatchConfig(
        rules=options.checkpoint.rules(options.marker),
        settle=options.settle,
        backlog=options.backlog is Backlog.all,
        secrets=(options.key_file,),
    )


def _trainer_config(options: TrainerOptions, key: Ed25519PrivateKey, superseded: str) -> TrainerConfig:
    from p2psync.trainer.config import TrainerConfig

    return TrainerConfig(
        store=options.store_directory,
        key=key,
        hub_url=options.hub,
        wait_for_hub=options.hub is not None,
        host=options.host,
        hub_port=options.hub_port,
        port=options.port,
        advertise=options.node.advertise,
        region=options.node.region,
        name=options.node.name,
        token=options.token,
        streams=options.connections.streams,
        congestion=options.connections.congestion,
        probe=options.connections.probe,
        profile=options.coding.profile,
        link_mbps=options.coding.link_mbps,
        squash=options.squash,
        anchor_ratio=options.anchor_ratio,
        anchor_deltas=options.anchor_deltas,
        anchor_seconds=3600 * options.anchor_hours,
        keep=options.keep,
        ttl=options.ttl,
        plan=options.plan,
        take_over=options.succession.take_over,
        supersede=superseded,
    )
