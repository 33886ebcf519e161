"""How an engine has its conductor look at once, without being asked all the time.

Each question to a worker goes through vLLM's executor, and its worker processes spin for a second after each message: a
conductor that asks twenty times a second keeps every worker of an idle engine at a core's full use. So rank 0 has a
Unix socket, to which a conductor on the same machine connects, and sends a byte whenever there may be something to do.
It says nothing else, and takes nothing. Whoever cannot connect asks as before.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress

#: Listeners at a time; there is one conductor.
MAX_LISTENERS = 16
#: A listener looks after this long in any case (seconds).
MAX_QUIET_SECONDS = 30.0


class CommitNotifier:
    """The engine's end. `open` and `close` on one loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._listeners: set[asyncio.StreamWriter] = set()
        #: Where to connect; "" while nobody can.
        self.address = ""

    async def open(self) -> None:
        """Let listeners come. Where there are no such sockets, nothing happens."""
        if not sys.platform.startswith("linux"):
            return
        # In the abstract namespace: it leaves no file behind, however the process ends.
        address = f"p2psync-{os.urandom(16).hex()}"
        place = socket.socket(socket.AF_UNIX)
        try:
            place.bind(f"\0{address}")
            self._server = await asyncio.start_unix_server(self._come, sock=place)
        except OSError:
            place.close()
            return
        self._loop = asyncio.get_running_loop()
        self.address = address

    def ring(self) -> None:
        """Have all listeners look; from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._ring)

    async def close(self) -> None:
        """Send listeners away. Again: no effect."""
        self.address = ""
        if self._server is not None:
            self._server.close()
            self._server = None
        for listener in self._listeners:
            listener.close()

    def _ring(self) -> None:
        for listener in self._listeners:
            if not listener.transport.get_write_buffer_size():  # else it has not heard the last one yet
                listener.write(b"!")

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._listeners) < MAX_LISTENERS:
            self._listeners.add(writer)
            writer.write(b"!")  # it may have rung before this one could hear it
            with suppress(OSError, asyncio.CancelledError):
                await reader.read(1)  # until it goes, or the loop ends
            self._listeners.discard(writer)
        writer.close()


class CommitListener:
    """The conductor's end."""

    def __init__(self, quiet: float = MAX_QUIET_SECONDS) -> None:
        """quiet: see `MAX_QUIET_SECONDS`."""
        self._quiet = quiet
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def heard(self, address: str) -> bool:
        """Wait until the bell at `address` rings, which it also does for who has just come. False, at once, if there
        is none."""
        if self._connection is None and not (address and await self._connect(address)):
            return False
        assert self._connection is not None
        try:
            async with asyncio.timeout(self._quiet):
                if await self._connection[0].read(4096):
                    return True
        except TimeoutError:
            return True
        except OSError:
            pass
        self.close()
        return False

    def close(self) -> None:
        """Hang up. Again: no effect."""
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _connect(self, address: str) -> bool:
        place = socket.socket(socket.AF_UNIX)
        try:
            place.connect(f"\0{address}")  # a local socket: at once, or not at all
            place.setblocking(False)
            self._connection = await asyncio.open_unix_connection(sock=place)
        except OSError:
            place.close()
            return False
        return True
