"""Opens a connection to a host with several addresses, some of which may not answer.

Attempts are staggered as in RFC 8305 (Happy Eyeballs): address families alternate; the next address is tried when the
one before has failed or has not answered for `ATTEMPT_DELAY_SECONDS`; the first established connection is kept, and the
other attempts are cancelled. `Attempts` decides; `dial` carries out.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from p2psync.net import tcp

#: Seconds that an attempt has before the next address is tried in parallel: RFC 8305's recommendation. A longer delay
#: makes unresponsive addresses cost more, a shorter one opens connections that slow addresses would have won anyway.
ATTEMPT_DELAY_SECONDS = 0.25
#: Most addresses of one host that are tried, so that a name with hundreds of addresses cannot exhaust sockets.
MAX_ATTEMPTS = 8

SocketAddress = tuple[socket.AddressFamily, tuple[object, ...]]
T = TypeVar("T")


def interleave(addresses: Iterable[SocketAddress]) -> list[SocketAddress]:
    """Returns the distinct addresses with the families alternating, starting with the first address's family."""
    by_family: dict[socket.AddressFamily, list[SocketAddress]] = {}
    for address in dict.fromkeys(addresses):
        by_family.setdefault(address[0], []).append(address)
    rounds = itertools.zip_longest(*by_family.values())
    return [address for one_of_each in rounds for address in one_of_each if address is not None]


class Attempts(Generic[T]):
    """Decides when to try which address. Pure: times are seconds of any clock."""

    def __init__(
        self, addresses: Sequence[T], *, delay: float = ATTEMPT_DELAY_SECONDS, most: int = MAX_ATTEMPTS
    ) -> None:
        """addresses: in the order of trying; only the first `most` are tried."""
        self._left = list(addresses[:most])
        self._delay = delay
        self._next_at = float("-inf")

    @property
    def due(self) -> float:
        """When the next attempt starts, unless an earlier one fails before; inf if no address is left."""
        return self._next_at if self._left else float("inf")

    def poll(self, now: float) -> T | None:
        """Returns the address to try now, None if none is due."""
        if now < self.due:
            return None
        self._next_at = now + self._delay
        return self._left.pop(0)

    def failed(self) -> None:
        """Records that an attempt has failed: the next address is due at once."""
        self._next_at = float("-inf")


async def dial(hosts: Sequence[str], port: int, protocol: asyncio.BufferedProtocol, congestion: tcp.Congestion) -> None:
    """Connects a protocol to the first of a node's addresses that answers.

    The connection starts with the congestion control for near peers; the handshake's round trip then decides whether to
    switch (`tcp.tune`). The reverse order would not work: a socket that leaves BBR keeps BBR's pacing. Raises `OSError`
    if no address answers, and `ValueError` for a malformed host name.
    """
    loop = asyncio.get_running_loop()
    addresses = interleave(await _resolve(hosts, port))

    async def connect(address: SocketAddress) -> socket.socket:
        sock = socket.socket(address[0], socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            tcp.set_congestion(sock, congestion.near)
            await loop.sock_connect(sock, address[1])
        except BaseException:
            sock.close()
            raise
        return sock

    sock = await first_to_connect(Attempts(addresses), connect, loop.time)
    try:
        await loop.create_connection(lambda: protocol, sock=sock)
    except BaseException:
        sock.close()
        raise


async def first_to_connect(
    attempts: Attempts[SocketAddress],
    connect: Callable[[SocketAddress], Awaitable[socket.socket]],
    clock: Callable[[], float],
) -> socket.socket:
    """Returns the first socket that connects, and cancels the other attempts. Raises the last `OSError` if all fail."""
    running: set[asyncio.Future[socket.socket]] = set()
    error: OSError = OSError("the host has no address")
    try:
        while True:
            while (address := attempts.poll(clock())) is not None:
                running.add(asyncio.ensure_future(connect(address)))
            if not running:
                raise error
            wait = attempts.due - clock()
            done, running = await asyncio.wait(
                running, timeout=None if wait == float("inf") else max(0.0, wait), return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in sorted(done, key=lambda one: one.exception() is not None):
                failure = attempt.exception()
                if failure is None:
                    running |= done - {attempt}
                    return attempt.result()
                if not isinstance(failure, OSError):
                    raise failure
                error = failure
                attempts.failed()
    finally:
        await _cancel(running)


async def _cancel(attempts: set[asyncio.Future[socket.socket]]) -> None:
    """Cancels attempts and closes the sockets that they opened."""
    for attempt in attempts:
        attempt.cancel()
    for found in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(found, socket.socket):
            found.close()


async def _resolve(hosts: Sequence[str], port: int) -> list[SocketAddress]:
    """Returns the addresses of all hosts, in the order of the hosts. Raises the last host's error if no host has an
    address."""
    loop = asyncio.get_running_loop()
    answers = await asyncio.gather(
        *(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM) for host in hosts), return_exceptions=True
    )
    found: list[SocketAddress] = []
    error: BaseException = OSError("the node has no host")
    for answer in answers:
        if isinstance(answer, BaseException):
            error = answer
        else:
            found += [(family, tuple(address)) for family, _, _, _, address in answer]
    if not found:
        raise error
    return found
