"""`p2psync actor`: keep a directory byte-identical to the published checkpoint; or only pass it on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2psync.cli.options import Advertise, CongestionOption, EventsTarget, HostOption, Name, Probe, Streams
from p2psync.errors import FormatError, UsageError


def actor(
    join: Annotated[str, typer.Option(help="The hub's URL.")],
    trust: Annotated[list[str], typer.Option(help="The trainer's public key, or a file with it; may be repeated.")],
    into: Annotated[Path | None, typer.Option(help="DIR/current will be the checkpoint.")] = None,
    relay: Annotated[bool, typer.Option("--relay", help="Keep no weights: only fetch, keep and serve chunks.")] = False,
    base: Annotated[
        Path | None, typer.Option(help="A local copy of the base model: what it has is not fetched.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Where chunks are kept [DIR/.p2psync/swarm]; a relay needs it.")
    ] = None,
    host: HostOption = "",
    port: Annotated[int, typer.Option(help="Port of the swarm (TCP); 0: any.", min=0, max=65535)] = 0,
    listen: Annotated[bool, typer.Option(help="--no-listen: cannot be reached from outside; dial out only.")] = True,
    advertise: Advertise = "",
    region: Annotated[str, typer.Option(help="Where this machine is: any word.")] = "",
    name: Name = "",
    token: Annotated[str | None, typer.Option(help="Join token.")] = None,
    streams: Streams = 0,
    congestion: CongestionOption = "auto",
    probe: Probe = True,
    scrub: Annotated[
        float, typer.Option(help="Percent of a core for reading all weights again in search of damage.", min=0, max=100)
    ] = 2.0,
    follow_run: Annotated[
        str,
        typer.Option(metavar="RUN", help="Follow this run and no other; newest: never an older one; any: the hub's."),
    ] = "newest",
    until: Annotated[int | None, typer.Option(help="Stop once this version is live.")] = None,
    reader_limit: Annotated[float, typer.Option(help="Seconds to wait for readers that hold a lock.")] = 30.0,
    json: EventsTarget = None,
) -> None:
    """Keep DIR/current byte-identical to the published checkpoint; or, with --relay, only pass it on to others."""
    import asyncio

    from p2psync.cli import daemon
    from p2psync.membership.runs import parse_follow
    from p2psync.net.addresses import check_url
    from p2psync.observe.events import Note, Trouble

    show = daemon.EventOutput(json)
    trusted = daemon.trusted_keys(trust)
    check_url(join)
    follow = parse_follow(follow_run)
    if base is not None and not base.exists():
        raise UsageError(f"--base {base} does not exist")
    if relay and (into is not None or base is not None):
        raise UsageError("--relay keeps no weights: leave out --into and --base, and name a --store")
    place = store or (into / ".p2psync" / "swarm" if into is not None else None)
    if place is None:
        wanted = "--relay needs --store DIR: where it keeps chunks" if relay else "--into DIR is missing"
        raise UsageError(f"{wanted}; `p2psync actor --help` tells more")

    async def build() -> None:
        from p2psync.actor import node as nodes
        from p2psync.actor.directory import local_digest, open_directory

        config = nodes.ActorConfig(
            hub_url=join,
            trusted=trusted,
            store=place,
            host=host,
            port=port if listen else None,
            advertise=advertise,
            region=region,
            name=name,
            token=token,
            streams=streams,
            congestion=congestion,
            probe=probe,
            scrub_share=scrub / 100,
            follow_run=follow,
        )
        if into is None:
            node, where = nodes.make_relay(config, on_event=show), place
        else:
            copy, home, where = base, into, into / "current"
            try:
                digest = await asyncio.to_thread(local_digest, into, copy)
            except FormatError as error:
                show(Trouble(f"--base is of no use, everything is fetched: {error}"))
                copy, digest = None, ""
            node = nodes.ActorNode(
                config,
                lambda packs: open_directory(home, packs, copy, reader_limit),
                local_digest=digest,
                on_event=show,
            )
        await node.start()
        try:
            live = node.position
            if live is not None:
                show(Note(f"version {live.version} is live in {where}"))
            running = node.until(until) if until is not None else node.until_broken()
            await daemon.until_stopped(asyncio.create_task(running))
        finally:
            await node.stop()

    daemon.in_loop(build)
