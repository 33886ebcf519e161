"""All connections of a node: listens, dials several parallel streams to each peer, closes dead ones."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field

from p2psync.membership.records import NodeInfo
from p2psync.net import tcp
from p2psync.net.dialling import dial
from p2psync.net.listening import open_listeners
from p2psync.net.stream import PeerStream
from p2psync.protocol.messages import MAX_STREAMS, Chunk, Control, Hello, Message, Ping, Pong
from p2psync.swarm.control.stream_count import StreamCount
from p2psync.swarm.stream_choice import soonest, stream_for

#: Seconds between pings of a stream, of silence after which it is dead, and for a dial.
PING_EVERY = 5.0
DEAD_AFTER = 20.0
DIAL_TIMEOUT = 10.0
MAX_STREAMS_PER_PEER = MAX_STREAMS
MAX_CONNECTIONS = 1024


@dataclass(slots=True)
class PeerEvents:
    """Callbacks of the owner.

    up: takes a peer and its region; returns whether to accept it. down: takes a peer. message: takes a peer and its
    message. flushed: takes a peer and the bytes of chunks that its connections have taken. dial_failed: takes a member.
    """

    up: Callable[[str, str], bool]
    down: Callable[[str], None]
    message: Callable[[str, Message], None]
    flushed: Callable[[str, int], None]
    dial_failed: Callable[[str], None]


@dataclass(slots=True)
class _Links:
    """The streams to one peer. instance: the start of its daemon that they belong to.

    info: the member that this node dialled; None if the peer dialled. leaving: streams on which this node sends no
    more.
    """

    instance: str
    region: str
    streams: list[PeerStream] = field(default_factory=list)
    info: NodeInfo | None = None
    leaving: list[PeerStream] = field(default_factory=list)
    count: StreamCount = field(default_factory=StreamCount)


class ConnectionManager:
    """The connections of one node, by peer."""

    def __init__(
        self, hello: Hello, events: PeerEvents, streams: int = 2, congestion: tcp.Congestion = tcp.KERNELS
    ) -> None:
        """streams: connections that this node first dials to each peer. congestion: their congestion controls."""
        self._congestion = congestion
        #: When the last chunk was sent or had come.
        self.chunk_at = float("-inf")
        self._hello = hello
        self._events = events
        self._streams = max(1, min(streams, MAX_STREAMS_PER_PEER))
        self._links: dict[str, _Links] = {}
        self._all: set[PeerStream] = set()
        self._accepted: set[PeerStream] = set()
        self._dialled: dict[PeerStream, NodeInfo] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._token = 0
        self._loop = asyncio.get_running_loop()

    async def listen(self, host: str, port: int) -> int:
        """Accepts connections; returns the port (0 asks for any). Raises `P2PSyncError` if the port is not free.

        host: see `open_listeners`.
        """
        listeners = await open_listeners(host, port)
        bound: int = listeners[0].getsockname()[1]
        for listener in listeners:
            # Accepted connections begin with the listener's congestion control.
            tcp.set_congestion(listener, self._congestion.near)
            self._servers.append(await self._loop.create_server(self._accept, sock=listener))
        return bound

    def watch(self) -> None:
        """Starts to ping streams and to close dead ones."""
        self._spawn(self._watch())

    async def close(self) -> None:
        """Closes all connections and listeners."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in list(self._all):
            stream.close("this node is stopping")
        for server in self._servers:
            server.close()
        for server in self._servers:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(server.wait_closed(), 2)

    def dial(self, info: NodeInfo) -> None:
        """Connects to a member in the background; calls `dial_failed` if none answers, or another node does."""
        for _ in range(self._streams):
            self._connect(info)

    def send(self, name: str, message: Control) -> None:
        """Sends a control message to a peer; drops it if the peer is gone."""
        links = self._links.get(name)
        if links is not None:
            stream_for(links.streams, message).send(message)

    def send_chunk(
        self, name: str, manifest: bytes, index: int, data: bytes | bytearray | memoryview, tag: int = 0
    ) -> bool:
        """Sends a chunk on the stream of the peer that will have sent it first; returns False if the peer is gone."""
        links = self._links.get(name)
        if links is None:
            return False
        self.chunk_at = self._loop.time()
        soonest(links.streams, len(data)).send_chunk(manifest, index, data, tag)
        return True

    def streams(self, name: str) -> Sequence[PeerStream]:
        """Returns the connections to a peer; none if it is not up."""
        links = self._links.get(name)
        return links.streams if links is not None else ()

    def all_streams(self) -> Iterator[PeerStream]:
        """Returns the connections to all peers that are up."""
        return itertools.chain.from_iterable(links.streams for links in self._links.values())

    def dialled(self, name: str) -> bool:
        """Returns whether this node opened the connections to a peer, and so is the one to open more."""
        links = self._links.get(name)
        return links is not None and links.info is not None

    def set_streams(self, name: str, count: int) -> None:
        """Opens connections to a dialled peer, or closes idle ones, towards this number.

        Call it again until `streams` has that many: busy connections stay open.
        """
        links = self._links.get(name)
        if links is None or links.info is None:
            return
        under_way = sum(info.node == name for info in self._dialled.values())
        for _ in range(links.count.to_dial(count, len(links.streams), under_way, self._loop.time())):
            self._connect(links.info)
        for stream in links.count.to_close(count, links.streams):
            _leave(links, stream)
            stream.retire()

    def hang_up(self, name: str, reason: str) -> None:
        """Closes every stream to a peer, which is down at once; its next connection is a new one."""
        links = self._links.get(name)
        for stream in [*links.streams, *links.leaving] if links else []:
            stream.close(reason)
            self._drop(stream)

    # ---- StreamOwner -----------------------------------------------------------------------------------------------

    def opened(self, stream: PeerStream) -> None:
        """Counts an established connection; closes it if there are too many."""
        self._all.add(stream)
        if stream not in self._dialled:
            self._accepted.add(stream)
            if len(self._accepted) > MAX_CONNECTIONS:
                stream.close("too many connections")

    def greeted(self, stream: PeerStream, hello: Hello) -> None:
        """Adds a connection to the peer that it names."""
        meant = self._dialled.pop(stream, None)
        if meant is not None and meant.node != hello.node:
            self._missed(meant.node)
            meant = None
        if hello.node == self._hello.node:
            stream.close("this node dialled itself")
            return
        links = self._links.get(hello.node)
        if links is not None and links.instance != hello.instance and not self._replace(links):
            stream.close("another instance of this node is connected and alive")
            return
        # For each stream, so that the exchange repeats announcements that were lost with an older one.
        if not self._events.up(hello.node, hello.region):
            stream.close("this peer is shut out")
            return
        links = self._links.setdefault(hello.node, _Links(hello.instance, hello.region))
        if len(links.streams) >= MAX_STREAMS_PER_PEER:
            stream.close("too many streams of one peer")
            return
        stream.peer = hello.node
        links.info = meant or links.info
        links.streams.append(stream)

    def received(self, stream: PeerStream, message: Message) -> None:
        """Passes a message on, if its stream belongs to an accepted peer."""
        if stream.peer is None:
            return
        if isinstance(message, Chunk):
            self.chunk_at = stream.heard_at
            self._events.message(stream.peer, message)
        elif isinstance(message, Pong):
            stream.ponged(message.token)
        elif isinstance(message, Ping):
            stream.send(Pong(message.token))
        else:
            self._events.message(stream.peer, message)

    def flushed(self, stream: PeerStream, size: int) -> None:
        """Forwards the count of flushed bytes."""
        links = self._links.get(stream.peer) if stream.peer is not None else None
        if links is None or stream.peer is None:
            return
        if stream in links.streams or stream in links.leaving:
            self._events.flushed(stream.peer, size)

    def retired(self, stream: PeerStream) -> None:
        """Sends no more on a stream that the peer retires; written bytes still arrive."""
        links = self._links.get(stream.peer) if stream.peer is not None else None
        if links is not None and len(links.streams) > 1 and stream in links.streams:
            _leave(links, stream)

    def closed(self, stream: PeerStream, reason: str) -> None:
        """Removes a closed stream; a peer without streams is down."""
        self._all.discard(stream)
        self._accepted.discard(stream)
        meant = self._dialled.pop(stream, None)
        if meant is not None:
            self._missed(meant.node)
        self._drop(stream)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _drop(self, stream: PeerStream) -> None:
        name = stream.peer
        links = self._links.get(name) if name is not None else None
        if links is not None and stream in links.leaving:
            links.leaving.remove(stream)
        if name is None or links is None or stream not in links.streams:
            return
        links.streams.remove(stream)
        if links.streams:
            # Messages were lost with that stream; the exchange repeats its announcements on the others.
            self._events.up(name, links.region)
        else:
            del self._links[name]
            self._events.down(name)

    def _missed(self, name: str) -> None:
        """Reports a failed dial unless another attempt to the peer is open."""
        if name not in self._links and all(info.node != name for info in self._dialled.values()):
            self._events.dial_failed(name)

    def _accept(self) -> PeerStream:
        return PeerStream(self, self._hello, self._congestion)

    def _replace(self, links: _Links) -> bool:
        """Replaces the streams of an old instance by a new one, if the old one is silent: names cannot be hijacked.

        Returns whether it did.
        """
        now = self._loop.time()
        if any(now - stream.heard_at < PING_EVERY * 2 for stream in links.streams):
            for stream in links.streams:
                self._ping(stream)
            return False
        for stream in list(links.streams):
            stream.close("a newer instance of this peer has come")
            self._drop(stream)
        return True

    def _connect(self, info: NodeInfo) -> None:
        """Opens one connection in the background."""
        stream = PeerStream(self, self._hello, self._congestion)
        self._dialled[stream] = info
        self._spawn(self._connecting(stream, info))

    async def _connecting(self, stream: PeerStream, info: NodeInfo) -> None:
        try:
            async with asyncio.timeout(DIAL_TIMEOUT):
                await dial(info.hosts, info.port, stream, self._congestion)
        except (OSError, TimeoutError, ValueError):  # ValueError: a malformed host name
            if self._dialled.pop(stream, None) is not None:
                self._missed(info.node)

    async def _watch(self) -> None:
        """Pings every stream every few seconds, and closes silent ones."""
        while True:
            await asyncio.sleep(PING_EVERY)
            now = self._loop.time()
            for stream in list(self._all):
                if now - stream.heard_at > DEAD_AFTER:
                    stream.close(f"nothing was heard for {DEAD_AFTER:.0f} s")
                elif stream.peer is not None:
                    self._ping(stream)
                if now - stream.heard_at > PING_EVERY:
                    stream.reset_rcvlowat()

    def _ping(self, stream: PeerStream) -> None:
        self._token += 1
        stream.ping(self._token)

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _leave(links: _Links, stream: PeerStream) -> None:
    links.streams.remove(stream)
    links.leaving.append(stream)
