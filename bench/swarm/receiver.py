"""A receiver in a race: the relay's daemon, which also reports its versions.

    python -m p2psync.bench.swarm.receiver '{…}'     (see `ReceiverOptions`)

It writes a JSON object a line: `{"loaded": true}` before it starts (`cold`: for which it waits for a line); `{"peers":
N}`, and `{"version": N, "at": T}` once the store holds every chunk of a
version, verified, and the position is noted. It ends with its standard input.
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


class ReceiverOptions(msgspec.Struct, frozen=True):
    """address: of this host. port: None where it cannot be dialled."""

    hub: str
    public: str
    store: str
    address: str
    region: str
    port: int | None
    congestion: str = "auto"
    cold: bool = False


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
    try:
        while await asyncio.to_thread(sys.stdin.readline):
            pass
    finally:
        await node.stop()


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=ReceiverOptions)))
