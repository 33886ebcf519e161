"""What is set on a real connection."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from p2psync.net import tcp


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            yield near, far


def test_restart_keeps_bbr(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    if not tcp.set_congestion(near, "bbr"):
        pytest.skip("this kernel does not offer BBR")
    assert tcp.restart(near)
    assert tcp.congestion_of(near) == "bbr"
    near.sendall(b"still there")
    assert far.recv(100) == b"still there"


@pytest.mark.parametrize(
    ("state", "unacked", "sacked", "lost", "resent", "window", "away"),
    [
        (3, 60, 30, 20, 10, 100, True),
        (4, 24, 0, 0, 0, 100, True),
        (3, 60, 20, 20, 10, 100, False),
        (1, 20, 0, 0, 0, 100, False),
        (0, 3, 0, 0, 0, 4, True),
        (3, 4, 0, 0, 0, 4, True),
        (0, 0, 0, 0, 0, 10, False),
    ],
    ids=["recovery", "loss", "a part on its way", "nothing lost", "stopped", "stopped and repairs", "new"],
)
def test_a_connection_in_recovery_or_stopped_is_away_from_its_window(
    state: int, unacked: int, sacked: int, lost: int, resent: int, window: int, away: bool
) -> None:
    data = bytearray(232)
    data[1] = state  # tcpi_ca_state
    struct.pack_into("<4I", data, 24, unacked, sacked, lost, resent)
    struct.pack_into("<I", data, 80, window)  # tcpi_snd_cwnd
    assert tcp.is_away_from_window(bytes(data)) == away
    assert not tcp.is_away_from_window(bytes(data[:215]))


def test_an_idle_connection_can_restart(ends: tuple[socket.socket, socket.socket]) -> None:
    assert tcp.can_restart(ends[0])


def test_restart_leaves_another_congestion_control(ends: tuple[socket.socket, socket.socket]) -> None:
    near, _ = ends
    assert tcp.set_congestion(near, "reno")
    assert not tcp.restart(near)
    assert tcp.congestion_of(near) == "reno"


def test_a_duplicate_is_the_same_connection_and_closing_it_leaves_that_open(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    near, far = ends
    copy = tcp.dup(near)
    assert copy.fileno() != near.fileno() and os.path.sameopenfile(copy.fileno(), near.fileno())
    tcp.set_rcvlowat(copy, 4096)
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 4096
    copy.close()
    near.sendall(b"still there")
    assert far.recv(100) == b"still there"
