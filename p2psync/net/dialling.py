"""Opening a connection: what must be set on its socket before the first packet leaves."""

from __future__ import annotations

import asyncio
import socket

from p2psync.net import tcp


async def dial(host: str, port: int, protocol: asyncio.BufferedProtocol, congestion: tcp.Congestion) -> None:
    """Connect a protocol to the first address of a host that answers.

    The connection begins with the congestion control for near peers; what the handshake shows decides whether it stays
    (`tcp.tune`). The other way round would not do: BBR leaves its pacing with a socket that it is taken from.
    Raises `OSError` if no address answers, and `ValueError` for a host name that is none.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failed: OSError = OSError(f"{host} has no address")
    for family, kind, number, _, address in found:
        sock = socket.socket(family, kind, number)
        sock.setblocking(False)
        tcp.set_congestion(sock, congestion.near)
        try:
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
        else:
            await loop.create_connection(lambda: protocol, sock=sock)
            return
    raise failed
