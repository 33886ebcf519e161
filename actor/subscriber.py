"""Keeping a live torch module at the newest version, beside a generation loop.

    with Subscriber(policy, ActorConfig(hub_url=url, trusted=frozenset({key}), store=Path("actor"))) as subscriber:
        while True:
            with subscriber.serving() as position:
                generate(policy)          # every weight is that of position.version, until the block ends

Fetching and staging go on during generation; a commit waits for the end of a `serving` block, and a block that begins
during a commit waits for it: milliseconds, for what changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from torch import nn

from actor.gate import Gate
from actor.live_version import LiveVersion
from actor.node import ActorConfig, ActorNode
from actor.work_client import WorkClient
from actor.work_queue import WorkQueue
from p2psync.engines.module import ModuleEngine
from p2psync.errors import HubError, LeaseError, UsageError
from p2psync.membership.work import Verdict, WorkGrant
from p2psync.net.background import BackgroundLoop
from p2psync.observe.events import Event
from p2psync.protocol.versions import Position

T = TypeVar("T")


class Subscriber:
    """An actor node in a thread of its own, with one module as its engine. A context manager."""

    def __init__(
        self,
        module: nn.Module,
        config: ActorConfig,
        *,
        on_event: Callable[[Event], None] = lambda event: None,
        adopt: bool = False,
    ) -> None:
        """on_event: called in the node's thread. adopt: the module holds weights that may be those of a version, such
        as the base model: if they are, bit for bit, only deltas are fetched."""
        self._gate = Gate()
        self.engine = ModuleEngine(module, pause=self._gate.closed)
        self._loop = BackgroundLoop("p2psync-actor")
        self._on_event = on_event
        self.node = self._loop.call(_make(lambda: self._node(config, adopt)))
        self._work: WorkClient | None = None

    def __enter__(self) -> Subscriber:
        try:
            self._loop.call(self._start())
        except BaseException:
            self._loop.close()
            raise
        self._work = WorkClient(self.node.client)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.end(UsageError("the subscriber is closed: serve inside its with-block"))
        try:
            self._loop.call(self.node.stop())
        finally:
            self._loop.close()

    @contextmanager
    def serving(self) -> Iterator[Position]:
        """Hold the live version still. Waits for the first version. Any number of threads may serve at a time.

        Blocks may be nested. Raises `UsageError` once the subscriber is closed, and what the node cannot go on after,
        such as a wrong join token or key.
        """
        with self._gate.held(lambda: self.engine.position is not None):
            position = self.engine.position
            assert position is not None
            yield position

    @property
    def live(self) -> LiveVersion:
        """What is live, for a rollout face beside this subscriber (`actor.rollout_face`); on any loop."""
        return LiveVersion(self._gate, lambda: self.engine.position)

    def wait_for(self, version: int, timeout: float) -> None:
        """Wait until `version` or a later one is live and acknowledged. Raises TimeoutError, and as `serving`."""
        self._loop.call(self.node.until(version), timeout)

    def lease_work(self, max_items: int = 1, wait: float = 5.0) -> WorkGrant:
        """Claim rollout work; without items if there was none. Raises `LeaseError` while this node is no member."""
        lease, version = self._membership()
        if lease is None or self._work is None:
            raise LeaseError("not a member of the hub now; joining again")
        return self._loop.call(self._work.lease(lease, max_items, wait, version))

    def complete_work(
        self, work: str, item: str, result: bytes, position: Position, tokens: int = 0, *, patience: float = 120.0
    ) -> Verdict:
        """Hand in a result of `tokens` tokens, made under `position`; for `patience` seconds, while the ledger is full
        or cannot be reached. Raises `HubError`."""
        if self._work is None:
            raise HubError("not started")
        call = self._work.deliver(
            *(work, item, result),
            version=position.version,
            digest=position.digest.hex(),
            tokens=tokens,
            patience=patience,
        )
        return self._loop.call(call).verdict

    def work_queue(self, slots: int) -> WorkQueue:
        """Work leased ahead for a generator of `slots` items at a time, and results handed in meanwhile; a context
        manager, to be left before this one."""
        if self._work is None:
            raise UsageError("work is leased inside the subscriber's with-block")
        return WorkQueue(self._loop, self._work, self._membership, slots)

    def _membership(self) -> tuple[str | None, int | None]:
        """The lease of the hub, and the live version."""
        position = self.engine.position
        return self.node.runner.core.membership.lease, None if position is None else position.version

    def _node(self, config: ActorConfig, adopt: bool) -> ActorNode:
        digest = self.engine.digest().hex() if adopt else ""
        return ActorNode(config, lambda store: self.engine, local_digest=digest, on_event=self._hear)

    async def _start(self) -> None:
        await self.node.start()
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        try:
            await self.node.until_broken()
        except Exception as error:  # whatever it is: generation must hear of it
            self._gate.end(error)

    def _hear(self, event: Event) -> None:
        self._gate.look()
        self._on_event(event)


async def _make(function: Callable[[], T]) -> T:
    return function()
