"""What is set on a real connection."""

from __future__ import annotations

import os
import socket
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


def test_bbr_begins_anew_and_stays_bbr(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    if not tcp.set_congestion(near, "bbr"):
        pytest.skip("this kernel does not offer BBR")
    assert tcp.begin_anew(near)
    assert tcp.congestion_of(near) == "bbr"
    near.sendall(b"still there")
    assert far.recv(100) == b"still there"


def test_another_congestion_control_is_left_as_it_is(ends: tuple[socket.socket, socket.socket]) -> None:
    near, _ = ends
    assert tcp.set_congestion(near, "reno")
    assert not tcp.begin_anew(near)
    assert tcp.congestion_of(near) == "reno"


def test_a_handle_is_the_same_connection_and_closing_it_leaves_that_open(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    near, far = ends
    handle = tcp.handle(near)
    assert handle.fileno() != near.fileno() and os.path.sameopenfile(handle.fileno(), near.fileno())
    tcp.set_least(handle, 4096)
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 4096
    handle.close()
    near.sendall(b"still there")
    assert far.recv(100) == b"still there"
