"""`p2psync trainer`: publish each checkpoint that a framework writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2psync.cli.checkpoint_options import Backlog, FollowLinks, Ignore, Inside, TrainingState
from p2psync.cli.options import Advertise, Congestion, EventsTarget, Host, Name, Probe, Streams
from p2psync.errors import UsageError


def trainer(
    watch: Annotated[Path, typer.Option(help="The directory that the framework writes checkpoints to.")],
    store: Annotated[Path | None, typer.Option(help="Where versions are kept [DIR/.p2psync].")] = None,
    key: Annotated[
        Path | None, typer.Option(help="The signing key; made if it is missing [STORE/trainer.key].")
    ] = None,
    hub: Annotated[str | None, typer.Option(help="Use the hub at this URL instead of embedding one.")] = None,
    host: Host = "",
    hub_port: Annotated[int, typer.Option(help="Port of the embedded hub (HTTP); 0: any.", min=0, max=65535)] = 7070,
    port: Annotated[int, typer.Option(help="Port of the swarm (TCP); 0: any.", min=0, max=65535)] = 7071,
    advertise: Advertise = "",
    region: Annotated[str, typer.Option(help="Where this machine is: any word.")] = "",
    name: Name = "",
    token: Annotated[str | None, typer.Option(help="Join token that every node must know.")] = None,
    marker: Annotated[str | None, typer.Option(help="A checkpoint is complete once this file is in it.")] = None,
    settle: Annotated[
        float, typer.Option(help="Without a marker: seconds without a change; 0: atomic renames.", min=0)
    ] = 1.0,
    backlog: Annotated[
        Backlog, typer.Option(help="Of checkpoints that wait: publish the newest, or all, oldest first.")
    ] = Backlog.newest,
    inside: Inside = None,
    ignore: Ignore = None,
    training_state: TrainingState = False,
    follow_links: FollowLinks = False,
    streams: Streams = 0,
    congestion: Congestion = "auto",
    probe: Probe = True,
    profile: Annotated[
        str,
        typer.Option(help="How deltas are coded: fast, tight or auto (the last actor commits soonest)."),
    ] = "auto",
    link_mbps: Annotated[
        float, typer.Option(help="What the slowest link gives, for auto; 0: as actors measure it.", min=0)
    ] = 0.0,
    squash: Annotated[bool, typer.Option(help="Squash deltas into one for actors that are behind.")] = True,
    keep: Annotated[
        int, typer.Option(help="Versions that an absent actor may be behind and still get by deltas.", min=0)
    ] = 64,
    anchor_ratio: Annotated[
        float, typer.Option(help="A new anchor once deltas outweigh the last by this.", min=0.01)
    ] = 1.0,
    anchor_deltas: Annotated[int, typer.Option(help="A new anchor after so many deltas, however small.", min=1)] = 256,
    anchor_hours: Annotated[
        float, typer.Option(help="A new anchor once the last one is so many hours old.", min=0.01)
    ] = 24.0,
    ttl: Annotated[float, typer.Option(help="Seconds of a lease at the embedded hub.", min=1)] = 10.0,
    plan: Annotated[
        bool, typer.Option(help="The embedded hub plans, from what nodes measure, who sends what to whom.")
    ] = True,
    rollouts: Annotated[
        bool, typer.Option(help="Serve the ledger of rollout work; the framework's token goes to STORE/rollouts.token.")
    ] = False,
    max_staleness: Annotated[
        int, typer.Option(help="With --rollouts: versions that a result may lie behind the newest.", min=0)
    ] = 1,
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
    """Publish each checkpoint that appears in a directory; embeds the hub."""
    import asyncio

    from p2psync.cli import daemon
    from p2psync.cli.keys import make_key, read_key
    from p2psync.membership.runs import parse_run
    from p2psync.observe.events import Note
    from p2psync.protocol.keys import public_text

    show = daemon.EventOutput(json)
    store = store or watch / ".p2psync"
    if not watch.is_dir():
        raise UsageError(f"{watch} is not a directory: --watch wants the one that the framework writes to")
    if rollouts and hub is not None:
        raise UsageError("--rollouts: the ledger is served by the trainer's own hub; leave --hub out")
    if take_over and hub is None:
        raise UsageError("--take-over: nobody else holds the hub that this trainer embeds; name another with --hub")
    superseded = parse_run(supersede, "--supersede") if supersede else ""

    async def build() -> None:
        from p2psync.net.addresses import advertised_hosts, listen_host
        from p2psync.net.listening import printed_hub_url
        from p2psync.trainer.config import TrainerConfig
        from p2psync.trainer.daemon import WatchConfig, WatchDaemon
        from p2psync.trainer.ledger.daemon import DaemonLedger
        from p2psync.trainer.node import TrainerNode
        from p2psync.trainer.watch.locations import CheckpointRules

        key_file = key or store / "trainer.key"
        if key_file.exists():
            signing = read_key(key_file)
        else:
            signing = make_key(key_file)
            show(Note(f"{key_file} did not exist: made a new key there; actors that trust another key refuse it"))
        config = TrainerConfig(
            store=store,
            key=signing,
            hub_url=hub,
            wait_for_hub=hub is not None,
            host=host,
            hub_port=hub_port,
            port=port,
            advertise=advertise,
            region=region,
            name=name,
            token=token,
            streams=streams,
            congestion=congestion,
            probe=probe,
            profile=profile,
            link_mbps=link_mbps,
            squash=squash,
            anchor_ratio=anchor_ratio,
            anchor_deltas=anchor_deltas,
            anchor_seconds=3600 * anchor_hours,
            keep=keep,
            ttl=ttl,
            plan=plan,
            take_over=take_over,
            supersede=superseded,
        )
        work = DaemonLedger(store, max_staleness) if rollouts else None
        node = TrainerNode(config, show) if work is None else TrainerNode(config, work.admit_before(show), work.mount)
        rules = CheckpointRules(
            marker=marker,
            inside=inside,
            ignore=tuple(ignore or ()),
            training_state=training_state,
            follow_links=follow_links,
        )
        watched = WatchConfig(rules=rules, settle=settle, backlog=backlog is Backlog.all, secrets=(key_file,))
        watching = WatchDaemon(node, watch, config=watched, on_event=show)
        await node.start()
        try:
            if work is not None:
                work.started(node.position)
            public = public_text(signing.public_key().public_bytes_raw())
            url = node.hub_url
            if node.hub is not None:
                url = printed_hub_url(listen_host(host), advertised_hosts(advertise), node.hub.port)
            show(Note(f"hub at {url}; actors: {daemon.join_command(url, public, token)}"))
            await daemon.until_stopped(asyncio.create_task(watching.run()), asyncio.create_task(node.until_broken()))
        finally:
            await node.stop()

    daemon.in_loop(build)
