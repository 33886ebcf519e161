"""Opening a connection to a host of several addresses, some of which may be silent.

Attempts are staggered as in RFC 8305 (Happy Eyeballs): families take turns, the next address is tried when the one
before it has failed or has been silent for `ATTEMPT_DELAY_SECONDS`, the first connection that stands is kept, and the
other attempts are cancelled. `Attempts` decides; `dial` carries out.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from p2psync.net import tcp

#: Seconds that an attempt is alone before the next address is tried beside it: RFC 8305's recommendation. A longer
#: delay makes silent addresses dearer, a shorter one opens connections that far addresses would have won anyway.
ATTEMPT_DELAY_SECONDS = 0.25
#: Addresses of one host that are tried at all, so that a name with hundreds of addresses cannot use up sockets.
MAX_ATTEMPTS = 8

Address = tuple[socket.AddressFamily, tuple[object, ...]]
T = TypeVar("T")


def interleave(addresses: Iterable[Address]) -> list[Address]:
    """The addresses, each once, with the families in turns: that of the first address first."""
    by_family: dict[socket.AddressFamily, list[Address]] = {}
    for address in dict.fromkeys(addresses):
        by_family.setdefault(address[0], []).append(address)
    turns = itertools.zip_longest(*by_family.values())
    return [address for turn in turns for address in turn if address is not None]


class Attempts(Generic[T]):
    """Which address is tried when. Pure: times are seconds of any clock."""

    def __init__(
        self, addresses: Sequence[T], *, delay: float = ATTEMPT_DELAY_SECONDS, most: int = MAX_ATTEMPTS
    ) -> None:
        """addresses: in the order of trying; those beyond `most` are not tried."""
        self._left = list(addresses[:most])
        self._delay = delay
        self._next_at = float("-inf")

    @property
    def due(self) -> float:
        """When the next attempt starts, unless an earlier one fails before; inf if no address is left."""
        return self._next_at if self._left else float("inf")

    def poll(self, now: float) -> T | None:
        """The address to try now, None if none is due."""
        if now < self.due:
            return None
        self._next_at = now + self._delay
        return self._left.pop(0)

    def failed(self) -> None:
        """An attempt has failed: the next address is due at once."""
        self._next_at = float("-inf")


async def dial(hosts: Sequence[str], port: int, protocol: asyncio.BufferedProtocol, congestion: tcp.Congestion) -> None:
    """Connect a protocol to the first address of a node's hosts that answers.

    The connection begins with the congestion control for near peers; what the handshake shows decides whether it stays
    (`tcp.tune`). The other way round would not do: BBR leaves its pacing with a socket that it is taken from.
    Raises `OSError` if no address answers, and `ValueError` for a host name that is none.
    """
    loop = asyncio.get_running_loop()
    addresses = interleave(await _resolve(hosts, port))

    async def connect(address: Address) -> socket.socket:
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
    attempts: Attempts[Address], connect: Callable[[Address], Awaitable[socket.socket]], clock: Callable[[], float]
) -> socket.socket:
    """The first socket that connects; the other attempts are cancelled. Raises the last `OSError` if all fail."""
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
    """End attempts that are not needed, and close what they opened."""
    for attempt in attempts:
        attempt.cancel()
    for found in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(found, socket.socket):
            found.close()


async def _resolve(hosts: Sequence[str], port: int) -> list[Address]:
    """The addresses of all hosts, in the order of the hosts. Raises what the last host that has none raised."""
    loop = asyncio.get_running_loop()
    answers = await asyncio.gather(
        *(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM) for host in hosts), return_exceptions=True
    )
    found: list[Address] = []
    error: BaseException = OSError("the node has no host")
    for answer in answers:
        if isinstance(answer, BaseException):
            error = answer
        else:
            found += [(family, tuple(address)) for family, _, _, _, address in answer]
    if not found:
        raise error
    return found
