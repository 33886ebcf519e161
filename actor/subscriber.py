"""Keeps a live torch module at the newest version during a generation loop.

    from p2psync import ActorConfig, Subscriber

    with Subscriber(policy, ActorConfig(hub_url=url, trusted="trainer.pub", store="actor")) as subscriber:
        while True:
            with subscriber.serving() as position:
                generate(policy)          # every weight is that of position.version, until the block ends

Fetching and staging go on during generation; a commit waits for the end of a `serving` block, and a block that begins
during a commit waits for it: milliseconds, in proportion to the changed bits.

A version that does not fit the module (other names, shapes or dtypes) raises `MisfitError` where it is waited for; the
live version goes on being served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from torch import nn

from p2psync.actor.commit_lock import CommitLock
from p2psync.actor.live_version import LiveVersion
from p2psync.actor.node import ActorConfig, ActorNode
from p2psync.actor.obstacle import Obstacle
from p2psync.actor.work_client import WorkClient
from p2psync.actor.work_queue import WorkQueue
from p2psync.delta.tensors import unit_widths
from p2psync.engines.base import PathStep
from p2psync.engines.module.engine import ModuleEngine, ModuleStage, Pause
from p2psync.engines.module.table import Names
from p2psync.errors import EngineError, LeaseError, MisfitError, ModuleError, UsageError, WaitTimeoutError
from p2psync.membership.work import Verdict, WorkGrant
from p2psync.net.background import BackgroundNode
from p2psync.observe.events import Event
from p2psync.observe.log_events import EventLog
from p2psync.protocol.versions import Position


class _SubscriberEngine(ModuleEngine):
    """The engine of the module, which reports versions that do not fit it, and those that it stages."""

    def __init__(
        self, module: nn.Module, names: Names | None, pause: Pause, told: Callable[[EngineError | None], None]
    ) -> None:
        super().__init__(module, names, pause=pause)
        self._told = told

    def stage(self, path: Sequence[PathStep]) -> ModuleStage:
        """See `Engine.stage`."""
        try:
            stage = super().stage(path)
        except (MisfitError, ModuleError) as error:
            self._told(error)
            raise
        self._told(None)
        return stage


class Subscriber:
    """An actor node in a thread of its own, whose engine is one module: a context manager, or `start` and `close`."""

    def __init__(
        self,
        module: nn.Module,
        config: ActorConfig,
        *,
        names: Names | None = None,
        on_event: Callable[[Event], None] | None = None,
        adopt: bool = False,
    ) -> None:
        """names: published names by state_dict keys, a mapping or a function, with wrappers looked through; None leaves
        a tensor out (docs/guides/modules.md). on_event: called in the node's thread; by default events are logged under
        `p2psync.subscriber`. adopt: the module holds weights that may be those of a version, such as the base model: if
        they are, bit for bit, only deltas are fetched.

        Raises `ModuleError` for a module that cannot be kept live as it is, such as a sharded one.
        """
        if not isinstance(config, ActorConfig):
            raise UsageError(f"config={config!r}: give an ActorConfig")
        self._config = config
        self._adopt = adopt
        self._commit_lock = CommitLock()
        self.engine = _SubscriberEngine(module, names, self._commit_lock.write_lock, self._judged)
        self._on_event = on_event if on_event is not None else EventLog("p2psync.subscriber")
        self._obstacle = Obstacle(config.hub_url)
        #: Why the newest version cannot become live in this module.
        self._misfit: EngineError | None = None
        self._misfit_met = asyncio.Event()
        self._background: BackgroundNode[ActorNode] = BackgroundNode("Subscriber", "p2psync-actor")
        self._work: WorkClient | None = None

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the node; once. A hub that cannot be reached is tried again, with a warning. Raises `P2PSyncError`."""
        node = self._background.start(self._make_node, self._begin)
        self._work = WorkClient(node.client)
        return self

    def close(self) -> None:
        """Leave the swarm; the module stays as it is. Again, or before `start`: no effect."""
        if self._background.is_open:
            self._commit_lock.end(UsageError("the subscriber is closed: serve inside its with-block"))
            self._background.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def node(self) -> ActorNode:
        """The node in the swarm. Raises `UsageError` before `start`."""
        return self._background.node

    # ---- serving ---------------------------------------------------------------------------------------------------

    @contextmanager
    def serving(self) -> Iterator[Position]:
        """Hold the live version still. Waits for the first version. Any number of threads may serve at a time.

        Blocks may be nested. Raises `UsageError` before `start` and after `close`, `MisfitError` while nothing is live
        because the newest version does not fit the module, and what the node cannot go on after, such as a wrong join
        token or key.
        """
        _ = self._background.node  # raises before `start`
        with self._commit_lock.read_lock(self._is_ready):
            position = self.engine.position
            assert position is not None
            yield position

    @property
    def live(self) -> LiveVersion:
        """The live version, for a `p2psync.actor.rollout_server` in the same process; on any loop."""
        return LiveVersion(self._commit_lock, lambda: self.engine.position)

    def wait_for(self, version: int, timeout: float) -> None:
        """Wait until `version` or a later one is live and acknowledged.

        Raises `WaitTimeoutError` after `timeout` seconds, which says what is missing; `MisfitError` for a version that
        does not fit the module; and as `serving`.
        """
        loop, node = self._background.loop, self._background.node
        try:
            loop.call(self._until(node, version), timeout)
        except WaitTimeoutError:
            raise
        except TimeoutError:
            raise WaitTimeoutError(
                f"version {version} is not live after {timeout:g} s: {self._obstacle.line(self.engine.position)}"
            ) from None

    def lease_work(self, max_items: int = 1, wait: float = 5.0) -> WorkGrant:
        """Claim rollout work; without items if there was none. Raises `LeaseError` while this node is no member."""
        lease, version = self._membership()
        if lease is None or self._work is None:
            raise LeaseError("not a member of the hub now; joining again")
        return self._background.loop.call(self._work.lease(lease, max_items, wait, version))

    def complete_work(
        self, work: str, item: str, result: bytes, position: Position, tokens: int = 0, *, timeout: float = 120.0
    ) -> Verdict:
        """Hand in a result of `tokens` tokens, made under `position`; for `timeout` seconds, while the ledger is full
        or cannot be reached. Raises `HubError`."""
        if self._work is None:
            raise self._background.not_started()
        call = self._work.deliver(
            *(work, item, result),
            version=position.version,
            digest=position.digest.hex(),
            tokens=tokens,
            timeout_seconds=timeout,
        )
        return self._background.loop.call(call).verdict

    def work_queue(self, slots: int) -> WorkQueue:
        """Work leased ahead for a generator of `slots` items at a time, and results handed in meanwhile; a context
        manager, to be left before this one."""
        if self._work is None:
            raise UsageError("work is leased inside the subscriber's with-block")
        return WorkQueue(self._background.loop, self._work, self._membership, slots)

    def _membership(self) -> tuple[str | None, int | None]:
        """The lease of the hub, and the live version."""
        position = self.engine.position
        return self.node.runner.core.membership.lease, None if position is None else position.version

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _make_node(self) -> ActorNode:
        digest = self.engine.digest().hex() if self._adopt else ""
        widths = unit_widths(self.engine.table())
        return ActorNode(
            self._config, lambda store: self.engine, local_digest=digest, widths=widths, on_event=self._hear
        )

    async def _begin(self, node: ActorNode) -> None:
        await node.start()
        self._watching = asyncio.create_task(self._watch(node))

    async def _watch(self, node: ActorNode) -> None:
        try:
            await node.until_broken()
        except Exception as error:  # whatever it is: generation must hear of it
            self._commit_lock.end(error)

    async def _until(self, node: ActorNode, version: int) -> None:
        """Raises `MisfitError`, also if it was met before, unless the version is live already."""
        reached, refused = asyncio.create_task(node.until(version)), asyncio.create_task(self._misfit_met.wait())
        try:
            await asyncio.wait((reached, refused), return_when=asyncio.FIRST_COMPLETED)
            live = node.position
            if self._misfit is not None and (live is None or live.version < version) and not reached.done():
                raise self._misfit
            await reached
        finally:
            reached.cancel()
            refused.cancel()

    def _judged(self, misfit: EngineError | None) -> None:
        """In the engine's thread: whether the newest version fits the module."""
        self._misfit = misfit
        self._background.loop.soon(self._misfit_met.clear if misfit is None else self._misfit_met.set)
        self._commit_lock.recheck()

    def _is_ready(self) -> bool:
        if self.engine.position is None and self._misfit is not None:
            raise self._misfit
        return self.engine.position is not None

    def _hear(self, event: Event) -> None:
        self._obstacle.hear(event)
        self._commit_lock.recheck()
        self._on_event(event)
