"""The connections of a simulated node: real frames as bytes, handshakes, several connections per peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from p2psync.errors import FormatError
from p2psync.protocol.frames import FrameReader
from p2psync.protocol.messages import Control, Hello, Message, encode_chunk_header, encode_control
from p2psync.sim.network import Endpoint, SimHost, SimNetwork


@dataclass
class LinkCallbacks:
    """The node's callbacks. up returns whether the peer is accepted."""

    up: Callable[[str, str], bool]
    down: Callable[[str], None]
    message: Callable[[str, Message], None]
    dial_failed: Callable[[str], None]


@dataclass
class _PeerConnections:
    instance: str
    region: str
    ends: list[Endpoint] = field(default_factory=list)


class PeerLinks:
    """All connections of one process. After `close_all` no callback is called."""

    def __init__(self, network: SimNetwork, host: SimHost, hello: Hello, events: LinkCallbacks) -> None:
        self._network = network
        self._host = host
        self._hello = encode_control(hello)
        self._name = hello.node
        self._events = events
        self._links: dict[str, _PeerConnections] = {}
        self._over = False
        host.accept = lambda end: self._begin(end, None)

    def dial(self, name: str) -> None:
        """Connect to a member."""

        def failed() -> None:
            if not self._over and name not in self._links:
                self._events.dial_failed(name)

        self._network.dial(self._host, name, lambda end: self._begin(end, name), failed)

    def send(self, name: str, message: Control) -> None:
        """Sends a control message; dropped if the peer is gone."""
        links = self._links.get(name)
        if links is not None:
            links.ends[0].send(encode_control(message))

    def send_chunk(
        self, name: str, short: bytes, index: int, data: bytes, left: Callable[[], None], tag: int = 0
    ) -> None:
        """Sends a chunk; calls `left` once it has left the uplink."""
        links = self._links.get(name)
        if links is None:
            left()
        else:
            links.ends[-1].send(encode_chunk_header(short, index, len(data), tag) + data, left)

    def send_raw(self, name: str, data: bytes) -> None:
        """Sends bytes that are not a frame, for liars."""
        links = self._links.get(name)
        if links is not None:
            links.ends[0].send(data)

    def hang_up(self, name: str) -> None:
        """Closes every connection to a peer."""
        links = self._links.pop(name, None)
        if links is not None:
            for end in links.ends:
                end.close()
            self._events.down(name)

    def close_all(self) -> None:
        """Ends the process."""
        self._over = True
        self._links.clear()

    def connected(self, name: str) -> bool:
        """Returns whether a connection to this peer has completed its handshake."""
        return name in self._links

    def _begin(self, end: Endpoint, dialled: str | None) -> None:
        if self._over:
            end.close()
            return
        reader = FrameReader()
        peer: list[str] = []

        def data(received: bytes) -> None:
            if self._over:
                return
            try:
                messages = _feed(self._network, reader, received)
            except FormatError:
                closed(by_us=True)
                return
            for message in messages:
                if not end.open or self._over:
                    return
                if isinstance(message, Hello):
                    self._greeted(end, message, dialled, peer)
                elif peer:
                    self._events.message(peer[0], message)

        def closed(*, by_us: bool = False) -> None:
            if by_us:
                end.close()
            if self._over:
                return
            if peer:
                self._drop(peer[0], end)
            elif dialled is not None and dialled not in self._links:
                self._events.dial_failed(dialled)

        end.on_data, end.on_close = data, closed
        end.send(self._hello)

    def _greeted(self, end: Endpoint, hello: Hello, dialled: str | None, peer: list[str]) -> None:
        name = hello.node
        links = self._links.get(name)
        if links is not None and links.instance != hello.instance:
            self.hang_up(name)
            links = None
        if (dialled is not None and dialled != name) or not self._events.up(name, hello.region):
            end.close()
            if dialled is not None and dialled != name:
                self._events.dial_failed(dialled)
            return
        peer.append(name)
        self._links.setdefault(name, _PeerConnections(hello.instance, hello.region)).ends.append(end)

    def _drop(self, name: str, end: Endpoint) -> None:
        links = self._links.get(name)
        if links is None or end not in links.ends:
            return
        links.ends.remove(end)
        if not links.ends:
            del self._links[name]
            self._events.down(name)
        else:
            self._events.up(name, links.region)


def _feed(network: SimNetwork, reader: FrameReader, data: bytes) -> list[Message]:
    """Feeds received bytes to the reader, sometimes in two pieces, as from a stream."""
    if network.clock.rng.random() < 0.1:
        middle = network.clock.rng.randrange(len(data))
        return reader.feed(data[:middle]) + reader.feed(data[middle:])
    return reader.feed(data)
