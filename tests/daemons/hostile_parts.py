"""A peer that speaks the protocol and means harm."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass, field

from p2psync.errors import FormatError
from p2psync.membership.records import NodeInfo
from p2psync.net.hub_client import HubClient
from p2psync.protocol.frames import FrameReader
from p2psync.protocol.manifest import Manifest, open_signed
from p2psync.protocol.messages import (
    MAGIC,
    PROTOCOL,
    SHORT_ID_BYTES,
    Bitfield,
    Chunk,
    Control,
    Hello,
    Message,
    Request,
    encode_chunk_header,
    encode_control,
)


@dataclass
class Liar:
    """A member that offers every chunk of every manifest, and sends wrong bytes for each that it is asked for."""

    url: str
    node: str = field(default_factory=lambda: "fff" + os.urandom(16).hex()[3:])  # who has the smaller name dials
    asked: int = 0

    async def run(self, ready: asyncio.Event) -> None:
        """Join, and lie until cancelled."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server, HubClient(self.url) as hub:
            port = server.sockets[0].getsockname()[1]
            self._manifests = {}
            view = await hub.view()
            while not view.lineage:
                view = await hub.view(view.instance, view.revision, wait=10)
            for announced in view.lineage:
                manifest, signed = open_signed(await hub.manifest(announced.id), None)
                self._manifests[signed.id[:SHORT_ID_BYTES]] = manifest
            info = NodeInfo(node=self.node, role="actor", host="127.0.0.1", port=port)
            lease = await hub.join(info)
            ready.set()
            while True:
                await asyncio.sleep(lease.ttl / 3)
                await hub.renew(lease.lease)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._talk(reader, writer)
        writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_control(hello(self.node)))
        for short, manifest in self._manifests.items():
            writer.write(encode_control(Bitfield(short, b"\xff" * (manifest.chunks // 8 + 1))))
        frames = FrameReader()
        while data := await reader.read(65536):
            for message in frames.feed(data):
                if isinstance(message, Request):
                    for index in message.chunks:
                        self.asked += 1
                        self._lie(writer, message.manifest, self._manifests[message.manifest], index)

    def _lie(self, writer: asyncio.StreamWriter, short: bytes, manifest: Manifest, index: int) -> None:
        size = manifest.sizes[index]
        writer.write(encode_chunk_header(short, index, size) + os.urandom(size))


class Caller:
    """A connection to a node's swarm port, for saying anything."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader()

    @classmethod
    async def dial(cls, port: int) -> Caller:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, *messages: Control | bytes) -> None:
        """Send messages, or raw bytes."""
        for message in messages:
            self._writer.write(message if isinstance(message, bytes) else encode_control(message))

    async def flood(self, data: bytes) -> None:
        """Send raw bytes, waiting while the other side is slow; returns early when it hangs up."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError:
            pass

    async def hear(self) -> list[Message]:
        """The next messages; [] once the other side has hung up."""
        while True:
            try:
                data = await self._reader.read(1 << 16)
                messages = self._frames.feed(data)
            except (OSError, FormatError):
                return []
            if messages or not data:
                return messages

    async def hung_up(self) -> bool:
        """Wait until the other side hangs up."""
        async with asyncio.timeout(30):
            while await self.hear():
                pass
        self.close()
        return True

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


def hello(node: str = "e" * 32, instance: str = "i") -> Hello:
    """A greeting."""
    return Hello(MAGIC, PROTOCOL, node, instance, "")


__all__ = ["Caller", "Chunk", "Liar", "hello"]
