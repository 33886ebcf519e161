"""Tells a machine whether its port can be reached from outside: the hub dials the address that the request came from.

The machine listens on the port and sends a nonce to each connection; the hub connects and reads it. The hub dials only
the machine that asks, and a few at a time.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Literal, TypeAlias

import msgspec

from p2psync.errors import FormatError, HubError

#: How long the hub tries to connect, and to read the nonce (seconds).
DIAL_SECONDS = 4.0
#: Attempts of one hub at a time: each holds a socket for `DIAL_SECONDS` at most.
MAX_AT_ONCE = 8
#: Characters of a nonce.
NONCE_CHARACTERS = 32

#: reached: the asker answered with its nonce. other: something else listens there. refused: nothing does.
#: silent: no answer came, as from behind a firewall or a NAT.
Outcome: TypeAlias = Literal["reached", "other", "refused", "silent"]


class DialBack(msgspec.Struct, frozen=True, kw_only=True):
    """Dial the address that this request comes from at `port`, where `nonce` is sent to whoever connects."""

    port: int
    nonce: str


class DialedBack(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of dialling a node back. host: the address that was dialled."""

    host: str
    outcome: Outcome


class Dialer:
    """The hub's side: dials machines back."""

    def __init__(self) -> None:
        self._dialling = 0

    async def dial(self, host: str, asked: DialBack) -> DialedBack:
        """Dial a host back. Raises `FormatError` for what cannot be dialled, `HubError` while too many are."""
        if not 0 < asked.port < 1 << 16 or len(asked.nonce) != NONCE_CHARACTERS or not asked.nonce.isascii():
            raise FormatError(f"a port is 1 to 65535, a nonce {NONCE_CHARACTERS} ASCII characters")
        if self._dialling >= MAX_AT_ONCE:
            raise HubError("this hub dials too many nodes back just now; ask again in some seconds")
        self._dialling += 1
        try:
            return DialedBack(host=host, outcome=await _dial(host, asked.port, asked.nonce.encode()))
        finally:
            self._dialling -= 1


async def _dial(host: str, port: int, nonce: bytes) -> Outcome:
    writer = None
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            answer = await reader.readexactly(len(nonce))
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent" if writer is None else "other"
    except (OSError, asyncio.IncompleteReadError):
        return "silent" if writer is None else "other"
    finally:
        if writer is not None:
            writer.close()
    return "reached" if hmac.compare_digest(answer, nonce) else "other"


async def answering(port: int, nonce: str) -> asyncio.Server:
    """The machine's side: sends the nonce to each connection at `port`. Raises `OSError` if the port is not free."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(nonce.encode())
        writer.close()

    return await asyncio.start_server(answer, port=port, reuse_address=True)
