"""The trainer in the swarm: store, versions, hub, announcements, and the swarm node that serves the chunks.

A version is durable before the trainer tells anyone of it; the `Announcer` tells the hub. At a start, everything that
can fail on this machine (store, versions, ports) comes before the claim, which fences the trainer that had the run.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from p2psync.arguments import host_name
from p2psync.errors import FencedError, P2PSyncError, StoreError
from p2psync.membership.acceptance import Acceptance
from p2psync.membership.epochs import RANDOM_BITS
from p2psync.membership.records import HUB_HOST, Member, NodeInfo, View
from p2psync.net.addresses import advertised_hosts, listen_host
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient
from p2psync.net.listening import announced_hosts
from p2psync.net.runner import NodeRunner
from p2psync.net.tcp import choose_congestion
from p2psync.observe.events import Event, Published, Trouble
from p2psync.observe.log_events import EventLog
from p2psync.protocol.versions import Position
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.control.config import MeasureConfig
from p2psync.swarm.node import NodeCore
from p2psync.trainer.adoption import Adoption
from p2psync.trainer.adoption_watch import AdoptionWatch
from p2psync.trainer.anchor_writer import AnchorWriter
from p2psync.trainer.announcer import Announcer
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.hub_access import ask_hub, embedded_hub, embedded_hub_urls
from p2psync.trainer.other_runs import OtherRuns
from p2psync.trainer.run_state import RunState, load_run, save_run
from p2psync.trainer.squash.planner import SquashPlanner
from p2psync.trainer.squash.scheduler import SquashScheduler
from p2psync.trainer.squash.squasher import Squasher
from p2psync.trainer.version_events import published_event, unlike_event
from p2psync.trainer.versions.builder import BuiltVersion, LocalVersionBuilder, VersionBuilder
from p2psync.trainer.versions.profile_selection import ProfileSelection
from p2psync.trainer.versions.replacement import Replacement
from p2psync.trainer.versions.run_succession import remove_other_runs, write_first_version
from p2psync.trainer.versions.scrubber import SnapshotScrubber
from p2psync.trainer.versions.snapshot import PublishedState
from p2psync.trainer.versions.source import Source
from p2psync.warmup import WIDTHS


class TrainerNode:
    """One trainer. Call `start`, then `publish` any number of times, then `stop`; all on one loop."""

    def __init__(
        self,
        config: TrainerConfig,
        on_event: Callable[[Event], None] | None = None,
        on_hub: Callable[[HubService], None] = lambda hub: None,
        *,
        published_state: Callable[[], PublishedState] | None = None,
        version_builder: Callable[[Store, str], VersionBuilder] | None = None,
        widths: Collection[int] = WIDTHS,
    ) -> None:
        """on_event: called on the node's loop; by default events are logged under `p2psync.trainer`.

        on_hub: may add routes to the embedded hub before it serves. published_state: see `LocalVersionBuilder`.
        version_builder: makes the builder of a run's versions from the store and the run (32 hex digits), in place of a
        `LocalVersionBuilder`. widths: of the units that versions have (bytes). Raises `UsageError` for an unknown
        profile.
        """
        self.config = config
        self.hub: HubService | None = None
        #: Where actors join, and where this machine reaches the same hub.
        self.hub_url = self.local_hub_url = ""
        self._emit = on_event if on_event is not None else EventLog("p2psync.trainer")
        self._on_hub = on_hub
        self._published_state = published_state
        self._version_builder = version_builder
        self._widths = widths
        #: Held while a version is made, and by tasks that read the store or the snapshot and must not run meanwhile.
        self._publishing = asyncio.Lock()
        self._stopping = False
        self._client: HubClient | None = None
        self._store: Store | None = None
        self._versions: VersionBuilder | None = None
        self._runner: NodeRunner | None = None
        self._announcer: Announcer | None = None
        self._anchors: AnchorWriter | None = None
        self._squash_scheduler: SquashScheduler | None = None
        self._replacement: Replacement | None = None
        self._view: View | None = None
        self._profiles = ProfileSelection(config.profile, config.link_mbps, self._emit)
        self._acceptance = Acceptance()
        self._adoption_watch = AdoptionWatch(self._members, lambda: self.position, self._emit)

    # ---- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, find the hub or start one, claim the run, announce its versions. Raises `P2PSyncError`."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        config = self.config
        host, advertised = listen_host(config.host), advertised_hosts(config.advertise)
        self._loop = asyncio.get_running_loop()
        if config.hub_url is not None:
            self._client = HubClient(config.hub_url, config.token)
            self.hub_url = self.local_hub_url = config.hub_url
        self._store = store = await asyncio.to_thread(Store, config.store / "packs")
        run_file = config.store / "run.json"
        found = self._load_run(run_file, store)
        builder = self._version_builder or self._local_builder
        self._versions = versions = await asyncio.to_thread(builder, store, found.run)
        trusted = frozenset({config.key.public_key().public_bytes_raw()})
        if config.hub_url is None:
            await self._embed_hub(trusted, host, advertised)
        self._client = client = self._client or HubClient(self.local_hub_url, config.token)
        self._runner = runner = self._make_runner(found.node, client, store, trusted, host, advertised)
        await runner.listen(host, config.port)
        self._view = await ask_hub(client.view, wait=config.wait_for_hub, on_event=self._emit)
        state = found.next_epoch(self._view, time.time(), random.SystemRandom().getrandbits(RANDOM_BITS))
        # Durable before it is used: a restart must not use the same epoch for something else.
        await asyncio.to_thread(save_run, run_file, state)
        await self._claim_run(client, store, versions, state)
        self._profiles.learn_from_store(self.announcer.lineage(), store)
        if config.squash and isinstance(versions, LocalVersionBuilder):
            self._squash_scheduler = self._make_squash_scheduler(store, versions)
        runner.start()
        if versions.position is not None:
            runner.running(versions.position)
            self._acceptance.published(versions.position, time.monotonic())
            self._anchor_if_due()
        self._run_tasks(runner, store, versions)

    def _load_run(self, path: Path, store: Store) -> RunState:
        """Returns the run to go on with: the one in the file or the store, or one that supersedes it."""
        found = load_run(path, store, self._tell)
        for note in store.diagnostics:
            self._tell(note)
        if self.config.supersede:
            found = found.superseding(self.config.supersede, int(time.time() * 1000), os.urandom(10))
        return found

    async def _embed_hub(self, trusted: frozenset[bytes], host: str, advertised: tuple[str, ...]) -> None:
        self.hub = embedded_hub(self.config, trusted, self._emit)
        self._on_hub(self.hub)
        port = await self.hub.start(host, self.config.hub_port)
        self.hub_url, self.local_hub_url = embedded_hub_urls(host, advertised, port)

    def _make_runner(
        self,
        node: str,
        client: HubClient,
        store: Store,
        trusted: frozenset[bytes],
        host: str,
        advertised: tuple[str, ...],
    ) -> NodeRunner:
        config = self.config
        first, further = announced_hosts(host, advertised, HUB_HOST if self.hub is not None else "")
        info = NodeInfo(
            node=node,
            role="trainer",
            region=config.region,
            host=first,
            port=config.port,
            further=further,
            name=host_name(config.name),
        )
        return NodeRunner(
            NodeCore(info, NodeConfig(), random.Random(os.urandom(16))),
            client,
            store,
            trusted=trusted,
            instance=os.urandom(8).hex(),
            streams=config.streams,
            congestion=choose_congestion(config.congestion),
            measure=MeasureConfig(probe=config.probe),
            widths=self._widths,
            on_event=self._emit,
            on_view=self._on_view,
            on_lost=self._lost,
        )

    async def _claim_run(self, client: HubClient, store: Store, versions: VersionBuilder, state: RunState) -> None:
        """Claim the run at its new epoch. A run that goes on from another one writes its first version before that."""
        self._other_runs = OtherRuns(state.run, state.epoch)
        self._announcer = announcer = Announcer(
            client,
            self.config.key,
            state,
            store,
            keep=self.config.keep,
            withdraw=self.runner.withdraw,
            own_nonce=self.hub.own_nonce if self.hub is not None else lambda: "",
            on_event=self._emit,
        )
        self._anchors = AnchorWriter(
            self.config,
            announcer,
            self._publishing,
            make_anchor=lambda: self.versions.make_anchor(self._planned_rate()),
            offer=self._offer,
            on_event=self._emit,
        )
        versions.epoch = state.epoch
        if isinstance(versions, LocalVersionBuilder) and versions.begins_from_another_run:
            self._emit(await asyncio.to_thread(write_first_version, versions, state.run))
        await ask_hub(
            lambda: announcer.claim(take_over=self.config.take_over),
            wait=self.config.wait_for_hub,
            on_event=self._emit,
        )
        if announcer.lineage():
            trouble = await asyncio.to_thread(remove_other_runs, store, state.run)
            if trouble is not None:
                self._emit(trouble)

    def _run_tasks(self, runner: NodeRunner, store: Store, versions: VersionBuilder) -> None:
        """Start the tasks that run as long as the node: announcing, replacing and scrubbing."""
        runner.start_task(self.announcer.run())
        self._replacement = Replacement(self, store, self._acceptance, self._members, self._emit)
        runner.start_task(self._replacement.run())
        for pack in store.packs():
            if not pack.complete:
                self._replacement.lost(pack.signed.id)
        if isinstance(versions, LocalVersionBuilder):
            runner.start_task(SnapshotScrubber(versions, self._publishing, self._rebuilt, self._emit).run())

    async def stop(self) -> None:
        """Gives up the version in the making, leaves the swarm, and closes everything."""
        self._stopping = True
        if self._versions is not None:
            self._versions.stop()
        if self._anchors is not None:
            self._anchors.stop()
        if self._squash_scheduler is not None:
            await self._squash_scheduler.stop()
        async with self._publishing:  # a version that was being made reads the store and the snapshot
            if self._runner is not None:
                await self._runner.stop()
            if self._client is not None:
                await self._client.close()
            if self.hub is not None:
                await self.hub.stop()
            if self._versions is not None:
                self._versions.close()
            if self._store is not None:
                self._store.close()

    async def until_broken(self) -> None:
        """Never returns. Raises the error after which this trainer cannot go on; `FencedError` once it was replaced."""
        await self.runner.until_broken()

    # ---- publishing ------------------------------------------------------------------------------------------------

    async def publish(
        self, source: Source, settled: Callable[[], bool] = lambda: True, *, checkpoint: str = ""
    ) -> Published | None:
        """Make the next version from `source`, durably, and have it announced. None if no bit differs.

        settled: see `VersionBuilder.make`. checkpoint: where it was read from, for people.

        Returns once it is durable; the announcement follows as soon as the hub can be reached (`announced` waits for
        it). Raises `FencedError` once another trainer has taken the run over, and `P2PSyncError` for a bad source or
        disk; then nothing was published. Once it has returned, raised or been cancelled, `source` is not read any more.
        """
        await self.runner.warmed()
        given_up = threading.Event()
        task = asyncio.create_task(self._publish(source, settled, given_up, checkpoint))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            given_up.set()
            await asyncio.gather(task, return_exceptions=True)
            raise

    async def announced(self) -> None:
        """Wait until the hub has everything that was published. Raises `FencedError`."""
        await self.runner.unless_broken(self.announcer.announced())

    async def anchored(self) -> None:
        """Wait until an anchor that is being made is durable."""
        if self._anchors is not None:
            await self._anchors.written()

    async def until_running(self, actors: int, straggler_timeout: float = math.inf) -> Adoption:
        """Wait until at least `actors` actors, and all others that the hub knows, run the newest version.

        straggler_timeout: seconds to wait for the others once `actors` of them run it. Returns which actors run it and
        which do not. Now and then an event tells which ones are missing. Actors at a newer run do not take the version
        and are not waited for. While the hub is away it goes on waiting. Raises what `until_broken` raises.
        """
        await self.runner.unless_broken(self._adoption_watch.until_running(actors, straggler_timeout))
        return self.adoption

    async def write_whole(self) -> None:
        """Write the newest version out whole, from verified bits; if there is an anchor of it, the next version.

        A failure is told and not raised.
        """
        live = self.position
        if live is None or self._stopping:
            return
        if not any(a.base is None and a.digest == live.digest.hex() for a in self.announcer.lineage()):
            await self.anchors.write("actors refuse it")
            return
        try:
            async with self._publishing:
                await asyncio.to_thread(self.versions.write_whole)
        except P2PSyncError as error:
            self._emit(Trouble(f"the published bits cannot be verified: {error}"))
        self._rebuilt()

    def withdraw(self, id: bytes) -> None:
        """Retire a manifest (32 bytes) whose chunks are lost, and write an anchor if nothing leads to the head now."""
        self.announcer.give_up(id)
        self._anchor_if_due()

    @property
    def adoption(self) -> Adoption:
        """The actors that run the newest version, as `until_running` saw them last."""
        return self._adoption_watch.latest

    @property
    def fenced(self) -> FencedError | None:
        """The error that says what replaced this trainer; None while nothing did."""
        return self._announcer.fenced if self._announcer is not None else None

    @property
    def position(self) -> Position | None:
        """The newest version."""
        return self.versions.position

    @property
    def versions(self) -> VersionBuilder:
        """The builder of the versions; after `start`."""
        assert self._versions is not None, "not started"
        return self._versions

    @property
    def runner(self) -> NodeRunner:
        """This node in the swarm; after `start`."""
        assert self._runner is not None, "not started"
        return self._runner

    @property
    def announcer(self) -> Announcer:
        """Announces the versions to the hub; after `start`."""
        assert self._announcer is not None, "not started"
        return self._announcer

    @property
    def anchors(self) -> AnchorWriter:
        """Writes the anchors; after `start`."""
        assert self._anchors is not None, "not started"
        return self._anchors

    # ---- inside ----------------------------------------------------------------------------------------------------

    async def _publish(
        self, source: Source, settled: Callable[[], bool], given_up: threading.Event, checkpoint: str
    ) -> Published | None:
        if self._squash_scheduler is not None:
            self._squash_scheduler.preempt()
        async with self._publishing:
            if self.fenced is not None:
                raise self.fenced
            if self._stopping:
                raise StoreError("this trainer is stopping: publish again once it is started")
            self.runner.monitor.version_comes()
            choice = self._profiles.choose(source, self._view.members if self._view is not None else ())
            made = await asyncio.to_thread(
                self.versions.make,
                source,
                profile=choice.profile,
                rate=self._planned_rate(),
                settled=settled,
                given_up=given_up.is_set,
            )
            if made is None:
                return None
            if (note := self._profiles.learn(made, choice)) is not None:
                self.announcer.note = note
            if (unlike := unlike_event(made)) is not None:
                self._emit(unlike)
            event = self._offer(made, checkpoint)
        self._anchor_if_due()
        return event

    def _offer(self, made: BuiltVersion, checkpoint: str = "") -> Published:
        """Serve a version, tell people of it, and have it announced."""
        self.runner.offer(made.pack)
        self.runner.running(made.position)
        self._acceptance.published(made.position, time.monotonic())
        event = published_event(made, checkpoint)
        self._emit(event)
        self.announcer.wake()
        return event

    def _planned_rate(self) -> float:
        """Bytes a second at which the plan spreads versions; 0 without a plan."""
        plan = self.runner.core.plan
        return plan.rate / 8e-6 if plan is not None else 0.0

    def _anchor_if_due(self) -> None:
        self.anchors.start_if_due(self.position)

    def _rebuilt(self) -> None:
        """Serve the position that the published bits have after they were rebuilt from the store.

        It is an earlier one where the store does not lead to the newest version.
        """
        if self.position is not None:
            self.runner.running(self.position)
        self._anchor_if_due()
        self.announcer.wake()

    def _local_builder(self, store: Store, run: str) -> LocalVersionBuilder:
        loop = self._loop

        def tell(message: str) -> None:
            loop.call_soon_threadsafe(self._emit, Trouble(message))

        root = self.config.store / "snapshot"
        return LocalVersionBuilder(
            store, root, self.config.key, run, published_state=self._published_state, on_trouble=tell
        )

    def _make_squash_scheduler(self, store: Store, versions: LocalVersionBuilder) -> SquashScheduler:
        def offer(pack: Pack) -> None:
            self.runner.offer(pack)
            self.announcer.wake()

        planner = SquashPlanner()
        return SquashScheduler(
            store,
            Squasher(store, versions.delta_records, self.config.key, planner),
            planner,
            versions=versions,
            publishing=self._publishing,
            lineage=self.announcer.lineage,
            offer=offer,
            on_event=self._emit,
        )

    def _tell(self, trouble: str) -> None:
        self._emit(Trouble(trouble))

    def _lost(self, id: bytes) -> None:
        if self._replacement is not None:
            self._replacement.lost(id)

    async def _members(self) -> Sequence[Member]:
        assert self._client is not None
        return self._other_runs.without_other_runs((await self._client.status()).view.members)

    def _on_view(self, view: View) -> None:
        if (event := self._other_runs.warning(view.members)) is not None:
            self._emit(event)
        self._view = view = msgspec.structs.replace(view, members=self._other_runs.without_other_runs(view.members))
        self.announcer.viewed(view)
        if self._squash_scheduler is not None:
            self._squash_scheduler.viewed(view)
