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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from p2psync.arguments import as_directory, as_public_keys
from p2psync.engines.base import ClosableEngine, Engine, InspectableEngine
from p2psync.engines.relay import RelayEngine
from p2psync.errors import UsageError
from p2psync.membership.records import NodeInfo, Role
from p2psync.membership.runs import NEWEST, parse_follow
from p2psync.net.addresses import advertised_hosts, listen_host
from p2psync.net.hub_client import HubClient
from p2psync.net.listening import announce
from p2psync.net.measuring import MeasureConfig
from p2psync.net.runner import NodeRunner
from p2psync.net.tcp import AUTO_CONGESTION, choose_congestion
from p2psync.observe.events import Event
from p2psync.protocol.versions import Position
from p2psync.store.packs import Store
from p2psync.store.records import recover_record, save_record
from p2psync.swarm.follower import Follower
from p2psync.swarm.node import NodeConfig, NodeCore

#: Seconds between an engine's looks for damage, each a `stat` of every file. Readers may see damage for so long.
INSPECT_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """Settings of an actor.

    hub_url: where to join. trusted: public keys whose manifests are believed, raw or as text. store: directory of
    chunks, a path or text.
    host, port: where peers connect (host "": every address, of IPv4 and IPv6; port 0: any; None: this actor cannot be
    reached and only dials out). advertise: addresses told to peers, separated by commas; "" lets the hub see one.
    scrub_share: see `EngineScrubber`. role: actor or relay.
    streams: connections to each peer, 0: as measurements say. congestion: of these connections, see
    `p2psync.net.tcp.choose_congestion`. probe: measure links with short bursts. follow_run: the run to follow, see
    `p2psync.membership.runs.parse_follow`.
    """

    hub_url: str
    trusted: frozenset[bytes]
    store: Path
    host: str = ""
    port: int | None = 0
    advertise: str = ""
    region: str = ""
    token: str | None = None
    streams: int = 0
    congestion: str = AUTO_CONGESTION
    probe: bool = True
    scrub_share: float = 0.02
    role: Role = "actor"
    follow_run: str = NEWEST

    def __post_init__(self) -> None:
        """Raises `UsageError` for a hub, store or keys that are none."""
        if not isinstance(self.hub_url, str):
            raise UsageError(f"hub_url={self.hub_url!r}: give the hub's address, like http://host:7070")
        object.__setattr__(self, "store", as_directory(self.store, "store"))
        object.__setattr__(self, "trusted", as_public_keys(self.trusted, "trusted"))


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
        on_event: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """engine_of: makes the engine, given the store whose chunks it may read again. local_digest (hex): of weights
        at hand that are no known position."""
        self.config = config
        self._engine_of = engine_of
        self._local_digest = local_digest
        self._emit = on_event
        self._progress = asyncio.Event()
        self._engine: Engine | None = None

    async def start(self) -> None:
        """Opens store and engine, listens, and joins. An unreachable hub is tried again.

        Raises `P2PSyncError` for an error that does not pass by itself: of the store, the engine, the port, the url.
        """
        config = self.config
        host = listen_host(config.host)
        first, further = announce(host, advertised_hosts(config.advertise))
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
                warm=config.role != "relay",
                on_event=self._on_event,
                on_view=lambda view: self._progress.set(),
                on_told=self._progress.set,
            )
            await self.runner.listen(host, config.port)
            self.runner.start()
        except BaseException:
            self._close()
            await self.client.close()
            raise
        for remark in self.store.remarks:
            self.runner.trouble(remark)
        self.runner.run_beside(self._inspect())
        if config.scrub_share > 0 and config.role != "relay":
            self.runner.run_beside(self._scrub())

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
                self.runner.doubt(f"bits of version {position.version} were damaged here; fetching it anew", None)

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
        if live is None or live.version < version or membership.untold or membership.view is None:
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
        tell = self.store.remarks.append
        identity = recover_record(path, _Identity, tell, "this node goes by a new name")
        if identity is None:
            identity = _Identity(os.urandom(16).hex())
            save_record(path, identity)
        return identity.node


def make_relay(config: ActorConfig, *, on_event: Callable[[Event], None] = lambda event: None) -> ActorNode:
    """Returns a relay: it fetches and serves what an actor would, and keeps no weights."""
    config = dataclasses.replace(config, role="relay")
    return ActorNode(config, lambda packs: RelayEngine(config.store / "relay.json", packs), on_event=on_event)


def chunk_reader(store: Store) -> Callable[[bytes, int], bytes | None]:
    """Returns the function by which an engine reads chunks that the store still holds."""

    def read(manifest_id: bytes, index: int) -> bytes | None:
        pack = store.get(manifest_id)
        return pack.read(index) if pack is not None else None

    return read
