"""Two sides of real connections on 127.0.0.1, and what each was told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from p2psync.membership.records import NodeInfo
from p2psync.net import tcp
from p2psync.net.peers import ConnectionManager, PeerEvents
from p2psync.protocol.frames import FrameReader
from p2psync.protocol.messages import MAGIC, PROTOCOL, Control, Hello, Message, encode_control

Run = Callable[[Coroutine[Any, Any, None]], None]
SHORT = b"manifest"


@dataclass
class Told:
    """A peer table and everything that its owner heard."""

    name: str
    streams: int = 1
    instance: str = "1"
    congestion: tcp.Congestion = tcp.KERNELS
    refuses: set[str] = field(default_factory=set)
    up: list[str] = field(default_factory=list)
    down: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    messages: list[tuple[str, Message]] = field(default_factory=list)
    flushed: int = 0
    region: str = ""

    def __post_init__(self) -> None:
        events = PeerEvents(
            self._up,
            self.down.append,
            lambda name, message: self.messages.append((name, message)),
            self._flushed,
            self.failed.append,
        )
        self.table = ConnectionManager(hello(self.name, self.instance), events, self.streams, self.congestion)
        self.port = 0

    async def listen(self) -> Told:
        """Accept connections."""
        self.port = await self.table.listen("127.0.0.1", 0)
        return self

    @property
    def info(self) -> NodeInfo:
        """Where it is."""
        return NodeInfo(node=self.name, role="actor", region=self.region, host="127.0.0.1", port=self.port)

    def _up(self, name: str, region: str) -> bool:
        if name in self.refuses:
            return False
        if self.up.count(name) == self.down.count(name):  # told of every stream; here the peer counts
            self.up.append(name)
        return True

    def _flushed(self, name: str, size: int) -> None:
        self.flushed += size


class Raw:
    """The other side without a peer table: says and hears what a test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames = FrameReader()

    @classmethod
    async def dial(cls, port: int, *messages: Control) -> Raw:
        """Connect, and say something."""
        made = cls(*await asyncio.open_connection("127.0.0.1", port))
        for message in messages:
            made.say(message)
        return made

    def say(self, message: Control) -> None:
        """Send a message."""
        self.writer.write(encode_control(message))

    async def hear(self) -> list[Message]:
        """The next messages; [] when the other side has hung up."""
        while True:
            try:
                data = await self.reader.read(1 << 16)
            except OSError:
                return []
            messages = self.frames.feed(data)
            if messages or not data:
                return messages

    async def hung_up(self) -> None:
        """Wait until the other side hangs up."""
        while await self.hear():
            pass
        self.writer.close()


def hello(name: str, instance: str = "1") -> Hello:
    """A greeting."""
    return Hello(MAGIC, PROTOCOL, name, instance, "")


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until `condition` holds; fails after 10 s."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what is waited for happens at sockets, which tell nobody)
            await asyncio.sleep(0.001)
