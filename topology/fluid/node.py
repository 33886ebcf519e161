"""A node of the fluid network: the swarm's core, its connections, and the chunks that it holds."""

from __future__ import annotations

from typing import Protocol

from p2psync.protocol.messages import SHORT_ID_BYTES, Chunk, Control, Have, Message
from p2psync.protocol.plan import NodePlan
from p2psync.sim.clock import VirtualClock, VirtualTimer
from p2psync.swarm.exchange.actions import Ban, Complete, Save, Send, SendChunk
from p2psync.swarm.exchange.exchange import Exchange
from p2psync.topology.fluid.servers import FluidNetwork, Pipe
from p2psync.topology.simulated_payload import SimulatedPayload

#: Seconds between two reads of queued HAVE messages; any other message makes the node read them first. Handling each
#: HAVE on its own would take half of a simulation's time.
HAVE_READ_SECONDS = 0.02


class NodeListener(Protocol):
    """Receives a node's events."""

    def saved(self, node: FluidNode, id: bytes, size: int) -> None:
        """A node saved another chunk."""

    def completed(self, node: FluidNode, id: bytes) -> None:
        """A node holds all chunks of a manifest."""

    def banned(self, node: FluidNode, peer: str) -> None:
        """A node bans a peer and closes the connection."""


class FluidNode:
    """One node, from joining to leaving. index: in the network."""

    __slots__ = (
        "_clock", "_listener", "_net", "_pending_haves", "_timer", "alive", "index", "joined", "name", "payloads",
        "pipes", "plan", "region", "silent", "swarm",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        index: int,
        region: int,
        swarm: Exchange,
        clock: VirtualClock,
        net: FluidNetwork,
        listener: NodeListener,
    ) -> None:
        self.name, self.index, self.region, self.swarm = name, index, region, swarm
        self._clock, self._net, self._listener = clock, net, listener
        self._timer = VirtualTimer(clock, self._poll)
        # Received HAVE messages that the core has not read, each with its sender.
        self._pending_haves: list[tuple[str, Have]] = []
        self.joined = clock.now
        self.alive = True
        #: Whether the node receives everything and sends no chunk.
        self.silent = False
        self.pipes: dict[str, Pipe] = {}
        self.plan: NodePlan | None = None
        self.payloads: dict[bytes, SimulatedPayload] = {}

    # ---- inputs ----------------------------------------------------------------------------------------

    def begin(self, payload: SimulatedPayload, *, holds: bool = False) -> None:
        """Starts exchanging a payload: fetches it, or holds all of it."""
        self.payloads[payload.id[:SHORT_ID_BYTES]] = payload
        held, wanted = (payload.all_chunks, payload.no_chunks) if holds else (payload.no_chunks, payload.all_chunks)
        self.swarm.begin(payload.id, payload.manifest, held, wanted, self._clock.now)
        self.drain()

    def end(self, payload: SimulatedPayload) -> None:
        """Stops exchanging a payload."""
        if self.payloads.pop(payload.id[:SHORT_ID_BYTES], None) is not None:
            self.swarm.end(payload.id)
            self.drain()

    def follow(self, plan: NodePlan) -> None:
        """Sets the plan."""
        self.plan = plan
        self.swarm.follow(plan, self._clock.now)
        self.drain()

    def peer_up(self, pipe: Pipe, *, near: bool, publishes: bool) -> None:
        """A connection is open; `pipe` leads to the peer."""
        self.pipes[pipe.target.name] = pipe
        self.swarm.peer_up(pipe.target.name, near, self._clock.now, publishes=publishes)
        self.drain()

    def peer_down(self, pipe: Pipe) -> None:
        """The peer at the end of this pipe is gone."""
        if self.alive and self.pipes.get(pipe.target.name) is pipe:
            del self.pipes[pipe.target.name]
            self.swarm.peer_down(pipe.target.name, self._clock.now)
            self.drain()

    def flushed(self, peer: str, size: int) -> None:
        """See `PipeEnd`."""
        self.swarm.flushed(peer, size, self._clock.now)
        self.drain()

    def receive(self, sender: str, message: Message) -> None:
        """See `PipeEnd`."""
        if type(message) is Have:
            if not self._pending_haves:
                self._clock.at((self._clock.now // HAVE_READ_SECONDS + 1) * HAVE_READ_SECONDS, self._read)
            self._pending_haves.append((sender, message))
            return
        self._read_haves()
        self.swarm.receive(sender, message, self._clock.now)
        self.drain()

    def _read(self) -> None:
        if self.alive and self._pending_haves:
            self._read_haves()
            self.drain()

    def _read_haves(self) -> None:
        haves, self._pending_haves = self._pending_haves, []
        for sender, message in haves:
            self.swarm.receive(sender, message, self._clock.now)

    # ---- outputs ----------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Carries out the core's actions, and schedules its next wake-up."""
        swarm = self.swarm
        while actions := swarm.actions():
            outgoing: dict[float, list[tuple[Pipe, Control]]] = {}
            for action in actions:
                if type(action) is Send:
                    pipe = self.pipes.get(action.peer)
                    if pipe is not None:
                        outgoing.setdefault(pipe.delay, []).append((pipe, action.message))
                elif type(action) is SendChunk:
                    self._send(action)
                elif type(action) is Save:
                    self._listener.saved(self, action.id, len(action.data))
                elif type(action) is Complete:
                    self._listener.completed(self, action.id)
                elif type(action) is Ban:
                    self._listener.banned(self, action.peer)
            for delay, batch in outgoing.items():
                self._net.send_control(delay, batch)
        self._timer.set(swarm.next_wake())

    def _poll(self) -> None:
        if self.alive:
            self.swarm.poll(self._clock.now)
            self.drain()

    def _send(self, action: SendChunk) -> None:
        pipe = self.pipes.get(action.peer)
        payload = self.payloads.get(action.id[:SHORT_ID_BYTES])
        if pipe is None or payload is None or self.silent:
            return
        chunk = Chunk(action.id[:SHORT_ID_BYTES], action.index, payload.chunks[action.index], action.tag)
        self._net.send(pipe, chunk)
