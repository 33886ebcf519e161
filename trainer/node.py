"""The trainer in the swarm: the hub beside it, the store, the versions, and the announcements that must get through.

A version is durable before anyone hears of it; the `Announcer` tells the hub. At a start everything that can fail on
this machine (store, versions, ports) comes before the claim, which fences the trainer that had the run.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from p2psync.arguments import Directory, PrivateKey, as_directory, as_private_key, host_name, required
from p2psync.delta.container import PROFILES
from p2psync.errors import FencedError, HubError, P2PSyncError, StoreError
from p2psync.membership.acceptance import Acceptance
from p2psync.membership.epochs import DRAWN_BITS
from p2psync.membership.hub import HubConfig
from p2psync.membership.planning import Planner
from p2psync.membership.records import HUB_HOST, Member, NodeInfo, View
from p2psync.membership.runs import run_name
from p2psync.net.addresses import advertised_hosts, check_url, listen_host, url_of
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient
from p2psync.net.listening import announce, local_host, reachable_host
from p2psync.net.measuring import MeasureConfig
from p2psync.net.runner import NodeRunner
from p2psync.net.tcp import AUTO_CONGESTION, choose_congestion
from p2psync.observe.events import Event, HubAway, Note, ProfileChosen, Published, Trouble, Unlike
from p2psync.observe.log_events import EventLog
from p2psync.parallel import thread_count
from p2psync.protocol.lineage import is_squash
from p2psync.protocol.versions import Position
from p2psync.setting_checks import check_choice, check_flags, check_number, check_texts
from p2psync.store.packs import Pack, Store
from p2psync.swarm.node import NodeConfig, NodeCore
from p2psync.trainer.announcer import RETRY_FIRST, RETRY_LAST, Announcer
from p2psync.trainer.other_runs import Elsewhere
from p2psync.trainer.run_state import load_run, save_run
from p2psync.trainer.squash.on_demand import CatchUp
from p2psync.trainer.squash.planner import SquashPlanner
from p2psync.trainer.squash.squasher import Squasher
from p2psync.trainer.standing import Standing, standing
from p2psync.trainer.versions.builder import Made, Maker, VersionMaker
from p2psync.trainer.versions.profile_choice import AUTO, Choice, ProfileChooser, slowest_link
from p2psync.trainer.versions.replacement import Replacing
from p2psync.trainer.versions.retention import ANCHOR_DELTAS, ANCHOR_SECONDS, anchor_due, newest_anchor
from p2psync.trainer.versions.scrubber import Scrubber
from p2psync.trainer.versions.snapshot import Keeper
from p2psync.trainer.versions.source import Source

#: How often `until_running` asks the hub, and tells who is waited for (seconds).
ASK_EVERY, SAY_EVERY = 0.2, 10.0

#: The shortest lease (seconds): shorter ones end between two renewals on a slow path.
MIN_TTL_SECONDS = 0.1

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Settings of a trainer, one line for each: meaning, unit, default.

    store: directory of versions and snapshot; a path or text [required]
    key: the signing key; a private key, a key file (path or text), or a key file's text [required]
    hub_url: the hub to publish through, like http://host:7070; none: embed one at (host, hub_port) [none]
    host: address to listen on; "": every address, of IPv4 and IPv6 [""]
    hub_port: TCP port of the embedded hub (HTTP); 0: any [7070]
    port: TCP port where peers connect; 0: any [7071]
    advertise: addresses told to peers, separated by commas; "": what the hub sees [""]
    region: where this machine is, any word; nodes of one region reach each other cheaply [""]
    token: join token that every node must know; none: anyone may join [none]
    streams: TCP connections to each peer, 1 to 16; 0: as measurements say [0]
    congestion: congestion control of connections to peers: auto (bbr, else cubic) or its name in the kernel [auto]
    probe: measure links with short bursts, which cost up to 1 % of a link [yes]
    profile: how deltas are coded: fast, tight, or auto (the last actor commits soonest) [auto]
    link_mbps: what the slowest link gives, in Mbit/s, for auto; 0: as actors measure it [0]
    squash: squash deltas into one for actors that are behind [yes]
    anchor_ratio: a new anchor once the deltas since the last outweigh it by this factor [1]
    anchor_deltas: a new anchor after so many deltas, however small [256]
    anchor_seconds: a new anchor once the last one is so many seconds old [86400]
    keep: versions that an absent actor may be behind and still get by deltas [64]
    ttl: seconds of a lease at the embedded hub [10]
    plan: the embedded hub plans who sends what to whom, from what nodes measure [yes]
    wait_for_hub: where hub_url cannot be reached at the start, try again until it can [no]
    take_over: take the hub at hub_url from another run on purpose [no]
    supersede: go back on purpose: go on under a new run, newer than the one whose id begins so [""]
    name: what people read in the status; "": the name of this machine [""]
    """

    store: Directory = required(Directory)
    key: PrivateKey = required(PrivateKey, shown=False)
    hub_url: str | None = None
    host: str = ""
    hub_port: int = 7070
    port: int = 7071
    advertise: str = ""
    region: str = ""
    token: str | None = field(default=None, repr=False)
    streams: int = 0
    congestion: str = AUTO_CONGESTION
    probe: bool = True
    profile: str = AUTO
    link_mbps: float = 0.0
    squash: bool = True
    anchor_ratio: float = 1.0
    anchor_deltas: int = ANCHOR_DELTAS
    anchor_seconds: float = ANCHOR_SECONDS
    keep: int = 64
    ttl: float = 10.0
    plan: bool = True
    wait_for_hub: bool = False
    take_over: bool = False
    supersede: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        """Raises `UsageError` for a setting that cannot be meant."""
        object.__setattr__(self, "store", as_directory(self.store, "store"))
        object.__setattr__(self, "key", as_private_key(self.key, "key"))
        if self.hub_url is not None:
            check_url(self.hub_url)
        for name in ("hub_port", "port"):
            check_number(getattr(self, name), name, 0, 65535, whole=True)
        check_number(self.streams, "streams", 0, 16, whole=True)
        check_number(self.link_mbps, "link_mbps", 0)
        check_number(self.anchor_ratio, "anchor_ratio", 0)
        check_number(self.anchor_deltas, "anchor_deltas", 1, whole=True)
        check_number(self.anchor_seconds, "anchor_seconds", 0)
        check_number(self.keep, "keep", 0, whole=True)
        check_number(self.ttl, "ttl", MIN_TTL_SECONDS)
        check_choice(self.profile, "profile", (AUTO, *PROFILES))
        names = ("host", "advertise", "region", "congestion", "supersede", "name")
        check_texts({name: getattr(self, name) for name in names})
        flags = ("probe", "squash", "plan", "wait_for_hub", "take_over")
        check_flags({name: getattr(self, name) for name in flags})


