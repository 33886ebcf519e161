"""Shared parts of the emulator's tests: a small network, sockets in its hosts, and transfers between them."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from p2psync.topology.emulator import EmulatedNetwork, why_not
from p2psync.topology.model import Link, Region, Topology

_reason = why_not()
needs_networks = pytest.mark.skipif(_reason is not None, reason=_reason or "")

#: Hosts at 100 Mbit/s; a–b is slow and long, b–c loses packets, a and c have no link, and b-1 cannot dial a-1.
SMALL = Topology(
    "a-0",
    {"a": Region(2, 100), "b": Region(2, 100, 50), "c": Region(1, 100)},
    [Link(("a", "b"), 40, 10), Link(("b", "c"), 50, 2, 0.05)],
    blocked=[("b-1", "a-1")],
)
#: Payload bytes in a full packet of TCP with timestamps, of 1500.
TCP_SHARE = 1448 / 1500


def udp(network: EmulatedNetwork, host: str) -> socket.socket:
    """A bound UDP socket in a host, at port 9000."""
    with network.inside(host):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((network.address(host), 9000))
    made.settimeout(10)
    return made


def send(network: EmulatedNetwork, source: socket.socket, target: str, payload: bytes = b"x") -> None:
    """One datagram to a host."""
    source.sendto(payload, (network.address(target), 9000))


def transfer(network: EmulatedNetwork, source: str, target: str, payload: bytes) -> tuple[float, bytes]:
    """Send bytes over one TCP connection: returns the seconds until the last one arrives, and the received bytes."""
    with network.inside(target):
        listener = socket.create_server((network.address(target), 0))
    with network.inside(source):
        sender = socket.socket()
    with listener, sender:
        listener.settimeout(20)
        sender.settimeout(20)
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        receiver.settimeout(20)
        begin = time.monotonic()
        feeder = threading.Thread(target=lambda: (sender.sendall(payload), sender.shutdown(socket.SHUT_WR)))
        feeder.start()
        came = bytearray()
        with receiver:
            while part := receiver.recv(1 << 18):
                came += part
        feeder.join()
        return time.monotonic() - begin, bytes(came)


def in_threads(*calls: Callable[[], object]) -> list[object]:
    """Returns the results of simultaneous calls."""
    results: list[object] = [None] * len(calls)

    def keep(i: int, call: Callable[[], object]) -> None:
        results[i] = call()

    threads = [threading.Thread(target=keep, args=(i, call)) for i, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Waits for a condition; fails if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


@contextmanager
def first_in_line() -> Iterator[None]:
    """Runs this thread at real-time priority, where that is granted, so that its timings exclude other threads."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(40))
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def round_trip_ms(network: EmulatedNetwork, a: str, b: str, tries: int = 20) -> float:
    """The shortest of several round trips of a datagram: the network's time, without the machine's other load."""
    shortest = float("inf")
    with udp(network, a) as one, udp(network, b) as other, first_in_line():
        for _ in range(tries):
            begin = time.perf_counter()
            send(network, one, b)
            other.recv(100)
            send(network, other, a)
            one.recv(100)
            shortest = min(shortest, time.perf_counter() - begin)
    return shortest * 1000
