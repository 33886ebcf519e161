"""The simulated shell of a node: carries out the actions of `NodeCore` in virtual time.

A node outlives its process: `crash` ends the process, `start` begins a new one with the same disk and engine. Replies
to a process that has ended are dropped, as with a real one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from p2psync.errors import P2PSyncError, TrustError
from p2psync.membership.client import CallJoin, CallPlan, CallRenew, CallView, HubCall
from p2psync.membership.records import NodeInfo, View
from p2psync.protocol.manifest import Manifest, SignedManifest, open_expected
from p2psync.protocol.messages import MAGIC, PROTOCOL, SHORT_ID_BYTES, Chunk, Hello, Message
from p2psync.protocol.versions import Position
from p2psync.sim.clock import VirtualClock
from p2psync.sim.disk import SimStore
from p2psync.sim.engine import MemoryEngine
from p2psync.sim.engine_driver import SimEngineDriver
from p2psync.sim.hub import SimHub
from p2psync.sim.links import LinkCallbacks, PeerLinks
from p2psync.sim.network import SimHost, SimNetwork
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.dialer import Dial
from p2psync.swarm.exchange.actions import Ban, Recheck, Save, Send, SendChunk, VerifyManifest
from p2psync.swarm.node import Hangup, HubResult, NodeAction, NodeCore
from p2psync.swarm.synchronizer.actions import (
    AbandonStage,
    Adopt,
    CommitStage,
    Fetch,
    GetManifest,
    OpenStage,
    Retire,
    StageChunk,
)
from p2psync.swarm.synchronizer.follower import Follower


class NodeObserver(Protocol):
    """Observes nodes, and checks them against the invariants."""

    def started(self, node: SimNode) -> None:
        """A process started."""

    def ended(self, node: SimNode) -> None:
        """A process is about to end."""

    def committed(self, node: SimNode, position: Position) -> None:
        """Other bits became live, or the same under another version."""

    def banned(self, node: SimNode, ban: Ban) -> None:
        """A peer was banned."""

    def received(self, node: SimNode, peer: str, chunk: Chunk, needed: bool) -> None:
        """The core received a chunk; needed: whether it was waiting for it."""


class SimWorld:
    """The objects that all nodes of a simulation share."""

    def __init__(
        self, clock: VirtualClock, network: SimNetwork, hub: SimHub, observer: NodeObserver, trusted: bytes
    ) -> None:
        self.clock = clock
        self.network = network
        self.hub = hub
        self.observer = observer
        self.trusted = frozenset({trusted})


class SimNode:
    """A trainer (no engine) or an actor."""

    def __init__(
        self,
        world: SimWorld,
        host: SimHost,
        info: NodeInfo,
        config: NodeConfig,
        engine: MemoryEngine | None,
    ) -> None:
        self.world = world
        self.host = host
        self.info = info
        self.config = config
        self.engine = engine
        self.store = SimStore()
        #: Seconds by which this node's clock is ahead of the simulation's; never lowered while a process runs.
        self.skew = 0.0
        #: Number of the engine's next commits that fail.
        self.commit_failures = 0
        self.processes = 0
        #: Versions that the hub has announced to this node, and their bases: (version, digest).
        self.announced_versions: set[tuple[int, bytes]] = set()
        self.core: NodeCore
        self.links: PeerLinks
        self._armed = float("inf")
        self._draining = False

    # ---- life ------------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.host.alive and self.processes > 0

    @property
    def now(self) -> float:
        """This node's monotonic clock."""
        return self.world.clock.now + self.skew

    def start(self) -> None:
        """Starts a process from the last one's disk and engine."""
        self.processes += 1
        self.host.alive = True
        self._armed = float("inf")
        self._signed: dict[bytes, SignedManifest] = {}
        self.store.reopen()
        follower = None
        if self.engine is not None:
            follower = Follower(self.engine.position, self.engine.local_digest(), switch_bytes=0)
        self.core = NodeCore(self.info, self.config, self.world.clock.rng, follower)
        self.driver: SimEngineDriver | None = None
        if self.engine is not None and follower is not None:
            self.driver = SimEngineDriver(self, self.engine, follower)
        hello = Hello(MAGIC, PROTOCOL, self.info.node, f"process-{self.processes}", self.info.region)
        events = LinkCallbacks(self._peer_up, self._peer_down, self._message, self._dial_failed)
        self.links = PeerLinks(self.world.network, self.host, hello, events)
        for id, pack in self.store.packs.items():
            self._signed[id] = pack.signed
            self.core.offer(id, pack.manifest, pack.held(), self.now)
        self.world.clock.note("start", self.info.node, self.processes)
        self.world.observer.started(self)
        self.drain()

    def crash(self) -> None:
        """Ends the process silently."""
        self.world.observer.ended(self)
        self.world.clock.note("crash", self.info.node)
        self.links.close_all()
        self.world.network.crash(self.host)
        self.world.hub.crashed(self.host)

    # ---- driving the core ------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Carries out the core's actions, and schedules its next wake-up."""
        if self._draining:
            return
        self._draining = True
        try:
            self.core.poll(self.now)
            while actions := self.core.actions():
                for action in actions:
                    self._carry_out(action)
        finally:
            self._draining = False
        wake = self.core.next_wake(self.now)
        if wake < self._armed:
            self._armed = wake
            self.world.clock.at(wake - self.skew, self._wake_up, self.processes, wake)

    def _wake_up(self, process: int, wake: float) -> None:
        if process == self.processes and self.host.alive and wake == self._armed:
            self._armed = float("inf")
            self.drain()

    def later(self, delay: float, call: Callable[..., None], *arguments: object) -> None:
        """Calls within this process after a delay, then drains."""
        self.world.clock.after(delay, self._in_process, self.processes, call, arguments)

    def _in_process(self, process: int, call: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if process == self.processes and self.host.alive:
            call(*arguments)
            self.drain()

    def _carry_out(self, action: NodeAction) -> None:
        match action:
            case Send():
                self.links.send(action.peer, action.message)
            case SendChunk():
                self.send_chunk(action)
            case Save():
                self._save(action)
            case CallJoin() | CallRenew() | CallView() | CallPlan():
                self._call_hub(action)
            case Dial():
                self.links.dial(action.info.node)
            case Hangup():
                self.links.hang_up(action.peer)
            case Ban():
                self.world.observer.banned(self, action)
            case Recheck():
                self._recheck(action)
            case VerifyManifest():
                self._verify_manifest(action)
            case _:
                self._synchronize(action)

    def _synchronize(self, action: NodeAction) -> None:
        """Carries out an action of the follower."""
        match action:
            case GetManifest():
                self._get_manifest(action)
            case Fetch():
                self._fetch(action)
            case Adopt() | OpenStage() | StageChunk() | CommitStage() if self.driver is not None:
                self.driver.run(action)
            case AbandonStage() if self.driver is not None:
                self.driver.abandon()
            case Retire():
                self.store.packs.pop(action.id, None)
                self._signed.pop(action.id, None)

    # ---- peers -----------------------------------------------------------------------------------------------------

    def _peer_up(self, name: str, region: str) -> bool:
        accepted = self.core.peer_up(name, region, self.now)
        self.later(0.0, _nothing)
        return accepted

    def _peer_down(self, name: str) -> None:
        self.core.peer_down(name, self.now)
        self.drain()

    def _dial_failed(self, name: str) -> None:
        self.core.dial_failed(name, self.now)
        self.drain()

    def _message(self, name: str, message: Message) -> None:
        if isinstance(message, Chunk):
            self.world.clock.note("chunk", self.info.node, name, message.index)
            needed = self.core.swarm.needs(message.manifest, message.index)
            self.core.receive(name, message, self.now)
            self.world.observer.received(self, name, message, needed)
        else:
            self.core.receive(name, message, self.now)
        self.drain()

    # ---- chunks ----------------------------------------------------------------------------------------------------

    def send_chunk(self, action: SendChunk) -> None:
        """Reads a chunk and sends it."""
        pack = self.store.packs.get(action.id)
        data = pack.read(action.index) if pack is not None else None
        if pack is None or data is None:
            self.lost(action.id, action.index)
            self.core.swarm.flushed(action.peer, action.size, self.now)
            return
        self.give_chunk(action, data)

    def give_chunk(self, action: SendChunk, data: bytes) -> None:
        """Sends these bytes as the chunk."""
        size, process = action.size, self.processes

        def left() -> None:
            if process == self.processes and self.host.alive:
                self.core.swarm.flushed(action.peer, size, self.now)
                self.drain()

        self.links.send_chunk(action.peer, action.id[:SHORT_ID_BYTES], action.index, data, left, action.tag)

    def _recheck(self, action: Recheck) -> None:
        pack = self.store.packs.get(action.id)
        if pack is not None:
            pack.checked.clear()
            if pack.read(action.index) is None:
                self.lost(action.id, action.index)

    def lost(self, id: bytes, index: int) -> None:
        """A chunk that was held is damaged."""
        self.core.swarm.lost(id, index, self.now)

    def _save(self, action: Save) -> None:
        pack = self.store.packs.get(action.id)
        if pack is None or self.world.clock.now < self.store.full_until:
            self.core.store_failed(action.id, "the disk is full", self.now)
            return
        pack.write(action.index, bytes(action.data))
        self.core.saved(action)

    def _fetch(self, action: Fetch) -> None:
        signed = self._signed.get(action.step.id)
        if self.world.clock.now < self.store.full_until or signed is None:
            self.core.store_failed(action.step.id, "the disk is full", self.now)
            return
        pack = self.store.add(action.step.manifest, signed)
        self.core.fetch(action, pack.held(), self.now)

    # ---- hub -------------------------------------------------------------------------------------------------------

    def _call_hub(self, call: HubCall) -> None:
        process = self.processes

        def answer(result: HubResult) -> None:
            if process == self.processes:
                if isinstance(result, View):
                    self._note(result)
                view = self.core.hub_answered(call, result, self.now)
                if view is not None:
                    self.on_view(view)
                self.drain()

        hub, now = self.world.hub, self.world.clock
        if isinstance(call, CallView):
            hub.view(self.host, call.instance, call.revision, answer, call.lease, whole=call.whole)
        elif isinstance(call, CallJoin):
            request, lease = call.request, hub.secret()
            hub.request(self.host, lambda core: core.join(request, lease=lease, now=now.now), answer)
        elif isinstance(call, CallPlan):
            known = call.lease
            hub.request(self.host, lambda core: core.node_plan(known, now.now), answer)
        else:
            renewal = call.request
            hub.request(self.host, lambda core: core.renew(renewal, now=now.now), answer)

    def _note(self, view: View) -> None:
        for a in view.lineage:
            self.announced_versions.add((a.version, bytes.fromhex(a.digest)))
            if a.base is not None:
                self.announced_versions.add((a.base, bytes.fromhex(a.base_digest)))

    def on_view(self, view: View) -> None:
        """The hub's view changed."""

    def _get_manifest(self, action: GetManifest) -> None:
        def answer(data: bytes | P2PSyncError | None) -> None:
            self.later(0.0, self._got_manifest, action, data)

        if action.inline is not None:
            answer(action.inline)
        else:
            self.world.hub.request(self.host, lambda core: core.manifest(action.id), answer)

    def _got_manifest(self, action: GetManifest, data: bytes | P2PSyncError | None) -> None:
        assert self.core.follower is not None
        try:
            manifest, signed = self._open(action.id, data)
        except P2PSyncError as error:
            self.core.follower.no_manifest(action.id, str(error), self.now)
            return
        self._signed[signed.id] = signed
        self.core.follower.manifest(action.id, manifest, self.now)

    def _verify_manifest(self, verify: VerifyManifest) -> None:
        try:
            manifest, signed = self._open(verify.id.hex(), verify.signed)
        except P2PSyncError:
            self.core.manifest_rejected(verify, self.now)
            return
        if self.core.manifest_verified(verify, manifest, self.now):
            self._signed[signed.id] = signed

    def _open(self, id: str, data: bytes | P2PSyncError | None) -> tuple[Manifest, SignedManifest]:
        if isinstance(data, P2PSyncError):
            raise data
        if data is None:
            raise TrustError("the hub does not hold this manifest")
        return open_expected(data, id, self.world.trusted)


def _nothing() -> None:
    """Does nothing; scheduled so that the node drains."""