class TrainerNode:
    """One trainer. `start`, any number of `publish`, `stop`; all on one loop."""

    def __init__(
        self,
        config: TrainerConfig,
        on_event: Callable[[Event], None] | None = None,
        on_hub: Callable[[HubService], None] = lambda hub: None,
        *,
        keeper: Callable[[], Keeper] | None = None,
        maker: Callable[[Store, str], Maker] | None = None,
    ) -> None:
        """on_event: called on the node's loop; by default events are logged under `p2psync.trainer`. on_hub: may add
        routes to the embedded hub before it serves. keeper: see `VersionMaker`. maker: makes what makes the versions of
        a run (hex) instead of it."""
        self.config = config
        self.hub: HubService | None = None
        #: Where actors join, and where this machine reaches the same hub.
        self.hub_url = self.local_hub_url = ""
        self._emit = on_event if on_event is not None else EventLog("p2psync.trainer")
        self._on_hub = on_hub
        self._keeper = keeper
        self._maker = maker
        self._publishing = asyncio.Lock()
        self._stopping = False
        self._anchoring: asyncio.Task[None] | None = None
        self._client: HubClient | None = None
        self._store: Store | None = None
        self._versions: Maker | None = None
        self._runner: NodeRunner | None = None
        self._announcer: Announcer | None = None
        self._catch_up: CatchUp | None = None
        self._view: View | None = None
        self._chooser = ProfileChooser(config.profile, cores=thread_count())
        self._profile = ""
        self._acceptance = Acceptance()
        self._replacing: Replacing | None = None
        #: Who runs the newest version, as `until_running` saw it last.
        self.standing = Standing(-1, 0, ())

    # ---- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, start or find the hub, claim the run, announce what there is. Raises `P2PSyncError`."""
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
        found = load_run(run_file, store, self._tell)
        for remark in store.remarks:
            self._tell(remark)
        if config.supersede:
            found = found.superseding(config.supersede, int(time.time() * 1000), os.urandom(10))
        self._versions = versions = await asyncio.to_thread(self._maker or self._own_maker, store, found.run)
        trusted = frozenset({config.key.public_key().public_bytes_raw()})
        if config.hub_url is None:
            await self._embed_hub(trusted, host, advertised)
        self._client = client = self._client or HubClient(self.local_hub_url, config.token)
        first, further = announce(host, advertised, HUB_HOST if self.hub is not None else "")
        info = NodeInfo(
            node=found.node,
            role="trainer",
            region=config.region,
            host=first,
            port=config.port,
            further=further,
            name=host_name(config.name),
        )
        self._runner = runner = NodeRunner(
            NodeCore(info, NodeConfig(), random.Random(os.urandom(16))),
            client,
            store,
            trusted=trusted,
            instance=os.urandom(8).hex(),
            streams=config.streams,
            congestion=choose_congestion(config.congestion),
            measure=MeasureConfig(probe=config.probe),
            on_event=self._emit,
            on_view=self._on_view,
            on_lost=self._lost,
        )
        await runner.listen(host, config.port)
        self._view = await self._from_hub(client.view)
        state = found.next_epoch(self._view, time.time(), random.SystemRandom().getrandbits(DRAWN_BITS))
        # Durable before it is used: a restart must not use the same epoch for something else.
        await asyncio.to_thread(save_run, run_file, state)
        self._elsewhere = Elsewhere(state.run, state.epoch)
        self._announcer = announcer = Announcer(
            client,
            config.key,
            state,
            store,
            keep=config.keep,
            withdraw=runner.withdraw,
            own_nonce=self.hub.own_nonce if self.hub is not None else lambda: "",
            on_event=self._emit,
        )
        versions.epoch = state.epoch
        if isinstance(versions, VersionMaker) and versions.begins_from_another_run:
            await asyncio.to_thread(self._begin_run, versions, state.run)
        await self._from_hub(lambda: announcer.claim(take_over=config.take_over))
        if announcer.lineage():
            await asyncio.to_thread(self._remove_other_runs, store, state.run)
        self._look_back(store)
        if config.squash and isinstance(versions, VersionMaker):
            self._catch_up = self._catching_up(store, versions)
        runner.start()
        if versions.position is not None:
            runner.running(versions.position)
            self._acceptance.published(versions.position, time.monotonic())
            self._anchor_if_due()
        runner.run_beside(self._announcer.run())
        self._replacing = Replacing(self, store, self._acceptance, self._members, self._emit)
        runner.run_beside(self._replacing.run())
        for pack in store.packs():
            if not pack.complete:
                self._replacing.lost(pack.signed.id)
        if isinstance(versions, VersionMaker):
            runner.run_beside(Scrubber(versions, self._publishing, self._mended, self._emit).run())

    async def stop(self) -> None:
        """Give up what is being made, leave, and close everything."""
        self._stopping = True
        if self._versions is not None:
            self._versions.stop()
        if self._catch_up is not None:
            await self._catch_up.stop()
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
        """Never returns; raises what this trainer cannot go on after, `FencedError` once it was replaced."""
        await self.runner.until_broken()

    # ---- publishing ------------------------------------------------------------------------------------------------

    async def publish(
        self, source: Source, settled: Callable[[], bool] = lambda: True, *, checkpoint: str = ""
    ) -> Published | None:
        """Make the next version from `source`, durably, and have it announced. None if no bit differs.

        checkpoint: where it was read from, for people.

        Returns once it is durable; the announcement follows as soon as the hub can be reached (`announced` waits for
        it). Raises `FencedError` once another trainer has taken the run over, and `P2PSyncError` for a bad source or
        disk; then nothing was published. Once it has returned, raised or been cancelled, `source` is not read any more.
        """
        await self.runner.warmed()
        given_up = threading.Event()
        making = asyncio.create_task(self._publish(source, settled, given_up, checkpoint))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            given_up.set()
            await asyncio.gather(making, return_exceptions=True)
            raise

    async def announced(self) -> None:
        """Wait until the hub has everything that was published. Raises `FencedError`."""
        await self.runner.unless_broken(self.announcer.announced())

    async def anchored(self) -> None:
        """Wait until an anchor that is being made is durable."""
        if self._anchoring is not None:
            await asyncio.shield(self._anchoring)

    async def until_running(self, actors: int, patience: float = math.inf) -> Standing:
        """Wait until at least so many actors, and every one that the hub knows, run the newest version.

        patience: seconds that the others are waited for once so many run it. Returns who runs it and who does not. Who
        is waited for is told now and then; actors at a newer run, which do not take it, are not waited for. A hub that
        is away is waited for.
        """
        await self.runner.unless_broken(self._until_running(actors, patience))
        return self.standing

    async def write_out(self) -> None:
        """Have the newest version written out whole, or the next one if it is that already, from verified bits.

        What goes wrong is told.
        """
        live = self.position
        if live is None or self._stopping:
            return
        if not any(a.base is None and a.digest == live.digest.hex() for a in self.announcer.lineage()):
            await self._make_anchor("actors refuse it")
            return
        try:
            async with self._publishing:
                await asyncio.to_thread(self.versions.write_whole)
        except P2PSyncError as error:
            self._emit(Trouble(f"the published bits cannot be verified: {error}"))
        self._mended()

    def take_back(self, id: bytes) -> None:
        """A manifest cannot be had from here any more: it is retired, and what it led to written out, if need be."""
        self.announcer.give_up(id)
        self._anchor_if_due()

    @property
    def fenced(self) -> FencedError | None:
        """What replaced this trainer, if anything did."""
        return self._announcer.fenced if self._announcer is not None else None

    @property
    def position(self) -> Position | None:
        """The newest version."""
        return self.versions.position

    @property
    def versions(self) -> Maker:
        """What makes the versions; after `start`."""
        assert self._versions is not None, "not started"
        return self._versions

    @property
    def runner(self) -> NodeRunner:
        """This node in the swarm; after `start`."""
        assert self._runner is not None, "not started"
        return self._runner

    @property
    def announcer(self) -> Announcer:
        """What tells the hub; after `start`."""
        assert self._announcer is not None, "not started"
        return self._announcer

    # ---- inside ----------------------------------------------------------------------------------------------------

    async def _publish(
        self, source: Source, settled: Callable[[], bool], given_up: threading.Event, checkpoint: str
    ) -> Published | None:
        if self._catch_up is not None:
            self._catch_up.make_way()
        async with self._publishing:
            if self.fenced is not None:
                raise self.fenced
            if self._stopping:
                raise StoreError("this trainer is stopping: publish again once it is started")
            self.runner.measuring.version_comes()
            choice = self._choose(source)
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
            self._learn(made, choice)
            self._compare(made)
            event = self._offer(made, checkpoint)
        self._anchor_if_due()
        return event

    def _tell(self, trouble: str) -> None:
        self._emit(Trouble(trouble))

    def _choose(self, source: Source) -> Choice:
        link = self.config.link_mbps / 8e-6 or slowest_link(self._view.members if self._view is not None else ())
        return self._chooser.choose(sum(spec.count for spec in source.specs), link)

    def _planned_rate(self) -> float:
        """Bytes a second that the plan spreads versions at; 0 without a plan."""
        plan = self.runner.core.plan
        return plan.rate / 8e-6 if plan is not None else 0.0

    def _look_back(self, store: Store) -> None:
        """What the newest delta of an earlier life tells of the next one."""
        deltas = {a.version: a.id for a in self.announcer.lineage() if a.base is not None and not is_squash(a)}
        pack = store.get(bytes.fromhex(deltas[max(deltas)])) if deltas else None
        if pack is not None:
            m = pack.manifest
            self._chooser.seen(m.profile, m.total, m.changed, m.payload_bytes)

    def _compare(self, made: Made) -> None:
        """Tell people of a version that has little to do with the one before: that of another model, most likely."""
        manifest = made.pack.manifest
        if manifest.base is None:
            return
        rows = manifest.rows()
        after = [row.spec for row in rows if row.after]
        shared = [row.spec for row in rows if row.after and row.before]
        nbytes, kept = sum(spec.nbytes for spec in after), sum(spec.nbytes for spec in shared)
        if kept * 2 < nbytes:
            self._emit(Unlike(manifest.version, manifest.base, len(shared), len(after), kept, nbytes))

    def _learn(self, made: Made, choice: Choice) -> None:
        """Take in what a delta took, and tell people when its profile is another one than that of the last."""
        manifest = made.pack.manifest
        if manifest.base is None:
            return
        self._chooser.made(
            manifest.profile,
            manifest.total,
            manifest.changed,
            manifest.payload_bytes,
            made.encode_seconds,
            made.apply_seconds,
        )
        self.announcer.remark = f"profile {choice.profile}: {choice.why}"
        if choice.profile != self._profile:
            self._profile = choice.profile
            self._emit(ProfileChosen(choice.profile, choice.why, {f.profile: f.seconds for f in choice.forecasts}))

    def _begin_run(self, versions: Maker, run: str) -> None:
        """Write out the version that a run begins with, which is another run's."""
        made = versions.make_anchor()
        self._emit(Note(f"{run_name(run)} goes on from version {made.position.version} of the run before"))

    def _remove_other_runs(self, store: Store, run: str) -> None:
        """Remove the packs of the run that this one goes on from."""
        try:
            for pack in store.packs():
                if pack.manifest.run != run:
                    store.remove(pack.signed.id)
        except StoreError as error:
            self._emit(Trouble(f"versions of the run before are still on the disk: {error}"))

    def _own_maker(self, store: Store, run: str) -> VersionMaker:
        loop = self._loop

        def tell(message: str) -> None:
            loop.call_soon_threadsafe(self._emit, Trouble(message))

        root = self.config.store / "snapshot"
        return VersionMaker(store, root, self.config.key, run, keeper=self._keeper, on_trouble=tell)

    def _catching_up(self, store: Store, versions: VersionMaker) -> CatchUp:
        def offer(pack: Pack) -> None:
            self.runner.offer(pack)
            self.announcer.wake()

        planner = SquashPlanner()
        return CatchUp(
            store,
            Squasher(store, versions.steps, self.config.key, planner),
            planner,
            versions=versions,
            publishing=self._publishing,
            lineage=self.announcer.lineage,
            offer=offer,
            on_event=self._emit,
        )

    def _anchor_if_due(self) -> None:
        if self._anchoring is not None:
            return
        config, lineage = self.config, self.announcer.lineage()
        why = anchor_due(
            lineage,
            config.anchor_ratio,
            deltas=config.anchor_deltas,
            seconds=config.anchor_seconds,
            age=self.announcer.age(newest_anchor(lineage)),
        )
        if not lineage and self.position is not None:
            why = "none of the versions is here any more"
        if why:
            # Beside the training, which need not wait for it.
            self._anchoring = asyncio.create_task(self._make_anchor(why))

    async def _make_anchor(self, why: str) -> None:
        try:
            async with self._publishing:
                if not self._stopping:
                    self._emit(Note(f"writing the newest version out whole: {why}"))
                    self._offer(await asyncio.to_thread(self.versions.make_anchor, self._planned_rate()))
        except P2PSyncError as error:
            if not self._stopping:
                self._emit(Trouble(f"no new anchor yet: {error}"))
        finally:
            self._anchoring = None

    def _offer(self, made: Made, checkpoint: str = "") -> Published:
        self.runner.offer(made.pack)
        self.runner.running(made.position)
        self._acceptance.published(made.position, time.monotonic())
        event = published(made, checkpoint)
        self._emit(event)
        self.announcer.wake()
        return event

    def _lost(self, id: bytes) -> None:
        if self._replacing is not None:
            self._replacing.lost(id)

    async def _members(self) -> Sequence[Member]:
        assert self._client is not None
        return self._elsewhere.as_seen_here((await self._client.status()).view.members)

    def _mended(self) -> None:
        """The published bits were made anew: from an earlier version, if the store did not lead to the newest one."""
        if self.position is not None:
            self.runner.running(self.position)
        self._anchor_if_due()
        self.announcer.wake()

    async def _until_running(self, actors: int, patience: float) -> None:
        """Acknowledgements raise no revision to wait for: the hub is asked now and then."""
        clock = asyncio.get_running_loop().time
        say_at, give_up_at = clock() + SAY_EVERY, math.inf
        while True:
            await self._look_around()
            if self.standing.reached(actors):
                give_up_at = min(give_up_at, clock() + patience)
                if not self.standing.waiting or clock() >= give_up_at:
                    return
            if clock() >= say_at:
                say_at = clock() + SAY_EVERY
                self._emit(Note(f"waiting: {self.standing}"))
            await asyncio.sleep(ASK_EVERY)

    async def _look_around(self) -> None:
        with suppress(HubError):
            self.standing = standing(await self._members(), self.position)

    async def _from_hub(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the hub; where the trainer was told to wait for it, until it answers."""
        pause, told = RETRY_FIRST, False
        while True:
            try:
                return await ask()
            except HubError as error:
                if not self.config.wait_for_hub:
                    raise
                if not told:
                    self._emit(HubAway(f"{error}; waiting for it"))
                told = True
            await asyncio.sleep(pause)
            pause = min(RETRY_LAST, pause * 2)

    async def _embed_hub(self, trusted: frozenset[bytes], host: str, advertised: tuple[str, ...]) -> None:
        self.hub = HubService(
            HubConfig(trusted=trusted, ttl=self.config.ttl, embedded=True),
            token=self.config.token,
            planner=_hub_planner() if self.config.plan else None,
            on_trouble=lambda message: self._emit(Trouble(message)),
            port_option="--hub-port",
        )
        self._on_hub(self.hub)
        port = await self.hub.start(host, self.config.hub_port)
        self.local_hub_url = url_of(local_host(host), port)
        reached = reachable_host(host, advertised)
        self.hub_url = url_of(reached, port) if reached else self.local_hub_url

    def _on_view(self, view: View) -> None:
        if (event := self._elsewhere.news(view.members)) is not None:
            self._emit(event)
        self._view = view = msgspec.structs.replace(view, members=self._elsewhere.as_seen_here(view.members))
        self.announcer.viewed(view)
        if self._catch_up is not None:
            self._catch_up.viewed(view)


def _hub_planner() -> Planner:
    from p2psync.topology.plan_process import PlanProcess

    # Above the revisions of an earlier life of this hub, which nodes may still follow.
    return PlanProcess(int(time.time()))


def published(made: Made, checkpoint: str = "") -> Published:
    """What people are told of a version. checkpoint: where it was read from."""
    manifest = made.pack.manifest
    return Published(
        version=manifest.version,
        digest=manifest.digest.hex(),
        anchor=manifest.base is None,
        changed=manifest.changed,
        total=manifest.total,
        payload_bytes=manifest.payload_bytes,
        full_bytes=sum(row.spec.nbytes for row in manifest.rows() if row.after),
        chunks=manifest.chunks,
        seconds=made.seconds,
        at=time.time(),
        profile=manifest.profile,
        checkpoint=checkpoint,
    )
