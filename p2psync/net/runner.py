"""The asyncio shell of a node: carries out what `NodeCore` decides, over sockets, the hub, the store and an engine.

One loop, one task per call to the hub or to the engine (`EngineDriver`). After anything has happened the core's
actions are drained once per turn of the loop. What can be expected to fail is answered to the core; anything else, and
what a restart alone can mend, ends the node: `until_broken` raises it, and whoever runs the node stops.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import msgspec
import numpy as np

from p2psync.engines.base import ChunkBytes, Engine
from p2psync.errors import LeaseError, P2PSyncError, TrustError
from p2psync.membership.client import CallJoin, CallPlan, CallRenew, CallView, HubCall
from p2psync.membership.records import HUB_HOST, NodeInfo, NodeStatistics, View
from p2psync.net import tcp
from p2psync.net.engine_driver import EngineDriver
from p2psync.net.hub_client import HubClient
from p2psync.net.peers import ConnectionManager, PeerEvents
from p2psync.observe.events import (
    CodecCompiled,
    CodecCompiling,
    Event,
    HubJoined,
    HubUnreachable,
    Note,
    PeerBanned,
    PeerDown,
    PeerUp,
    RunChanged,
    RunRefused,
    Trouble,
)
from p2psync.protocol.manifest import Manifest, SignedManifest, open_signed
from p2psync.protocol.messages import MAGIC, PROTOCOL, SHORT_ID_BYTES, Chunk, Hello, Message
from p2psync.protocol.versions import Position
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.swarm.control.config import INITIAL_STREAMS, MeasureConfig
from p2psync.swarm.control.monitor import NetworkMonitor
from p2psync.swarm.exchange.actions import Ban, Complete, Recheck, Save, Send, SendChunk, VerifyManifest
from p2psync.swarm.exchange.bitmap import Bits
from p2psync.swarm.node import Dial, Hangup, NodeAction, NodeCore
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
from p2psync.warmup import WIDTHS, Warmup, compiled

#: How long one long poll of the view lasts (seconds).
VIEW_WAIT_SECONDS = 20.0
#: Manifests up to this size (bytes) are read on the loop: a thousand chunks of a model of hundreds of tensors.
SMALL_MANIFEST = 40 << 10
#: The same trouble is told again after so long (seconds).
REPEAT_DIAGNOSTIC_SECONDS = 60.0
#: A chunk is hashed again before it is sent if that was last done so long ago (seconds): rot is rare, and hashing takes
#: some milliseconds a chunk.
RECHECK_SECONDS = 300.0


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
        comes; a relay codes none. on_lost: told of a manifest (id) of which a chunk that was held turned out to be
        damaged."""
        self.core = core
        self.store = store
        self._widths = widths
        self._warmup = Warmup(widths)
        self._warmed: asyncio.Task[None] | None = None
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._trusted = trusted
        self._emit = on_event
        self._on_view = on_view
        self._on_reported = on_reported
        self._on_lost = on_lost
        hello = Hello(MAGIC, PROTOCOL, core.info.node, instance, core.info.region)
        events = PeerEvents(self._peer_up, self._peer_down, self._message, self._flushed, self._dial_failed)
        self._peers = ConnectionManager(hello, events, streams or INITIAL_STREAMS, congestion)
        self.monitor = NetworkMonitor(
            core.info,
            self._peers,
            random.Random(os.urandom(16)),
            measure or MeasureConfig(),
            self._loop,
            streams=streams,
            congestion=congestion.far,
            on_measures=self._measured,
            on_connections=core.swarm.connections,
            on_pace=core.swarm.pace,
            others_fetch=lambda: core.swarm.others_fetch,
        )
        self.driver: EngineDriver | None = None
        if engine is not None:
            self.driver = EngineDriver(engine, core, store, on_event=on_event, on_trouble=self.trouble)
        self._signed: dict[bytes, SignedManifest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sealing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        # Chunks that were saved in this turn: they are passed on from memory.
        self._saved: dict[tuple[bytes, int], ChunkBytes] = {}
        self._draining = False
        # Whether more than chunks and words on them came since the last drain; when else something is due besides them.
        self._stirred = True
        self._rest_wake = 0.0
        self._stopped = False
        self._hub_away = False
        self._was_member = False
        self._troubles: dict[str, float] = {}
        self._broken: asyncio.Future[None] = self._loop.create_future()

    # ---- life ------------------------------------------------------------------------------------------------------

    async def listen(self, host: str, port: int | None) -> None:
        """Take the port at which peers connect: 0 takes any. Raises `P2PSyncError`.

        None: listen nowhere; this node only dials out, and serves over what it dialled.
        """
        self.core.listening(await self._peers.listen(host, port) if port is not None else 0)

    def start(self) -> None:
        """Offer what the store holds, and join the hub. `listen` comes first."""
        self._peers.watch()
        self.monitor.start()
        if self._widths:
            self._warmed = self._spawn(self._warm())
        if self.driver is not None:
            self._spawn(self.driver.tell_progress())
        self._spawn(self._recheck_packs())
        for pack in self.store.packs():
            self._know(pack)
        self._kick()

    async def until_broken(self) -> None:
        """Never returns; raises an error after which this node cannot go on."""
        await asyncio.shield(self._broken)

    async def unless_broken(self, coroutine: Coroutine[object, object, None]) -> None:
        """Wait for something, or raise what this node cannot go on after."""
        tasks = [asyncio.create_task(coroutine), asyncio.create_task(self.until_broken())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    async def _warm(self) -> None:
        began, cold = self._loop.time(), not compiled(self._widths)
        if cold:
            self._emit(CodecCompiling())

        def tell(seconds: float) -> None:
            self._loop.call_soon_threadsafe(self._tell_compiling, seconds)

        def run() -> None:
            self._warmup.run(tell)

        # In the engine's thread where there is one, so that its first call finds everything compiled.
        await (self.driver.in_worker(run) if self.driver is not None else asyncio.to_thread(run))
        if cold:
            self._emit(CodecCompiled(self._loop.time() - began))

    def _tell_compiling(self, seconds: float) -> None:
        if seconds >= 1:
            self._emit(Note(f"still compiling the codec: {seconds:.0f} s; versions wait for it"))

    async def warmed(self) -> None:
        """Wait until the codec is compiled."""
        if self._warmed is not None:
            await asyncio.wait({self._warmed})

    async def _recheck_packs(self) -> None:
        """Has every pack hash its chunks again before it sends them; repeats that after each `RECHECK_SECONDS`."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            for pack in self.store.packs():
                pack.recheck()

    async def stop(self) -> None:
        """Leave the hub, close the peers, and wait for the disk and the engine to finish what they are doing."""
        self._stopped = True
        self._warmup.stop()
        if self._timer is not None:
            self._timer.cancel()
        # The store is closed after this, and a thread that writes cannot be cancelled.
        for task in self._tasks - self._sealing:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        lease = self.core.membership.lease
        if lease is not None:
            try:
                await asyncio.wait_for(self._hub.leave(lease), 2)
            except (P2PSyncError, TimeoutError) as error:
                self._emit(Trouble(f"could not take leave of the hub: {error}"))
        self.monitor.stop()
        await self._peers.close()
        if self.driver is not None:
            await self.driver.stop()
        self._broken.cancel()

    def offer(self, pack: Pack) -> None:
        """Serve a pack that was just made here."""
        self.monitor.transfer_begins(pack.manifest.payload_bytes)
        signed = pack.signed
        self.core.offer(signed.id, pack.manifest, _flags(pack), self._loop.time(), signed.to_bytes())
        self._kick()

    def withdraw(self, id: bytes) -> None:
        """Stop serving a manifest (32 bytes)."""
        self.core.swarm.end(id)
        self._kick()

    def running(self, position: Position) -> None:
        """Tell the hub which version this node has (a trainer: the one it published)."""
        digest, now = position.digest.hex(), self._loop.time()
        self.core.membership.running(position.version, digest, now, position.run, position.epoch)
        self._kick()

    def mark_corrupt(self, message: str, position: Position | None) -> None:
        """Reports that the live bits are not those that were committed.

        position: the version that is live instead, None: none. The follower syncs the engine from there."""
        self.trouble(message)
        self.core.mark_corrupt(message, position, self._loop.time())
        self._kick()

    def start_task(self, coroutine: Coroutine[object, object, None]) -> None:
        """Runs a coroutine until this node stops. An exception of it ends the node."""
        self._spawn(coroutine)

    @property
    def peers(self) -> int:
        """How many peers are connected."""
        return sum(1 for _ in self.core.swarm.peers)

    # ---- driving the core ------------------------------------------------------------------------------------------

    def _kick(self) -> None:
        """Drain the core's actions in this turn of the loop, once."""
        self._stirred = True
        self._kick_swarm()

    def _kick_swarm(self) -> None:
        """Drains the actions of the swarm alone; the rest of the core is polled when due.

        It follows chunks and messages on them: polling all of the core would cost more than handling a chunk.
        """
        if not self._draining and not self._stopped:
            self._draining = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._draining = False
        if self._stopped:
            return
        try:
            now = self._loop.time()
            rest = self._stirred or now >= self._rest_wake
            self._stirred = False
            if rest:
                self.core.poll(now)
            else:
                self.core.swarm.poll(now)
            while actions := self.core.actions():
                for action in actions:
                    self._do(action)
            self._saved.clear()
            if rest:
                self._rest_wake = self.core.rest_wake()
            self._arm(min(self._rest_wake, self.core.swarm.next_wake()))
        except Exception as error:  # in a call of the loop: nobody else would hear of it
            self._break(error)

    def _arm(self, wake: float) -> None:
        if self._timer is not None:
            if self._timer_at <= wake:
                return  # too early costs one more look, less than a new timer each turn
            self._timer.cancel()
            self._timer = None
        if wake != float("inf"):
            self._timer, self._timer_at = self._loop.call_at(wake, self._alarm), wake

    def _alarm(self) -> None:
        self._timer = None
        self._kick_swarm()

    def _do(self, action: NodeAction) -> None:
        match action:
            case Send():
                self._peers.send(action.peer, action.message)
            case SendChunk():
                self._send_chunk(action)
            case Recheck():
                self._recheck(action)
            case Save():
                self._save(action)
            case StageChunk() if self.driver is not None and self.driver.put_at_once(action):
                pass
            case CallJoin() | CallRenew() | CallView() | CallPlan():
                self._spawn(self._call_hub(action))
            case Dial():
                self._peers.dial(self._reachable(action.info))
            case Hangup():
                self._peers.hang_up(action.peer, action.reason)
            case Ban():
                self._kick()
                self._emit(PeerBanned(action.peer, action.reason))
            case Complete():
                self._complete(action.id)
            case GetManifest():
                self._spawn(self._get_manifest(action))
            case VerifyManifest():
                self._spawn(self._verify_manifest(action))
            case Fetch():
                self._fetch(action)
            case Adopt() | OpenStage() | StageChunk() | CommitStage():
                self._drive(lambda driver: driver.run(action))
            case AbandonStage():
                self._drive(EngineDriver.abandon)
            case RefuseRun():
                refusal = action.refusal
                self._emit_once(RunRefused(refusal.run, refusal.epoch, refusal.live, refusal.reason, refusal.text()))
            case ChangedRun():
                self._emit(RunChanged(action.run, action.before))
            case Retire():
                self._signed.pop(action.id, None)
                self._drive(lambda driver: self._remove(driver, action.id))

    def _drive(self, call: Callable[[EngineDriver], Coroutine[Any, Any, None]]) -> None:
        self._spawn(self._driven(call))

    async def _driven(self, call: Callable[[EngineDriver], Coroutine[Any, Any, None]]) -> None:
        # The task makes the coroutine: `stop` may cancel a task that has not begun, and a coroutine made before would
        # then never be awaited.
        assert self.driver is not None
        await call(self.driver)
        self._kick()

    def _reachable(self, info: NodeInfo) -> NodeInfo:
        if info.host != HUB_HOST:
            return info
        return msgspec.structs.replace(info, host=self._hub.url.host or "")

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._sealing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        if not self._broken.done():
            self._broken.set_exception(error)

    def trouble(self, message: str, about: str = "") -> None:
        """Emits a `Trouble`, but not the same one all the time. about: identifies it if its message varies."""
        self._emit_once(Trouble(message), about)

    def _emit_once(self, event: Event, about: str = "") -> None:
        """Emits an event unless the same one was emitted just now."""
        now, name = self._loop.time(), about or event.line()
        self._troubles = {told: at for told, at in self._troubles.items() if now - at < REPEAT_DIAGNOSTIC_SECONDS}
        if name not in self._troubles:
            self._troubles[name] = now
            self._emit(event)

    # ---- peers -----------------------------------------------------------------------------------------------------

    def _peer_up(self, name: str, region: str) -> bool:
        # The links are registered once this returns; what the core sends meanwhile goes out in the next turn.
        known = any(peer.name == name for peer in self.core.swarm.peers)
        accepted = self.core.peer_up(name, region, self._loop.time())
        if accepted and not known:
            self._emit(PeerUp(name, region))
        if accepted:
            self.monitor.peer_up(name, region)
        self._kick()
        return accepted

    def _peer_down(self, name: str) -> None:
        self.core.peer_down(name, self._loop.time())
        self.monitor.peer_down(name)
        self._emit(PeerDown(name))
        self._kick()

    def _message(self, name: str, message: Message) -> None:
        if not isinstance(message, Chunk) and self.monitor.message(name, message):
            return
        self.core.receive(name, message, self._loop.time())
        self._kick_swarm()

    def _flushed(self, name: str, size: int) -> None:
        self.core.swarm.flushed(name, size, self._loop.time())
        self._kick_swarm()

    def _dial_failed(self, name: str) -> None:
        self.core.dial_failed(name, self._loop.time())
        self.monitor.dial_failed(name)
        self._kick()

    def _measured(self, statistics: NodeStatistics) -> None:
        # Told to the hub with the next renewal; at once, if it matters to plans.
        self.core.membership.statistics = statistics
        self._kick()

    # ---- chunks ----------------------------------------------------------------------------------------------------

    def _send_chunk(self, action: SendChunk) -> None:
        data = self._saved.get((action.id, action.index)) or self._stored(action)
        short = action.id[:SHORT_ID_BYTES]
        if data is None or not self._peers.send_chunk(action.peer, short, action.index, data, action.tag):
            self.core.swarm.flushed(action.peer, action.size, self._loop.time())

    def _stored(self, action: SendChunk) -> memoryview | None:
        try:
            pack = self.store.get(action.id)
            data = pack.view(action.index) if pack is not None else None
        except P2PSyncError as error:
            self.trouble(str(error))
            data = None
        if data is None:
            self._lost(action.id, action.index)
        return data

    def _recheck(self, action: Recheck) -> None:
        try:
            pack = self.store.get(action.id)
            if pack is not None:
                pack.recheck()  # its other chunks may have rotted with it
            good = pack is None or pack.view(action.index) is not None
        except P2PSyncError as error:
            self.trouble(str(error))
            good = False
        if not good:
            self._lost(action.id, action.index)

    def _lost(self, id: bytes, index: int) -> None:
        self.trouble(f"chunk {index} of {id.hex()[:12]} is damaged or gone here; fetching it again")
        self.core.swarm.lost(id, index, self._loop.time())
        self._on_lost(id)
        self._kick()

    def _save(self, action: Save) -> None:
        pack = self.store.get(action.id)
        try:
            if pack is None:
                raise P2PSyncError(f"the store lost the pack {action.id.hex()[:12]}")
            pack.write(action.index, action.data)
        except P2PSyncError as error:
            self.trouble(str(error))
            self.core.store_failed(action.id, str(error), self._loop.time())
            self._kick()
            return
        self._saved[(action.id, action.index)] = action.data
        self.core.saved(action)

    def _complete(self, id: bytes) -> None:
        pack = self.store.get(id)
        if pack is not None and pack.complete:
            self._sealing.add(self._spawn(self._seal(pack)))

    async def _seal(self, pack: Pack) -> None:
        try:
            await self._loop.run_in_executor(None, pack.seal)
        except P2PSyncError as error:
            self.trouble(str(error))

    def _fetch(self, action: Fetch) -> None:
        signed = self._signed.get(action.step.id)
        now = self._loop.time()
        try:
            pack = self.store.get(action.step.id)
            if pack is None:
                if signed is None:
                    raise P2PSyncError("the manifest to fetch is not at hand any more; trying again")
                pack = self.store.add(signed, action.step.manifest)
        except P2PSyncError as error:
            self.trouble(str(error))
            self.core.store_failed(action.step.id, str(error), now)
            return
        self.monitor.transfer_begins(pack.manifest.payload_bytes)
        self.core.fetch(action, _flags(pack), now)

    async def _remove(self, driver: EngineDriver, id: bytes) -> None:
        # In the engine's thread, so that it is not reading there.
        try:
            await driver.in_worker(lambda: self.store.remove(id))
        except P2PSyncError as error:
            self.trouble(str(error))

    def _know(self, pack: Pack) -> None:
        """Offer a pack of an earlier life, if its manifest is one that this node trusts."""
        try:
            open_signed(pack.signed.to_bytes(), self._trusted)
        except P2PSyncError as error:
            self.trouble(f"leaving the pack {pack.signed.id.hex()[:12]} alone: {error}")
            return
        now = self._loop.time()
        self._signed[pack.signed.id] = pack.signed
        self.core.offer(pack.signed.id, pack.manifest, _flags(pack), now)
        if self.core.follower is not None:
            self.core.follower.manifest(pack.signed.id.hex(), pack.manifest, now)

    # ---- hub -------------------------------------------------------------------------------------------------------

    async def _call_hub(self, call: HubCall) -> None:
        try:
            if isinstance(call, CallJoin):
                join = call.request
                lease = await self._hub.join(join.info, join.version, join.digest, run=join.run, epoch=join.epoch)
                self.core.joined(lease, self._loop.time())
                self._on_reported()
                self._hub_away, self._was_member = False, True
                self._emit(HubJoined(str(self._hub.url)))
            elif isinstance(call, CallRenew):
                request = call.request
                lease = await self._hub.renew(
                    request.lease,
                    request.version,
                    request.digest,
                    run=request.run,
                    epoch=request.epoch,
                    waits=request.waits,
                    fetch_rate=request.fetch_rate,
                    statistics=request.statistics,
                    rejected=request.rejected,
                    limit=call.limit,
                )
                if lease.refused:
                    self.trouble(f"the hub renews the lease and leaves out: {lease.refused}", "refused")
                self.core.renewed(lease, self._loop.time())
                self._on_reported()
            elif isinstance(call, CallPlan):
                plan = await self._hub.plan(call.lease)
                self.core.planned(plan, self._loop.time())
                self.monitor.planned(plan)
            else:
                answer = await self._hub.view(
                    call.instance, call.revision, VIEW_WAIT_SECONDS, call.lease, changes=not call.whole
                )
                same = (answer.instance, answer.revision) == (call.instance, call.revision)
                view = self.core.viewed(None if same else answer, self._loop.time())
                if view is not None:
                    self.monitor.members(member.info for member in view.members)
                    self._on_view(view)
        except LeaseError as error:
            if isinstance(call, CallPlan):  # the next renewal tells what became of the lease
                self._hub_failed(call, error)
            else:
                self.core.lease_lost(self._loop.time())
        except P2PSyncError as error:
            self._hub_failed(call, error)
        self._kick()

    def _hub_failed(self, call: HubCall, error: P2PSyncError) -> None:
        if isinstance(error, TrustError) and not self._was_member:
            self._break(error)  # a wrong join token: asking again mends nothing
            return
        if isinstance(call, CallPlan):
            self.trouble(f"going on without this node's part of the plan: {error}")
        elif not self._hub_away:
            self._emit(HubUnreachable(f"{error}; trying again, meanwhile with the peers at hand"))
        self._hub_away |= not isinstance(call, CallPlan)
        self.core.hub_failed(call, self._loop.time())

    async def _get_manifest(self, action: GetManifest) -> None:
        follower = self.core.follower
        assert follower is not None
        try:
            data = action.inline if action.inline is not None else await self._hub.manifest(action.id)
            manifest, signed = await self._opened(data, action.id)
            self._signed[signed.id] = signed
            follower.manifest(action.id, manifest, self._loop.time())
        except P2PSyncError as error:
            if isinstance(error, TrustError) and follower.position is None and not self._signed:
                self._break(error)  # no manifest was ever signed by a trusted key: a wrong key, or a wrong hub
                return
            self.trouble(str(error))
            follower.no_manifest(action.id, str(error), self._loop.time())
        self._kick()

    async def _verify_manifest(self, verify: VerifyManifest) -> None:
        try:
            manifest, signed = await self._opened(verify.signed, verify.id.hex())
        except P2PSyncError:
            self.core.manifest_rejected(verify, self._loop.time())
        else:
            if self.core.manifest_verified(verify, manifest, self._loop.time()):
                self._signed[signed.id] = signed
                # Before it is passed on.
                self.monitor.transfer_begins(manifest.payload_bytes)
        self._kick()

    async def _opened(self, data: bytes, id: str) -> tuple[Manifest, SignedManifest]:
        # A small one is read in less time than another thread takes to begin.
        if len(data) <= SMALL_MANIFEST:
            return self._open(data, id)
        return await self._loop.run_in_executor(None, self._open, data, id)

    def _open(self, data: bytes, id: str) -> tuple[Manifest, SignedManifest]:
        manifest, signed = open_signed(data, self._trusted)
        if signed.id.hex() != id:
            raise TrustError("the hub gave another manifest than the one it announced; not used")
        return manifest, signed


def _flags(pack: Pack) -> Bits:
    return np.array([bool(have) for have in pack.have], np.bool_)
