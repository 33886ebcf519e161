"""`p2psync actor`: keep a directory byte-identical to the published checkpoint; or only pass it on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2psync.cli.option_structs import takes_options
from p2psync.cli.options import (
    ConnectionOptions,
    EventsTarget,
    HostOption,
    HubUrl,
    JoinToken,
    NodeOptions,
    SwarmPort,
    TrainerKeys,
)
from p2psync.errors import FormatError, UsageError

if TYPE_CHECKING:
    from p2psync.actor.node import ActorConfig, ActorNode
    from p2psync.cli.daemon import EventOutput


@dataclass(frozen=True, kw_only=True)
class ActorOptions:
    """The options of `p2psync actor`."""

    join: HubUrl
    trust: TrainerKeys
    into: Annotated[Path | None, typer.Option(help="DIR/current will be the checkpoint.")] = None
    relay: Annotated[bool, typer.Option("--relay", help="Keep no weights: only fetch, keep and serve chunks.")] = False
    base: Annotated[Path | None, typer.Option(help="A local copy of the base model: what it has is not fetched.")] = (
        None
    )
    store: Annotated[
        Path | None, typer.Option(help="Where chunks are kept [DIR/.p2psync/swarm]; a relay needs it.")
    ] = None
    host: HostOption = ""
    port: SwarmPort = 0
    listen: Annotated[bool, typer.Option(help="--no-listen: cannot be reached from outside; dial out only.")] = True
    node: NodeOptions
    token: JoinToken = None
    connections: ConnectionOptions
    scrub: Annotated[
        float, typer.Option(help="Percent of a core for reading all weights again in search of damage.", min=0, max=100)
    ] = 2.0
    follow_run: Annotated[
        str,
        typer.Option(metavar="RUN", help="Follow this run and no other; newest: never an older one; any: the hub's."),
    ] = "newest"
    until: Annotated[int | None, typer.Option(help="Stop once this version is live.")] = None
    reader_limit: Annotated[float, typer.Option(help="Seconds to wait for readers that hold a lock.")] = 30.0
    json: EventsTarget = None


@takes_options(ActorOptions)
def actor(options: ActorOptions) -> None:
    """Keep DIR/current byte-identical to the published checkpoint; or, with --relay, only pass it on to others."""
    from p2psync.cli import daemon
    from p2psync.membership.runs import parse_follow
    from p2psync.net.addresses import check_url

    show = daemon.EventOutput(options.json)
    trusted = daemon.trusted_keys(options.trust)
    check_url(options.join)
    follow = parse_follow(options.follow_run)
    store = _store(options)
    daemon.in_loop(lambda: _run(options, store, trusted, follow, show))


def _store(options: ActorOptions) -> Path:
    """Returns the directory of chunks. Raises `UsageError` for directories that do not go together."""
    into, base, relay = options.into, options.base, options.relay
    if base is not None and not base.exists():
        raise UsageError(f"--base {base} does not exist")
    if relay and (into is not None or base is not None):
        raise UsageError("--relay keeps no weights: leave out --into and --base, and name a --store")
    store = options.store or (into / ".p2psync" / "swarm" if into is not None else None)
    if store is None:
        wanted = "--relay needs --store DIR: where it keeps chunks" if relay else "--into DIR is missing"
        raise UsageError(f"{wanted}; `p2psync actor --help` tells more")
    return store


async def _run(options: ActorOptions, store: Path, trusted: frozenset[bytes], follow: str, show: EventOutput) -> None:
    """Runs the actor until told to stop, or until the version that `--until` names is live."""
    import asyncio

    from p2psync.actor.node import make_relay
    from p2psync.cli import daemon
    from p2psync.observe.events import Note

    config = _actor_config(options, store, trusted, follow)
    if options.into is None:
        node, where = make_relay(config, on_event=show), store
    else:
        node, where = await _weights_node(config, options.into, options, show), options.into / "current"
    async with daemon.running(node):
        live = node.position
        if live is not None:
            show(Note(f"version {live.version} is live in {where}"))
        ending = node.until(options.until) if options.until is not None else node.until_broken()
        await daemon.until_stopped(asyncio.create_task(ending))


async def _weights_node(config: ActorConfig, into: Path, options: ActorOptions, show: EventOutput) -> ActorNode:
    """Returns an actor that keeps the weights in a directory; a base that cannot be read is left out."""
    import asyncio

    from p2psync.actor.directory import local_digest, open_directory
    from p2psync.actor.node import ActorNode
    from p2psync.observe.events import Trouble

    base = options.base
    try:
        digest = await asyncio.to_thread(local_digest, into, base)
    except FormatError as error:
        show(Trouble(f"--base is of no use, everything is fetched: {error}"))
        base, digest = None, ""
    return ActorNode(
        config,
        lambda packs: open_directory(into, packs, base, options.reader_limit),
        local_digest=digest,
        on_event=show,
    )


def _actor_config(options: ActorOptions, store: Path, trusted: frozenset[bytes], follow: str) -> ActorConfig:
    from p2psync.actor.node import ActorConfig

    return ActorConfig(
        hub_url=options.join,
        trusted=trusted,
        store=store,
        host=options.host,
        port=options.port if options.listen else None,
        advertise=options.node.advertise,
        region=options.node.region,
        name=options.node.name,
        token=options.token,
        streams=options.connections.streams,
        congestion=options.connections.congestion,
        probe=options.connections.probe,
        scrub_share=options.scrub / 100,
        follow_run=follow,
    )
