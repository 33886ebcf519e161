"""The actor's node: keeps an engine at the newest version of a swarm. A relay is the same without weights.

It joins the hub, finds its peers, fetches announced versions, stages them beside the live weights, commits,
acknowledges, and serves its chunks to peers. All that it needs to continue after a crash is in its store and its
engine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from p2psync.arguments import Directory, PublicKeys, as_directory, as_public_keys, host_name, required
from p2psync.engines.base import ClosableEngine, Engine, InspectableEngine
from p2psync.engines.relay import RelayEngine
from p2psync.errors import UsageError
from p2psync.membership.records import NodeInfo, Role
from p2psync.membership.runs import NEWEST, parse_follow
from p2psync.net.addresses import advertised_hosts, check_url, listen_host
from p2psync.net.hub_client import HubClient
from p2psync.net.listening import announced_hosts
from p2psync.net.runner import NodeRunner
from p2psync.net.tcp import AUTO_CONGESTION, choose_congestion
from p2psync.observe.events import Event
from p2psync.observe.log_events import EventLog
from p2psync.protocol.versions import Position
from p2psync.setting_checks import check_choice, check_flags, check_number, check_texts
from p2psync.store.packs import Store
from p2psync.store.records import recover_record, save_record
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.control.config import MeasureConfig
from p2psync.swarm.node import NodeCore
from p2psync.swarm.synchronizer.follower import Follower
from p2psync.warmup import WIDTHS

#: Seconds between an engine's looks for damage, each a `stat` of every file. Readers may see damage for so long.
INSPECT_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """Settings of an actor, one line for each: meaning, unit, default.

    hub_url: the hub to join, like http://host:7070 [required]
    trusted: the publisher's public keys, one or several; each as text (ed25519:…), 32 raw bytes, or a file [required]
    store: directory of chunks; a path or text [required]
    host: address to listen on; "": every address, of IPv4 and IPv6 [""]
    port: TCP port where peers connect; 0: any; none: cannot be reached from outside, only dials out [0]
    advertise: addresses told to peers, separated by commas; "": what the hub sees [""]
    region: where this machine is, any word; nodes of one region reach each other cheaply [""]
    token: the join token of the hub; none: it asks for none [none]
    streams: TCP connections to each peer, 1 to 16; 0: as measurements say [0]
    congestion: congestion control of connections to peers: auto (bbr, else cubic) or its name in the kernel [auto]
    probe: measure links with short bursts, which cost up to 1 % of a link [yes]
    scrub_share: share of a core, 0 to 1, that reads all weights again in search of damage; 0: never [0.02]
    role: actor, or relay, which keeps no weights [actor]
    follow_run: the run to follow: newest (never an older one), any (the hub's), or the beginning of a run's id [newest]
    name: what people read in the status; "": the name of this machine [""]
    """

    hub_url: str
    trusted: PublicKeys = required(PublicKeys)
    store: Directory = required(Directory)
    host: str = ""
    port: int | None = 0
    advertise: str = ""
    region: str = ""
    token: str | None = dataclasses.field(default=None, repr=False)
    streams: int = 0
    congestion: str = AUTO_CONGESTION
    probe: bool = True
    scrub_share: float = 0.02
    role: Role = "actor"
    follow_run: str = NEWEST
    name: str = ""

    def __post_init__(self) -> None:
        """Raises `UsageError` for a setting that cannot be meant."""
        if not isinstance(self.hub_url, str):
            raise UsageError(f"hub_url={self.hub_url!r}: give the hub's address, like http://host:7070")
        object.__setattr__(self, "store", as_directory(self.store, "store"))
        object.__setattr__(self, "trusted", as_public_keys(self.trusted, "trusted"))
        check_url(self.hub_url)
        if self.port is not None:
            check_number(self.port, "port", 0, 65535, whole=True)
        check_number(self.streams, "streams", 0, 16, whole=True)
        check_number(self.scrub_share, "scrub_share", 0, 1)
        check_choice(self.role, "role", ("actor", "relay"))
        names = ("host", "advertise", "region", "congestion", "follow_run", "name")
        check_texts({name: getattr(self, name) for name in names})
        check_flags({"probe": self.probe})
        parse_follow(self.follow_run)


class _Identity(msgspec.Struct, frozen=True):
    node: str


class ActorNode:
    """One actor. `start`, then it runs by itself until `stop`; on one loop."""

    def __init__(
        self,
        config: ActorConfig,
        engine_of: Callable[[Store], Engine],
        *,
        local_digest: str = "",
        widths: Collection[int] = WIDTHS,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """engine_of: makes the engine, given the store whose chunks it may read again. local_digest (hex): of weights
        at hand that are no known position. widths: of the units that versions have (bytes). on_event: called on the
        node's loop; by default events are logged under `p2psync.actor`."""
        self.config = config
        self._engine_of = engine_of
        self._local_digest = local_digest
        self._widths = widths if config.role != "relay" else ()
        self._emit = on_event if on_event is not None else EventLog("p2psync.actor")
        self._progress = asyncio.Event()
        self._engine: Engine | None = None

    async def start(self) -> None:
        """Opens store and engine, listens, and joins. An unreachable hub is tried again.

        Raises `P2PSyncError` for an error that does not pass by itself: of the store, the engine, the port, the url.
        """
        config = self.config
        host = listen_host(config.host)
        first, further = announced_hosts(host, advertised_hosts(config.advertise))
        self.client = HubClient(config.hub_url, config.token)
        self.store = await asyncio.to_thread(Store, config.store / "packs")
        try:
            self._engine = await asyncio.to_thread(self._engine_of, self.store)
            local = self._local_digest
            if not local and isinstance(self._engine, InspectableEngine):
                local = await asyncio.to_thread(self._engine.unidentified_digest)
            follower = Follower(self.engine.position, local, follow=parse_follow(config.follow_run))
            info = NodeInfo(
                node=self._identity(),
                role=config.role,
                region=config.region,
                host=first,
                port=config.port or 0,
                further=further,
                name=host_name(config.name),
            )
            self.runner = NodeRunner(
                NodeCore(info, NodeConfig(), random.Random(os.urandom(16)), follower),
                self.client,
                self.store,
                trusted=config.trusted,
                instance=os.urandom(8).hex(),
                engine=self.engine,
                streams=config.streams,
                congestion=choose_congestion(config.congestion),
                measure=MeasureConfig(probe=config.probe),
                widths=self._widths,
                on_event=self._on_event,
                on_view=lambda view: self._progress.set(),
                on_reported=self._progress.set,
            )
            await self.runner.listen(host, config.port)
            self.runner.start()
        except BaseException:
            self._close()
            await self.client.close()
            raise
        for diagnostic in self.store.diagnostics:
            self.runner.trouble(diagnostic)
        self.runner.start_task(self._inspect())
        if config.scrub_share > 0 and config.role != "relay":
            self.runner.start_task(self._scrub())

    async def stop(self) -> None:
        """Leaves the swarm, waits for the engine to finish its work, and closes everything."""
        await self.runner.stop()
        await self.client.close()
        self._close()

    async def until(self, version: int) -> None:
        """Waits until `version` or a later one, of the run that the hub offers, is live and acknowledged.

        Raises as `until_broken`.
        """
        await self.runner.unless_broken(self._until(version))

    async def until_broken(self) -> None:
        """Never returns. Raises an error after which this actor cannot continue, such as a wrong join token or key."""
        await self.runner.until_broken()

    def _close(self) -> None:
        if isinstance(self._engine, ClosableEngine):
            self._engine.close()
        self.store.close()

    async def _inspect(self) -> None:
        """Looks for damage on disk every second, by names, sizes and times alone."""
        assert self.runner.driver is not None
        while isinstance(self.engine, InspectableEngine):
            await self.runner.driver.inspect()
            await asyncio.sleep(INSPECT_SECONDS)

    async def _scrub(self) -> None:
        from p2psync.actor.scrub import EngineScrubber  # loads numba, which a relay does without

        assert self.runner.driver is not None

        def refetch(position: Position) -> None:
            # An inspectable engine has found the damage by its own scrub, and has fallen back.
            if not isinstance(self.engine, InspectableEngine):
                self.runner.mark_corrupt(
                    f"bits of version {position.version} were damaged here; fetching it again", None
                )

        follower = self.runner.core.follower
        assert follower is not None
        scrubber = EngineScrubber(self.engine, self.runner.driver.in_worker, self.config.scrub_share)
        await scrubber.run(lambda: follower.position, refetch)

    async def _until(self, version: int) -> None:
        while not self._runs(version):
            self._progress.clear()
            await self._progress.wait()

    def _runs(self, version: int) -> bool:
        live, membership = self.position, self.runner.core.membership
        if live is None or live.version < version or membership.has_unreported_version or membership.view is None:
            return False
        return membership.view.run in ("", live.run)  # a version of another run is another version

    def _on_event(self, event: Event) -> None:
        self._emit(event)
        self._progress.set()

    @property
    def position(self) -> Position | None:
        """The live version."""
        return self.engine.position

    @property
    def engine(self) -> Engine:
        """The engine; after `start`."""
        assert self._engine is not None, "not started"
        return self._engine

    def _identity(self) -> str:
        path = self.config.store / "node.json"
        tell = self.store.diagnostics.append
        identity = recover_record(path, _Identity, tell, "this node goes by a new name")
        if identity is None:
            identity = _Identity(os.urandom(16).hex())
            save_record(path, identity)
        return identity.node


def make_relay(config: ActorConfig, *, on_event: Callable[[Event], None] | None = None) -> ActorNode:
    """Returns a relay: it fetches and serves the chunks that an actor would, and keeps no weights."""
    config = dataclasses.replace(config, role="relay")
    return ActorNode(config, lambda packs: RelayEngine(config.store / "relay.json", packs), on_event=on_event)


def chunk_reader(store: Store) -> Callable[[bytes, int], bytes | None]:
    """Returns the function by which an engine reads chunks that the store still holds."""

    def read(manifest_id: bytes, index: int) -> bytes | None:
        pack = store.get(manifest_id)
        return pack.read(index) if pack is not None else None

    return read
