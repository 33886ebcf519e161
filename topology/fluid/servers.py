"""A flow-level network: uplinks, region links and downlinks as FIFO servers, and connections over them."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from p2psync.protocol.messages import Chunk, Control, Message
from p2psync.sim.clock import VirtualClock
from p2psync.topology.fluid.payload import SCALE
from p2psync.topology.network import Network

#: Bytes on the wire per byte of a chunk, for TCP/IP headers and frames.
HEADER_FACTOR = 1.04
#: One-way delay of the hosts themselves (seconds).
_HOST_DELAY_SECONDS = 0.0002
_BYTES_PER_MBIT = 1e6 / 8 / SCALE


class PipeEnd(Protocol):
    """A node, as the network sees it."""

    name: str
    alive: bool

    def flushed(self, peer: str, size: int) -> None:
        """`size` bytes of chunks for this peer have left the uplink."""

    def receive(self, sender: str, message: Message) -> None:
        """A message arrived."""


class LinkServer:
    """A link as a FIFO server. rate: bytes a second. free: when everything accepted so far is through. nbytes: bytes so
    far."""

    __slots__ = ("free", "nbytes", "rate")

    def __init__(self, mbit: float) -> None:
        self.rate = mbit * _BYTES_PER_MBIT
        self.free = 0.0
        self.nbytes = 0.0

    def take(self, size: float, now: float) -> float:
        """Accepts this many bytes; returns when they are through."""
        self.nbytes += size
        self.free = (self.free if self.free > now else now) + size / self.rate
        return self.free


class Pipe:
    """One direction of a connection between two nodes.

    window: bytes that may be in flight, as TCP bounds them. in_flight: bytes sent and not yet acknowledged. acks: (time
    in seconds at which the sender learns of it, bytes) of each chunk that arrived. waiting: chunks that the window does
    not admit yet. delay: seconds one way.
    """

    __slots__ = (
        "acks",
        "delay",
        "down",
        "in_flight",
        "link",
        "retrying",
        "source",
        "target",
        "up",
        "waiting",
        "window",
    )

    def __init__(
        self,
        source: PipeEnd,
        target: PipeEnd,
        up: LinkServer,
        link: LinkServer | None,
        down: LinkServer,
        delay: float,
        window: float,
    ) -> None:
        self.source, self.target = source, target
        self.up, self.link, self.down = up, link, down
        self.delay, self.window = delay, window
        self.in_flight = 0
        self.acks: deque[tuple[float, int]] = deque()
        self.waiting: deque[Chunk] = deque()
        self.retrying = False

    @property
    def open(self) -> bool:
        """Whether both ends are alive."""
        return self.source.alive and self.target.alive


class FluidNetwork:
    """The servers of a network, and the chunks in flight.

    Chunks queue in order; control messages, a few bytes each, take only the delay.
    """

    def __init__(self, network: Network, clock: VirtualClock, buffer: float) -> None:
        """buffer: seconds that a connection's chunks may queue at its slowest link; at least one round trip."""
        self._network = network
        self._clock = clock
        self._buffer = buffer
        self.up = [LinkServer(float(rate)) for rate in network.up]
        self.down = [LinkServer(float(rate)) for rate in network.down]
        self.links: dict[tuple[int, int], LinkServer] = {}
        self._delays: list[list[float]] = (network.delay + _HOST_DELAY_SECONDS).tolist()
        self._regions: list[int] = network.region.tolist()
        self.messages = 0

    def delay(self, i: int, j: int) -> float:
        """Returns the seconds from node i to node j."""
        return self._delays[self._regions[i]][self._regions[j]]

    def pipe(self, source: PipeEnd, i: int, target: PipeEnd, j: int) -> Pipe:
        """Returns a connection from node i to node j, in this direction."""
        link = self._link(self._regions[i], self._regions[j])
        up, down, delay = self.up[i], self.down[j], self.delay(i, j)
        rate = min(up.rate, down.rate, link.rate if link is not None else up.rate)
        window = rate * (2 * delay + max(2 * delay, self._buffer))
        return Pipe(source, target, up, link, down, delay, window)

    def narrow(self, a: int, b: int, left: float) -> None:
        """The link from one region to another keeps this share of its rate; chunks in flight are not affected."""
        link = self._link(a, b)
        if link is not None:
            link.rate *= left

    def _link(self, a: int, b: int) -> LinkServer | None:
        if a == b:
            return None
        link = self.links.get((a, b))
        if link is None:
            rate = float(self._network.rate[a, b]) * (1 - float(self._network.loss[a, b]))
            link = self.links[a, b] = LinkServer(rate)
        return link

    # ---- control ---------------------------------------------------------------------------------------------------

    def send_control(self, delay: float, batch: list[tuple[Pipe, Control]]) -> None:
        """Sends control messages over pipes of equal delay."""
        self.messages += len(batch)
        self._clock.after(delay, self._deliver_control, batch)

    def _deliver_control(self, batch: list[tuple[Pipe, Control]]) -> None:
        for pipe, message in batch:
            if pipe.open:
                pipe.target.receive(pipe.source.name, message)

    # ---- chunks ----------------------------------------------------------------------------------------------------

    def send(self, pipe: Pipe, chunk: Chunk) -> None:
        """Sends a chunk as soon as the connection's window admits it. The source learns when its uplink has
        passed it."""
        if pipe.waiting or not self._admits(pipe):
            pipe.waiting.append(chunk)
            self._retry_later(pipe)
        else:
            self._launch(pipe, chunk)

    def _admits(self, pipe: Pipe) -> bool:
        acks, now = pipe.acks, self._clock.now
        while acks and acks[0][0] <= now:
            pipe.in_flight -= acks.popleft()[1]
        return pipe.in_flight < pipe.window

    def _retry_later(self, pipe: Pipe) -> None:
        if pipe.waiting and pipe.acks and not pipe.retrying:
            pipe.retrying = True
            self._clock.at(pipe.acks[0][0], self._retry, pipe)

    def _retry(self, pipe: Pipe) -> None:
        pipe.retrying = False
        while pipe.waiting and self._admits(pipe):
            self._launch(pipe, pipe.waiting.popleft())
        self._retry_later(pipe)

    def _launch(self, pipe: Pipe, chunk: Chunk) -> None:
        pipe.in_flight += len(chunk.data)
        self._clock.at(pipe.up.take(len(chunk.data) * HEADER_FACTOR, self._clock.now), self._left, pipe, chunk)

    def _left(self, pipe: Pipe, chunk: Chunk) -> None:
        if not pipe.source.alive:
            return
        pipe.source.flushed(pipe.target.name, len(chunk.data))
        when = self._clock.now
        if pipe.link is not None:
            when = pipe.link.take(len(chunk.data) * HEADER_FACTOR, when)
        self._clock.at(when + pipe.delay, self._enter, pipe, chunk)

    def _enter(self, pipe: Pipe, chunk: Chunk) -> None:
        if pipe.target.alive:
            self._clock.at(pipe.down.take(len(chunk.data) * HEADER_FACTOR, self._clock.now), self._arrive, pipe, chunk)

    def _arrive(self, pipe: Pipe, chunk: Chunk) -> None:
        pipe.acks.append((self._clock.now + pipe.delay, len(chunk.data)))
        self._retry_later(pipe)
        if pipe.open:
            pipe.target.receive(pipe.source.name, chunk)
