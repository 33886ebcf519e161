"""Notifies the conductor of an engine when a version is staged, so that it need not poll.

Each call to a worker goes through vLLM's executor, and its worker processes spin for a second after each message: a
conductor that polls twenty times a second keeps every worker of an idle engine at full load. So rank 0 opens a Unix
socket, to which a conductor on the same machine connects, and sends a byte whenever there may be a version to commit.
It sends nothing else and reads nothing. A conductor that cannot connect polls.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress

#: Listeners at a time. There is one conductor; more are spare for restarts.
MAX_LISTENERS = 16
#: Seconds after which a listener checks without a notification. A larger value delays recovery from a lost one.
MAX_QUIET_SECONDS = 30.0


class CommitNotifier:
    """The engine's end. `open` and `close` run on one loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._listeners: set[asyncio.StreamWriter] = set()
        #: The address to connect to; "" while the notifier is closed.
        self.address = ""

    async def open(self) -> None:
        """Accepts listeners. Does nothing where there are no abstract Unix sockets."""
        if not sys.platform.startswith("linux"):
            return
        # In the abstract namespace: it leaves no file behind, however the process ends.
        address = f"p2psync-{os.urandom(16).hex()}"
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(f"\0{address}")
            self._server = await asyncio.start_unix_server(self._accept, sock=listening)
        except OSError:
            listening.close()
            return
        self._loop = asyncio.get_running_loop()
        self.address = address

    def notify(self) -> None:
        """Notifies all listeners. May be called from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._notify_all)

    async def close(self) -> None:
        """Disconnects all listeners. Again: no effect."""
        self.address = ""
        if self._server is not None:
            self._server.close()
            self._server = None
        for listener in self._listeners:
            listener.close()

    def _notify_all(self) -> None:
        for listener in self._listeners:
            if not listener.transport.get_write_buffer_size():  # else the last notification is still unread
                listener.write(b"!")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._listeners) < MAX_LISTENERS:
            self._listeners.add(writer)
            writer.write(b"!")  # a notification may have come before this listener
            with suppress(OSError, asyncio.CancelledError):
                await reader.read(1)  # until it disconnects, or the loop ends
            self._listeners.discard(writer)
        writer.close()


class CommitListener:
    """The conductor's end."""

    def __init__(self, quiet: float = MAX_QUIET_SECONDS) -> None:
        """quiet: see `MAX_QUIET_SECONDS`."""
        self._quiet = quiet
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def wait_notified(self, address: str) -> bool:
        """Waits for a notification from `address`, or for `quiet` seconds. The first one comes on connection.

        Returns False, at once, if there is no notifier.
        """
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
        """Disconnects. Again: no effect."""
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _connect(self, address: str) -> bool:
        connecting = socket.socket(socket.AF_UNIX)
        try:
            connecting.connect(f"\0{address}")  # a local socket connects at once, or not at all
            connecting.setblocking(False)
            self._connection = await asyncio.open_unix_connection(sock=connecting)
        except OSError:
            connecting.close()
            return False
        return True
