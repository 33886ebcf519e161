"""One node that only measures: it connects to given peers, and prints its figures of them now and then.

    python -m p2psync.bench.probing_node '{"node": "a-0", "region": "a", "host": "10.77.0.1", "port": 7071, "peers":
    […]}'

For measurements on emulated networks, where a whole daemon for each host would measure this machine's processors.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time

import msgspec
import uvloop

from p2psync.membership.records import NodeInfo, NodeStatistics
from p2psync.net.peers import ConnectionManager, PeerEvents
from p2psync.net.tcp import choose_congestion
from p2psync.protocol.messages import MAGIC, PROTOCOL, Hello, Message
from p2psync.swarm.control.config import MeasureConfig
from p2psync.swarm.control.monitor import NetworkMonitor


class ProbeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The node, its peers, and how it connects. peers: all others; of two nodes the one of the smaller name dials."""

    info: NodeInfo
    peers: list[NodeInfo]
    congestion: str = "auto"
    streams: int = 0
    seed: int = 0


class ProbeState(msgspec.Struct, frozen=True, kw_only=True):
    """The node's figures. padding: bytes of probe padding so far. cpu: seconds used by this process."""

    node: str
    seconds: float
    statistics: NodeStatistics
    padding_sent: int
    padding_received: int
    streams: dict[str, int]
    cpu: float


async def run(setup: ProbeSetup) -> None:
    """Runs the node until SIGTERM."""
    info = setup.info
    congestion = choose_congestion(setup.congestion)
    monitor: NetworkMonitor

    def up(name: str, region: str) -> bool:
        monitor.peer_up(name, region)
        return True

    def message(name: str, message: Message) -> None:
        monitor.message(name, message)

    def dial_failed(name: str) -> None:
        # It may not listen yet.
        peer = next(peer for peer in setup.peers if peer.node == name)
        asyncio.get_running_loop().call_later(0.3, table.dial, peer)

    events = PeerEvents(
        up,
        lambda name: monitor.peer_down(name),
        message,
        lambda name, size: None,
        dial_failed,
    )
    table = ConnectionManager(
        Hello(MAGIC, PROTOCOL, info.node, str(time.time_ns()), info.region), events, setup.streams or 2, congestion
    )
    monitor = NetworkMonitor(
        info,
        table,
        random.Random(f"{setup.seed}{info.node}"),
        MeasureConfig(),
        asyncio.get_running_loop(),
        streams=setup.streams,
        congestion=congestion.far,
    )
    await table.listen(info.host, info.port)
    monitor.members([info, *setup.peers])
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    begin = time.monotonic()
    await asyncio.sleep(0.5)
    for peer in setup.peers:
        if info.node < peer.node:
            table.dial(peer)
    table.watch()
    monitor.start()
    while not ended.is_set():
        try:
            await asyncio.wait_for(ended.wait(), 1)
        except TimeoutError:
            state = ProbeState(
                node=info.node,
                seconds=time.monotonic() - begin,
                statistics=monitor.statistics(),
                padding_sent=monitor.padding_sent,
                padding_received=monitor.padding_received,
                streams={peer.node: len(table.streams(peer.node)) for peer in setup.peers},
                cpu=time.process_time(),
            )
            sys.stdout.buffer.write(msgspec.json.encode(state) + b"\n")
            sys.stdout.flush()
    monitor.stop()
    await table.close()


if __name__ == "__main__":
    uvloop.run(run(msgspec.json.decode(sys.argv[1], type=ProbeSetup)))
