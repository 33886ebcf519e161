"""The asyncio shell of a node: carries out what `NodeCore` decides, over sockets, the hub, the store and an engine.

One loop, one task per call to the hub or to the engine (`EngineDriver`). `CoreLoop` drains the core's actions after
anything has happened. What can be expected to fail is answered to the core; anything else, and what a restart alone can
mend, ends the node: `until_broken` raises it, and whoever runs the node stops.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import msgspec

from p2psync.engines.base import Engine
from p2psync.errors import P2PSyncError
from p2psync.membership.client import CallJoin, CallPlan, CallRenew, CallView
from p2psync.membership.records import HUB_HOST, NodeInfo, NodeStatistics, View
from p2psync.net import tcp
from p2psync.net.codec_compiler import CodecCompiler
from p2psync.net.core_loop import CoreLoop
from p2psync.net.diagnostics import Diagnostics
from p2psync.net.engine_driver import EngineDriver
from p2psync.net.hub_calls import HubCalls
from p2psync.net.hub_client import HubClient
from p2psync.net.node_context import NodeContext
from p2psync.net.node_manifests import NodeManifests
from p2psync.net.node_tasks import NodeTasks
from p2psync.net.peers import ConnectionManager, PeerEvents
from p2psync.net.stored_chunks import StoredChunks, held_chunks
from p2psync.observe.events import Event, PeerBanned, PeerDown, PeerUp, RunChanged, RunRefused, Trouble
from p2psync.protocol.messages import MAGIC, PROTOCOL, Hello, Message
from p2psync.protocol.versions import Position
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.swarm.control.config import INITIAL_STREAMS, MeasureConfig
from p2psync.swarm.dialer import Dial
from p2psync.swarm.exchange.actions import Ban, Complete, Recheck, Save, Send, SendChunk, VerifyManifest
from p2psync.swarm.node import Hangup, NodeAction, NodeCore
from p2psync.swarm.synchronizer.actions import (
    AbandonStage,
    Adopt,
    ChangedRun,
    CommitStage,
    Fetch,
    GetManifest,
    OpenStage,
    RefuseRun,
    Retire,
    StageChunk,
)
from p2psync.warmup import WIDTHS

#: Seconds that the hub has to take note of a node that leaves. A longer wait delays the end of the process.
LEAVE_SECONDS = 2.0


class NodeRunner:
    """Runs one `NodeCore`. `engine` is given at an actor, None at a trainer."""

    def __init__(
        self,
        core: NodeCore,
        hub: HubClient,
        store: Store,
        *,
        trusted: frozenset[bytes],
        instance: str,
        engine: Engine | None = None,
        streams: int = 0,
        congestion: tcp.Congestion = tcp.KERNELS,
        measure: MeasureConfig | None = None,
        widths: Collection[int] = WIDTHS,
        on_event: Callable[[Event], None] = lambda event: None,
        on_view: Callable[[View], None] = lambda view: None,
        on_reported: Callable[[], None] = lambda: None,
        on_lost: Callable[[bytes], None] = lambda id: None,
    ) -> None:
        """widths: of the units that are coded here (bytes): the codec is compiled for them before the first version
        comes; a relay codes none. on_lost: called with the id of a manifest of which a chunk that was held turned out
        to be damaged."""
        self.core = core
        self.store = store
        self._hub = hub
        self._emit = on_event
        self._loop = asyncio.get_running_loop()
        self._tasks = NodeTasks()
        self._diagnostics = Diagnostics(on_event, self._loop.time)
        self._core_loop = CoreLoop(core, self._carry_out, lambda: self._chunks.drained(), self._tasks.break_node)
        self._compiler = CodecCompiler(widths, on_event) if widths else None
        self._compiled: asyncio.Task[None] | None = None
        hello = Hello(MAGIC, PROTOCOL, core.info.node, instance, core.info.region)
        events = PeerEvents(self._peer_up, self._peer_down, self._message, self._flushed, self._dial_failed)
        self._connections = ConnectionManager(hello, events, streams or INITIAL_STREAMS, congestion)
        self.monitor = core.traffic.measure(
            self._connections,
            random.Random(os.urandom(16)),
            measure or MeasureConfig(),
            self._loop,
            streams=streams,
            congestion=congestion.far,
            on_measures=self._measured,
        )
        node = NodeContext(core, hub, store, self._tasks, self._diagnostics, self._loop.time, self._core_loop.wake)
        self._chunks = StoredChunks(node, self._connections, on_lost)
        self._manifests = NodeManifests(node, trusted)
        self._hub_calls = HubCalls(node, on_reported, on_view)
        self.driver: EngineDriver | None = None
        if engine is not None:
            self.driver = EngineDriver(engine, core, store, on_event=on_event, on_trouble=self.trouble)

    # ---- life ------------------------------------------------------------------------------------------------------

    async def listen(self, host: str, port: int | None) -> None:
        """Takes the port at which peers connect: 0 takes any. Raises `P2PSyncError`.

        None: listens nowhere; this node only dials out, and serves over what it dialled.
        """
        self.core.set_port(await self._connections.listen(host, port) if port is not None else 0)

    def start(self) -> None:
        """Offers what the store holds, and joins the hub. `listen` comes first."""
        self._connections.watch()
        self.monitor.start()
        if self._compiler is not None:
            in_thread = self.driver.in_worker if self.driver is not None else asyncio.to_thread
            self._compiled = self._tasks.spawn(self._compiler.run(in_thread))
        if self.driver is not None:
            self._tasks.spawn(self.driver.tell_progress())
        self._tasks.spawn(self._chunks.recheck_packs())
        for pack in self.store.packs():
            self._manifests.offer_stored(pack)
        self._core_loop.wake()

    async def until_broken(self) -> None:
        """Never returns; raises an error after which this node cannot go on."""
        await self._tasks.until_broken()

    async def unless_broken(self, coroutine: Coroutine[object, object, None]) -> None:
        """Waits for something, or raises what this node cannot go on after."""
        await self._tasks.unless_broken(coroutine)

    async def warmed(self) -> None:
        """Waits until the codec is compiled."""
        if self._compiled is not None:
            await asyncio.wait({self._compiled})

    async def stop(self) -> None:
        """Leaves the hub, closes the peers, and waits for the disk and the engine to finish what they are doing."""
        self._core_loop.stop()
        if self._compiler is not None:
            self._compiler.stop()
        await self._tasks.cancel()
        lease = self.core.membership.lease
        if lease is not None:
            try:
                await asyncio.wait_for(self._hub.leave(lease), LEAVE_SECONDS)
            except (P2PSyncError, TimeoutError) as error:
                self._emit(Trouble(f"could not take leave of the hub: {error}"))
        self.monitor.stop()
        await self._connections.close()
        if self.driver is not None:
            await self.driver.stop()
        self._tasks.close()

    def offer(self, pack: Pack) -> None:
        """Serves a pack that was just made here."""
        signed = pack.signed
        self.core.offer(signed.id, pack.manifest, held_chunks(pack), self._loop.time(), signed.to_bytes())
        self._core_loop.wake()

    def withdraw(self, id: bytes) -> None:
        """Stops serving a manifest (32 bytes)."""
        self.core.swarm.end(id)
        self._core_loop.wake()

    def running(self, position: Position) -> None:
        """Tells the hub which version this node has (a trainer: the one it published)."""
        digest, now = position.digest.hex(), self._loop.time()
        self.core.membership.running(position.version, digest, now, position.run, position.epoch)
        self._core_loop.wake()

    def mark_corrupt(self, message: str, position: Position | None) -> None:
        """Reports that the live bits are not those that were committed.

        position: the version that is live instead, None: none. The follower syncs the engine from there."""
        assert self.core.follower is not None
        self.trouble(message)
        self.core.follower.mark_corrupt(message, position, self._loop.time())
        self._core_loop.wake()

    def start_task(self, coroutine: Coroutine[object, object, None]) -> None:
        """Runs a coroutine until this node stops. An exception of it ends the node."""
        self._tasks.spawn(coroutine)

    def trouble(self, message: str, about: str = "") -> None:
        """Emits a `Trouble`, but not the same one all the time. about: identifies it if its message varies."""
        self._diagnostics.trouble(message, about)

    @property
    def peers(self) -> int:
        """How many peers are connected."""
        return sum(1 for _ in self.core.swarm.peers)

    # ---- actions ---------------------------------------------------------------------------------------------------

    def _carry_out(self, action: NodeAction) -> None:
        match action:
            case Send():
                self._connections.send(action.peer, action.message)
            case SendChunk():
                self._chunks.send(action)
            case Save():
                self._chunks.save(action)
            case Recheck():
                self._chunks.recheck(action)
            case Complete():
                self._chunks.complete(action.id)
            case Dial():
                self._connections.dial(self._reachable(action.info))
            case Hangup():
                self._connections.hang_up(action.peer, action.reason)
            case Ban():
                self._core_loop.wake()
                self._emit(PeerBanned(action.peer, action.reason))
            case CallJoin() | CallRenew() | CallView() | CallPlan():
                self._tasks.spawn(self._hub_calls.call(action))
            case VerifyManifest():
                self._tasks.spawn(self._manifests.verify(action))
            case _:
                self._synchronize(action)

    def _synchronize(self, action: NodeAction) -> None:
        """Carries out an action of the follower."""
        match action:
            case StageChunk() if self.driver is not None and self.driver.stage_at_once(action):
                pass
            case Adopt() | OpenStage() | StageChunk() | CommitStage():
                self._drive(lambda driver: driver.run(action))
            case AbandonStage():
                self._drive(EngineDriver.abandon)
            case GetManifest():
                self._tasks.spawn(self._manifests.get(action))
            case Fetch():
                try:
                    self._manifests.fetch(action)
                except P2PSyncError as error:
                    self._chunks.failed(action.step.id, error)
            case Retire():
                self._manifests.forget(action.id)
                self._drive(lambda driver: self._remove(driver, action.id))
            case RefuseRun():
                refusal = action.refusal
                refused = RunRefused(refusal.run, refusal.epoch, refusal.live, refusal.reason, refusal.text())
                self._diagnostics.once(refused)
            case ChangedRun():
                self._emit(RunChanged(action.run, action.before))

    def _drive(self, call: Callable[[EngineDriver], Coroutine[Any, Any, None]]) -> None:
        self._tasks.spawn(self._driven(call))

    async def _driven(self, call: Callable[[EngineDriver], Coroutine[Any, Any, None]]) -> None:
        # The task makes the coroutine: `stop` may cancel a task that has not begun, and a coroutine made before would
        # then never be awaited.
        assert self.driver is not None
        await call(self.driver)
        self._core_loop.wake()

    async def _remove(self, driver: EngineDriver, id: bytes) -> None:
        # In the engine's thread, so that it is not reading there.
        try:
            await driver.in_worker(lambda: self.store.remove(id))
        except P2PSyncError as error:
            self.trouble(str(error))

    def _reachable(self, info: NodeInfo) -> NodeInfo:
        if info.host != HUB_HOST:
            return info
        return msgspec.structs.replace(info, host=self._hub.url.host or "")

    # ---- peers -----------------------------------------------------------------------------------------------------

    def _peer_up(self, name: str, region: str) -> bool:
        # The links are registered once this returns; what the core sends meanwhile goes out in the next turn.
        known = any(peer.name == name for peer in self.core.swarm.peers)
        accepted = self.core.peer_up(name, region, self._loop.time())
        if accepted and not known:
            self._emit(PeerUp(name, region))
        self._core_loop.wake()
        return accepted

    def _peer_down(self, name: str) -> None:
        self.core.peer_down(name, self._loop.time())
        self._emit(PeerDown(name))
        self._core_loop.wake()

    def _message(self, name: str, message: Message) -> None:
        if self.core.receive(name, message, self._loop.time()):
            self._core_loop.wake_exchange()

    def _flushed(self, name: str, size: int) -> None:
        self.core.swarm.flushed(name, size, self._loop.time())
        self._core_loop.wake_exchange()

    def _dial_failed(self, name: str) -> None:
        self.core.dial_failed(name, self._loop.time())
        self._core_loop.wake()

    def _measured(self, statistics: NodeStatistics) -> None:
        # Reported to the hub with the next renewal; at once, if it matters to plans.
        self.core.membership.statistics = statistics
        self._core_loop.wake()
