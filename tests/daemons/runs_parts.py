"""Trainers, hubs and actors of one process, on one loop and over real sockets, and their events."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from checkpoint_parts import Model
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.actor.directory import open_directory
from p2psync.actor.node import ActorConfig, ActorNode
from p2psync.membership.hub import HubConfig
from p2psync.membership.records import Member, Status
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient
from p2psync.observe.events import Committed, Event
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.daemon import publish_checkpoint
from p2psync.trainer.node import TrainerNode

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TRUSTED = frozenset({KEY.public_key().public_bytes_raw()})
#: Maximum seconds of any wait; a longer one fails the test.
LIMIT = 30.0

T = TypeVar("T", bound=Event)


def small(seed: int = 0) -> Model:
    """A checkpoint of 8 kB of weights."""
    return Model(seed, shards=1, rows=16)


class Heard:
    """The events of one node."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._more = asyncio.Event()

    def __call__(self, event: Event) -> None:
        """See `Event`."""
        self.events.append(event)
        self._more.set()

    def all(self, kind: type[T]) -> list[T]:
        """The events of a type so far."""
        return [event for event in self.events if isinstance(event, kind)]

    async def one(self, kind: type[T], holds: Callable[[T], bool] = lambda event: True) -> T:
        """Waits for an event of a type for which `holds` is true."""
        async with asyncio.timeout(LIMIT):
            while True:
                self._more.clear()
                if found := [event for event in self.all(kind) if holds(event)]:
                    return found[0]
                await self._more.wait()


class Actor:
    """An actor node and its events."""

    def __init__(self, node: ActorNode, heard: Heard) -> None:
        self.node = node
        self.heard = heard

    async def runs(self, trainer: TrainerNode) -> None:
        """Wait until it is where the trainer is: run, version and digest."""
        there = trainer.position
        assert there is not None
        async with asyncio.timeout(LIMIT):
            while self.node.position is None or not _same(self.node.position, there):
                self.node._progress.clear()
                await self.node._progress.wait()

    @property
    def fetched(self) -> list[int]:
        """Versions that were committed from chunks."""
        return [event.version for event in self.heard.all(Committed)]


class Site:
    """Nodes that are started and stopped by name; a node's disk outlives it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.port = 0
        self._checkpoints = itertools.count()
        self._running: dict[str, AsyncExitStack] = {}

    async def close(self) -> None:
        """Stop whatever runs."""
        for name in list(self._running):
            await self.stop(name)

    @property
    def url(self) -> str:
        """The URL of the hub, which may not run yet."""
        return f"http://127.0.0.1:{self.port}"

    async def stop(self, name: str) -> None:
        """End a node in good order."""
        await self._running.pop(name).aclose()

    async def hub(self, ttl: float = 10.0) -> HubService:
        """A hub alone, named "hub"."""
        service = HubService(HubConfig(trusted=TRUSTED, ttl=ttl))
        self.port = await service.start("127.0.0.1", self.port)
        self._own("hub", service.stop)
        return service

    async def trainer(self, name: str, *, at_hub: bool = False, **more: Any) -> tuple[TrainerNode, Heard]:
        """A trainer; at the hub that runs alone, or with one of its own at the port of all hubs before."""
        heard = Heard()
        settings: dict[str, Any] = {
            "store": self.place / name,
            "key": KEY,
            "host": "127.0.0.1",
            "port": 0,
            "probe": False,
            "plan": False,
        }
        settings |= {"hub_url": self.url} if at_hub else {"hub_port": self.port}
        node = TrainerNode(TrainerConfig(**settings | more), heard)
        await node.start()
        self._own(name, node.stop)
        self.port = node.hub.port if node.hub is not None else self.port
        return node, heard

    async def publish(self, trainer: TrainerNode, model: Model) -> None:
        """Publish a model as it is now, and have the hub told."""
        place = self.place / f"checkpoint-{next(self._checkpoints)}"
        model.write(place)
        await publish_checkpoint(trainer, place)
        await trainer.announced()

    async def actor(self, name: str, **more: Any) -> Actor:
        """An actor that keeps `place/name`."""
        heard, into = Heard(), self.place / name
        config = ActorConfig(
            hub_url=self.url,
            trusted=TRUSTED,
            store=into / "swarm",
            host="127.0.0.1",
            probe=False,
            scrub_share=0,
            **more,
        )
        node = ActorNode(config, lambda packs: open_directory(into, packs, None, 5.0), on_event=heard)
        await node.start()
        self._own(name, node.stop)
        return Actor(node, heard)

    async def status(self, holds: Callable[[Status], bool]) -> Status:
        """The hub's status once something holds of it."""
        async with asyncio.timeout(LIMIT), HubClient(self.url) as client:
            while not holds(found := await client.status()):  # noqa: ASYNC110 (the hub tells nobody of words it hears)
                await asyncio.sleep(0.05)
            return found

    def _own(self, name: str, stop: Callable[[], Any]) -> None:
        assert name not in self._running
        self._running[name] = AsyncExitStack()
        self._running[name].push_async_callback(stop)


def actors(status: Status) -> list[Member]:
    """The actors of a status."""
    return [member for member in status.view.members if member.info.role == "actor"]


def _same(one: Any, two: Any) -> bool:
    return (one.run, one.version, one.digest) == (two.run, two.version, two.digest)


@asynccontextmanager
async def site_at(place: Path) -> AsyncIterator[Site]:
    """A site whose nodes are stopped at the end."""
    made = Site(place)
    try:
        yield made
    finally:
        await made.close()
