"""The flow-level network: links are FIFO, and data in flight is bounded."""

from __future__ import annotations

import pytest

from p2psync.protocol.messages import SHORT_ID_BYTES, Chunk, Message, Ping
from p2psync.sim.clock import VirtualClock
from p2psync.topology.fluid.payload import SCALE
from p2psync.topology.fluid.servers import HEADER_FACTOR, FluidNetwork, LinkServer, Pipe
from p2psync.topology.model import Link, Region, Topology
from p2psync.topology.network import from_topology

#: 64 KiB, scaled.
CHUNK = Chunk(bytes(SHORT_ID_BYTES), 0, bytes((64 << 10) // SCALE))
#: Seconds of one chunk at 100 Mbit/s.
TURN = (64 << 10) * 8 * HEADER_FACTOR / 100e6


class Host:
    """Records events."""

    def __init__(self, name: str, clock: VirtualClock) -> None:
        self.name, self.alive, self.clock = name, True, clock
        self.left: list[float] = []
        self.came: list[tuple[float, Message]] = []

    def flushed(self, peer: str, size: int) -> None:
        self.left.append(self.clock.now)

    def receive(self, sender: str, message: Message) -> None:
        self.came.append((self.clock.now, message))


def pair(rate: float, buffer: float = 0.2) -> tuple[VirtualClock, FluidNetwork, Host, Host, Pipe]:
    """Two hosts of 100 Mbit/s each way in two regions, 10 ms apart, on a link of this rate."""
    network = from_topology(
        Topology("a-0", {"a": Region(2, 100), "b": Region(2, 100)}, [Link(("a", "b"), rate, delay_ms=10)])
    )
    clock = VirtualClock(0)
    net = FluidNetwork(network, clock, buffer)
    here, there = Host("a-0", clock), Host("b-0", clock)
    return clock, net, here, there, net.pipe(here, 0, there, 2)


def run(clock: VirtualClock, until: float = 100.0) -> None:
    clock.run(until, lambda: False)


def test_a_server_is_fifo() -> None:
    server = LinkServer(8 * SCALE / 1e6 * 1000)
    assert [server.take(1000, 0.0), server.take(1000, 0.5), server.take(1000, 5.0)] == [1.0, 2.0, 6.0]
    assert server.nbytes == 3000


def test_a_chunk_queues_on_each_link_and_takes_the_delay() -> None:
    clock, net, here, there, pipe = pair(rate=50)
    net.send(pipe, CHUNK)
    net.send(pipe, CHUNK)
    run(clock)
    assert here.left == pytest.approx([TURN, 2 * TURN])
    # Up, across at half the rate, down; the second waits for the first at the link.
    first = TURN + 2 * TURN + 0.0102 + TURN
    assert [when for when, _ in there.came] == pytest.approx([first, first + 2 * TURN])


def test_a_slow_link_limits_the_sender_and_stays_full() -> None:
    clock, net, here, there, pipe = pair(rate=10, buffer=0.1)
    for _ in range(100):
        net.send(pipe, CHUNK)
    run(clock, 1.0)
    # The uplink could have sent them all in 0.55 s.
    assert len(here.left) < 30
    run(clock)
    assert len(there.came) == 100
    assert there.came[-1][0] == pytest.approx(100 * 10 * TURN, rel=0.02)


def test_connections_share_an_uplink() -> None:
    clock, net, here, there, pipe = pair(rate=1000)
    sibling = Host("a-1", clock)
    other = net.pipe(here, 0, sibling, 1)
    for _ in range(50):
        net.send(pipe, CHUNK)
        net.send(other, CHUNK)
    run(clock, 50 * TURN)
    assert abs(len(there.came) - len(sibling.came)) <= 4


def test_control_messages_take_the_delay_alone() -> None:
    clock, net, _, there, pipe = pair(rate=1)
    for _ in range(20):
        net.send(pipe, CHUNK)
    net.send_control(pipe.delay, [(pipe, Ping(1))])
    run(clock, 0.0103)
    assert [message for _, message in there.came] == [Ping(1)]


def test_chunks_in_flight_to_or_from_a_crashed_node_are_lost() -> None:
    for dies in (0, 1):
        clock, net, here, there, pipe = pair(rate=10)
        for _ in range(20):
            net.send(pipe, CHUNK)
        run(clock, 0.3)
        come = len(there.came)
        (here, there)[dies].alive = False
        run(clock)
        assert 0 < come == len(there.came)
