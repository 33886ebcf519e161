"""The kernel's counters show the losses of a connection whose link is cut to a hundredth."""

import socket
import threading
from collections.abc import Iterator

import pytest
from emulator_parts import needs_networks

from p2psync.net import tcp
from p2psync.topology.emulator import EmulatedNetwork, Emulator
from p2psync.topology.model import Link, Region, Topology

pytestmark = [pytest.mark.root, needs_networks]

PAIR = Topology("a-0", {"a": Region(1, 1000), "b": Region(1, 1000)}, [Link(("a", "b"), 100, 35)])
PAYLOAD = 4 << 20


@pytest.fixture
def network() -> Iterator[EmulatedNetwork]:
    with Emulator(PAIR, congestion="bbr") as network:
        yield network


def swallow(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while connection.recv(1 << 18):
            pass


def test_lost_segments_stay_queued_for_retransmission_when_nothing_new_is(network: EmulatedNetwork) -> None:
    with network.inside("b-0"):
        server = socket.create_server((network.address("b-0"), 0))
    with network.inside("a-0"):
        near = socket.create_connection(server.getsockname())
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PAYLOAD)
    reader = threading.Thread(target=swallow, args=(server,))
    reader.start()
    with server, near:
        near.sendall(bytes(PAYLOAD))
        while (info := tcp.tcp_info(near)) is not None and info.delivered < PAYLOAD - (1 << 20):
            pass
        network.set_link("a", "b", rate=1)
        most = 0
        while (info := tcp.tcp_info(near)) is not None and info.delivered < PAYLOAD - (1 << 18):
            most = max(most, info.waits) if not tcp.unsent(near) else 0
        assert most > 100_000
        network.set_link("a", "b", rate=100)
    reader.join()
