"""All connections of a node: listening, dialling several parallel streams to a peer, telling live peers from dead."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from p2psync.errors import P2PSyncError
from p2psync.membership.records import NodeInfo
from p2psync.net.stream import PeerStream
from p2psync.protocol.messages import Control, Hello, Message, Ping, Pong

#: Seconds: how often each stream is pinged; silence after which it is dead; how long a dial may take.
PING_EVERY = 5.0
DEAD_AFTER = 20.0
DIAL_TIMEOUT = 10.0
MAX_STREAMS_PER_PEER = 16
MAX_CONNECTIONS = 512


@dataclass(slots=True)
class PeerEvents:
    """What the owner is told: up(name, region) → accepted?, down(name), message, flushed(name, bytes), failed dial."""

    up: Callable[[str, str], bool]
    down: Callable[[str], None]
    message: Callable[[str, Message], None]
    flushed: Callable[[str, int], None]
    dial_failed: Callable[[str], None]


@dataclass(slots=True)
class _Links:
    """The streams to one peer. instance: which start of its daemon they belong to."""

    instance: str
    region: str
    streams: list[PeerStream] = field(default_factory=list)


class PeerTable:
    """The connections of one node, by peer."""

    def __init__(self, hello: Hello, events: PeerEvents, streams: int = 2) -> None:
        """`streams`: parallel connections dialled to each peer."""
        self._hello = hello
        self._events = events
        self._streams = max(1, min(streams, MAX_STREAMS_PER_PEER))
        self._links: dict[str, _Links] = {}
        self._all: set[PeerStream] = set()
        self._accepted: set[PeerStream] = set()
        self._dialled: dict[PeerStream, str] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._token = 0

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; returns the port (0 asks for any). Raises `P2PSyncError` if it is taken."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, host or None, port, start_serving=True)
        except OSError as error:
            raise P2PSyncError(
                f"cannot listen on {host or '*'}:{port} ({error.strerror or error}); choose another port with --port"
            ) from None
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def watch(self) -> None:
        """Begin to tell live streams from dead ones."""
        self._spawn(self._watch())

    async def close(self) -> None:
        """Close everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in list(self._all):
            stream.close("this node is stopping")
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), 2)

    def dial(self, info: NodeInfo) -> None:
        """Connect to a member in the background; `dial_failed` if it cannot be reached, or greets as another."""
        self._spawn(self._dial(info))

    def send(self, name: str, message: Control) -> None:
        """Send a control message to a peer, on its first stream; dropped if it is gone."""
        links = self._links.get(name)
        if links is not None:
            links.streams[0].send(message)

    def send_chunk(self, name: str, manifest: bytes, index: int, data: bytes | memoryview, tag: int = 0) -> bool:
        """Send a chunk on the peer's emptiest stream; False if the peer is gone."""
        links = self._links.get(name)
        if links is None:
            return False
        min(links.streams, key=lambda stream: stream.backlog).send_chunk(manifest, index, data, tag)
        return True

    def hang_up(self, name: str, reason: str) -> None:
        """Close every stream to a peer. It is down at once; a connection that it makes now is a new one."""
        links = self._links.get(name)
        for stream in list(links.streams) if links else []:
            stream.close(reason)
            self._drop(stream)

    # ---- StreamOwner -----------------------------------------------------------------------------------------------

    def opened(self, stream: PeerStream) -> None:
        """A connection stands; one too many is closed."""
        self._all.add(stream)
        if stream not in self._dialled:
            self._accepted.add(stream)
            if len(self._accepted) > MAX_CONNECTIONS:
                stream.close("too many connections")

    def greeted(self, stream: PeerStream, hello: Hello) -> None:
        """A connection says whose it is."""
        meant = self._dialled.pop(stream, hello.node)
        if meant != hello.node:
            self._missed(meant)
        if hello.node == self._hello.node:
            stream.close("this node dialled itself")
            return
        links = self._links.get(hello.node)
        if links is not None and links.instance != hello.instance and not self._replace(links):
            stream.close("another instance of this node is connected and alive")
            return
        # Told at every stream, so that what was lost with an older one is said again.
        if not self._events.up(hello.node, hello.region):
            stream.close("this peer is shut out")
            return
        links = self._links.setdefault(hello.node, _Links(hello.instance, hello.region))
        if len(links.streams) >= MAX_STREAMS_PER_PEER:
            stream.close("too many streams of one peer")
            return
        stream.peer = hello.node
        links.streams.append(stream)

    def received(self, stream: PeerStream, message: Message) -> None:
        """A message; only greeted streams of accepted peers count."""
        if stream.peer is None or isinstance(message, Pong):
            return
        if isinstance(message, Ping):
            stream.send(Pong(message.token))
        else:
            self._events.message(stream.peer, message)

    def flushed(self, stream: PeerStream, size: int) -> None:
        """Room again."""
        links = self._links.get(stream.peer) if stream.peer is not None else None
        if links is not None and stream.peer is not None and stream in links.streams:
            self._events.flushed(stream.peer, size)

    def closed(self, stream: PeerStream, reason: str) -> None:
        """One stream less; the peer is down with its last."""
        self._all.discard(stream)
        self._accepted.discard(stream)
        meant = self._dialled.pop(stream, None)
        if meant is not None:
            self._missed(meant)
        self._drop(stream)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _drop(self, stream: PeerStream) -> None:
        name = stream.peer
        links = self._links.get(name) if name is not None else None
        if name is None or links is None or stream not in links.streams:
            return
        links.streams.remove(stream)
        if links.streams:
            # What was on its way on that stream is gone; who holds what is said anew on the others.
            self._events.up(name, links.region)
        else:
            del self._links[name]
            self._events.down(name)

    def _missed(self, name: str) -> None:
        """A dialled connection came to nothing: the dial has failed, unless another one may still do."""
        if name not in self._links and name not in self._dialled.values():
            self._events.dial_failed(name)

    def _accept(self) -> PeerStream:
        return PeerStream(self, self._hello)

    def _replace(self, links: _Links) -> bool:
        """A new instance greets: believe it only if the old one has been silent, so that names cannot be hijacked."""
        now = asyncio.get_running_loop().time()
        if any(now - stream.heard_at < PING_EVERY * 2 for stream in links.streams):
            for stream in links.streams:
                self._ping(stream)
            return False
        for stream in list(links.streams):
            stream.close("a newer instance of this peer has come")
            self._drop(stream)
        return True

    async def _dial(self, info: NodeInfo) -> None:
        await asyncio.gather(*(self._connect(info) for _ in range(self._streams)))

    async def _connect(self, info: NodeInfo) -> None:
        loop = asyncio.get_running_loop()
        stream = PeerStream(self, self._hello)
        self._dialled[stream] = info.node
        try:
            async with asyncio.timeout(DIAL_TIMEOUT):
                await loop.create_connection(lambda: stream, info.host, info.port, family=socket.AF_UNSPEC)
        except (OSError, TimeoutError, ValueError):  # ValueError: a host name that is none
            if self._dialled.pop(stream, None) is not None:
                self._missed(info.node)

    async def _watch(self) -> None:
        """Ping every stream now and then, and close those that have long been silent."""
        while True:
            await asyncio.sleep(PING_EVERY)
            now = asyncio.get_running_loop().time()
            for stream in list(self._all):
                if now - stream.heard_at > DEAD_AFTER:
                    stream.close(f"nothing was heard for {DEAD_AFTER:.0f} s")
                elif stream.peer is not None:
                    self._ping(stream)

    def _ping(self, stream: PeerStream) -> None:
        self._token += 1
        stream.send(Ping(self._token))

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
