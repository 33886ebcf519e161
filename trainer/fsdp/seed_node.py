"""The node of a rank above 0: it serves the rank's chunks of each version, and fetches none."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable

import msgspec

from p2psync.arguments import host_name
from p2psync.membership.records import HUB_HOST, NodeInfo
from p2psync.net.addresses import advertised_hosts, is_loopback, listen_host
from p2psync.net.background import BackgroundLoop
from p2psync.net.hub_client import HubClient
from p2psync.net.listening import announced_hosts
from p2psync.net.runner import NodeRunner
from p2psync.net.tcp import choose_congestion
from p2psync.observe.events import Event, Trouble
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.control.config import MeasureConfig
from p2psync.swarm.node import NodeCore
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.fsdp.orders import ServeOrder
from p2psync.trainer.run_state import load_run, save_run


class SeedNode:
    """One rank in the swarm, on a loop in a thread of its own. Called from other threads."""

    def __init__(self, config: TrainerConfig, on_event: Callable[[Event], None]) -> None:
        """config: of this rank; its hub, key and profile are used by rank 0 only."""
        self._config = config
        self._emit = on_event
        self._loop = BackgroundLoop("p2psync-seed")
        self._client: HubClient | None = None
        self._runner: NodeRunner | None = None

    @property
    def runner(self) -> NodeRunner:
        """The node; after `start`."""
        assert self._runner is not None, "not started"
        return self._runner

    def start(self, order: ServeOrder, store: Store) -> str:
        """Join the swarm of this hub, serve what the store holds; returns the node's name. Raises `P2PSyncError`."""
        return self._loop.call(self._start(order, store))

    def offer(self, pack: Pack) -> None:
        """Serve a pack."""
        self._loop.run(lambda: self.runner.offer(pack))

    def withdraw(self, id: bytes) -> None:
        """Stop serving a manifest."""
        self._loop.run(lambda: self.runner.withdraw(id))

    def close(self) -> None:
        """Leave the swarm."""
        try:
            self._loop.call(self._stop())
        finally:
            self._loop.close()

    async def _start(self, order: ServeOrder, store: Store) -> str:
        config = self._config
        state = load_run(config.store / "run.json", store, lambda line: self._emit(Trouble(line)))
        # The name in the swarm stays over restarts; run and epoch are rank 0's.
        await asyncio.to_thread(save_run, config.store / "run.json", msgspec.structs.replace(state, run=order.run))
        self._client = HubClient(order.hub, config.token)
        # On the hub's machine its own address is of no use to peers, which reach it where they reach the hub.
        shares_hub_host = is_loopback(self._client.url.host or "")
        host = listen_host(config.host)
        first, further = announced_hosts(host, advertised_hosts(config.advertise), HUB_HOST if shares_hub_host else "")
        info = NodeInfo(
            node=state.node,
            role="trainer",
            region=config.region,
            host=first,
            port=config.port,
            further=further,
            name=host_name(config.name),
        )
        self._runner = NodeRunner(
            NodeCore(info, NodeConfig(), random.Random(os.urandom(16))),
            self._client,
            store,
            trusted=frozenset({order.key}),
            instance=os.urandom(8).hex(),
            streams=config.streams,
            congestion=choose_congestion(config.congestion),
            measure=MeasureConfig(probe=config.probe),
            widths=(),
            on_event=self._emit,
        )
        await self._runner.listen(host, config.port)
        self._runner.start()
        return state.node

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.stop()
        if self._client is not None:
            await self._client.close()
