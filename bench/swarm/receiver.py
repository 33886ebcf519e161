"""A receiver in a race: the relay's daemon, which also reports its versions.

    python -m p2psync.bench.swarm.receiver '{…}'     (see `ReceiverOptions`)

It writes a JSON object a line: `{"loaded": true}` before it starts (`cold`: for which it waits for a line); `{"peers":
N}`, and `{"version": N, "at": T}` once the store holds every chunk of a version, verified, and the position is noted;
with `reports_chunks` also `{"held": SHARE, "version": N, "at": T}` as chunks of the newest version come. It ends with
its standard input.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from p2psync.actor.node import ActorConfig, make_relay
from p2psync.bench.swarm.jsonl import write_line
from p2psync.observe.events import Committed, Event, PeerDown, PeerUp, Warned
from p2psync.protocol.keys import parse_public
from p2psync.store.packs import Store

#: Seconds between two looks at the chunks in the store: a transfer's start and tail are known to within that.
_REPORT_SECONDS = 0.05


class ReceiverOptions(msgspec.Struct, frozen=True):
    """address: of this host. port: None where it cannot be dialled. reports_chunks: it writes the share of chunks that
    the store holds.
    """

    hub: str
    public: str
    store: str
    address: str
    region: str
    port: int | None
    congestion: str = "auto"
    cold: bool = False
    reports_chunks: bool = False


async def report_chunks(store: Store) -> None:
    """Writes the share of the newest version's chunks that are held, whenever it has changed; never returns."""
    told = None
    while True:
        newest = store.packs()[-1:]
        for pack in newest:
            if pack.count and told != (told := (pack.id, pack.count)):
                share = pack.count / pack.manifest.chunks
                write_line({"held": share, "version": pack.manifest.version, "at": time.monotonic()})
        await asyncio.sleep(_REPORT_SECONDS)


async def main(options: ReceiverOptions) -> None:
    """Runs until standard input ends."""
    config = ActorConfig(
        hub_url=options.hub,
        trusted=frozenset({parse_public(options.public)}),
        store=Path(options.store),
        host=options.address,
        port=options.port,
        advertise=options.address,
        region=options.region,
        congestion=options.congestion,
    )

    def hear(event: Event) -> None:
        if isinstance(event, Committed):
            write_line({"version": event.version, "at": time.monotonic()})
        elif isinstance(event, PeerUp | PeerDown):
            write_line({"peers": node.runner.peers})
        elif isinstance(event, Warned):
            print(event.line(), file=sys.stderr, flush=True)

    node = make_relay(config, on_event=hear)
    write_line({"loaded": True})
    if options.cold:
        await asyncio.to_thread(sys.stdin.readline)
    await node.start()
    telling = asyncio.create_task(report_chunks(node.runner.store)) if options.reports_chunks else None
    try:
        while await asyncio.to_thread(sys.stdin.readline):
            pass
    finally:
        if telling is not None:
            telling.cancel()
        await node.stop()


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=ReceiverOptions)))
