"""Publishing a live torch module from a training loop.

    from p2psync import Publisher, TrainerConfig

    with Publisher(policy, TrainerConfig(store="run", key="trainer.key")) as publisher:
        for batch in batches:
            optimizer.step()
            publisher.publish()

`publish` returns once the version is durable; actors get it while training goes on. The module must not change while
`publish` runs, which is so when the training thread itself calls it.

Where the optimizer holds fp32 masters, `masters` names them, and their rounded bits are published in place of the
module's. With `resident` the module's own bf16 parameters are the trainer's copy of the published bits, so that none
is kept beside them: then nobody but `publish` may write them (see `p2psync.trainer.versions.resident`), and it is
`publish` that refreshes them:

    with Publisher(policy, config, masters=masters, resident=True) as publisher:
        for batch in batches:
            optimizer.step()        # updates the masters
            publisher.publish()     # and this the policy
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import torch
from torch import nn

from p2psync.arguments import as_directory
from p2psync.delta.tensors import unit_widths
from p2psync.engines.module.table import LiveTable, ModuleTable, Names
from p2psync.errors import UsageError, WaitTimeoutError
from p2psync.net.background import BackgroundLoop, BackgroundNode
from p2psync.net.hub import HubService
from p2psync.observe.events import Event, Published
from p2psync.observe.log_events import EventLog
from p2psync.protocol.versions import Position
from p2psync.store.packs import Store
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.node import TrainerNode
from p2psync.trainer.rollouts import Rollouts
from p2psync.trainer.versions.builder import VersionBuilder
from p2psync.trainer.versions.device_path import DevicePath
from p2psync.trainer.versions.resident import ResidentSnapshot
from p2psync.trainer.versions.snapshot import PublishedState
from p2psync.trainer.versions.tensors import MasterSource, TensorSource

T = TypeVar("T")


class Publisher:
    """A trainer node in a thread of its own, publishing one module: a context manager, or `start` and `close`."""

    def __init__(
        self,
        module: nn.Module,
        config: TrainerConfig,
        *,
        names: Names | None = None,
        files: Path | str | None = None,
        masters: Mapping[str, torch.Tensor] | None = None,
        resident: bool = False,
        on_device: bool | None = None,
        twin: bool = False,
        on_event: Callable[[Event], None] | None = None,
        on_hub: Callable[[HubService], None] = lambda hub: None,
        rollouts: Rollouts | None = None,
        version_builder: Callable[[Store, str], VersionBuilder] | None = None,
    ) -> None:
        """names: published names by state_dict keys, a mapping or a function, with wrappers looked through; None leaves
        a tensor out (docs/guides/modules.md). files: a directory whose files other than weights go along. masters: fp32
        masters of the module's bf16 parameters, by their keys in its state_dict; read again at each publish. resident:
        see above.

        on_device: find changes where the tensors are; by default if any is on a GPU. twin: keep a second copy of the
        published bits there, instead of streaming them there for each version. on_event: called in the node's thread;
        by default events are logged under `p2psync.publisher`. on_hub: may add routes to the embedded hub before it
        serves. rollouts: the ledger to serve there; it admits each version that is published. version_builder: see
        `TrainerNode`.

        Raises `UsageError` for masters that do not fit, and `ModuleError` for a module that cannot be published as it
        is, such as a sharded one.
        """
        self._config = config
        self._files = as_directory(files, "files") if files is not None else None
        self._module = module
        self._table = LiveTable(module, names)
        self._master_keys = _master_keys(self._table(), masters or {})
        self._masters = masters
        if resident and not masters:
            raise UsageError("resident: there are no masters to refresh the module from")
        if not isinstance(config, TrainerConfig):
            raise UsageError(f"config={config!r}: give a TrainerConfig")
        if rollouts is not None and config.hub_url is not None:
            raise UsageError("rollouts: the ledger is served by the publisher's own hub, not by one elsewhere")
        if on_device is None:
            tensors = [*self._table().rows.values(), *(masters or {}).values()]
            on_device = any(tensor.is_cuda for tensor in tensors)
        self._path = DevicePath(twin=twin, everywhere=on_device) if on_device else None
        self._resident = resident
        self._rollouts = rollouts
        self._on_event = on_event if on_event is not None else EventLog("p2psync.publisher")
        self._on_hub = on_hub
        self._version_builder = version_builder
        self._background: BackgroundNode[TrainerNode] = BackgroundNode("Publisher", "p2psync-trainer")

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the node; once. Raises `P2PSyncError`; the publisher is closed then."""
        self._background.start(self._make_node, self._begin)
        return self

    def close(self) -> None:
        """Leave the swarm and close everything. Again, or before `start`: no effect."""
        self._background.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def node(self) -> TrainerNode:
        """The node in the swarm. Raises `UsageError` before `start`."""
        return self._background.node

    @property
    def hub_url(self) -> str:
        """The URL where actors join."""
        return self.node.hub_url

    @property
    def position(self) -> Position | None:
        """The newest version."""
        return self.node.position

    def publish(self, *, announced: bool = False) -> Published | None:
        """Publish the module as it is now; None if no bit differs from the last version.

        announced: wait until the hub knows of it too. Raises as `TrainerNode.publish`, `ModuleError` if the module's
        tensors are no longer those that it had at first, and `UsageError` before `start`.
        """
        loop, node = self._background.loop, self._background.node
        event = loop.call(node.publish(self._source()))
        if self._path is not None:
            self._path.published(self.position)
        if announced:
            loop.call(node.announced())
        return event

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the node's loop (for routes that `on_hub` added)."""
        return self._background.loop.run(function)

    def wait(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine on the node's loop and wait for it."""
        return self._background.loop.call(coroutine)

    def wait_for_actors(self, actors: int, timeout: float) -> None:
        """Wait until at least so many actors, and all that the hub knows, run the newest version.

        Raises `WaitTimeoutError` after `timeout` seconds, which says who is missing.
        """
        wait_until_running(self._background.loop, self._background.node, actors, timeout)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _make_node(self) -> TrainerNode:
        published_state = self._resident_state if self._resident else None
        return TrainerNode(
            self._config,
            self._on_node_event,
            self._serve_rollouts,
            published_state=published_state,
            version_builder=self._version_builder,
            widths=unit_widths(self._table().rows),
        )

    async def _begin(self, node: TrainerNode) -> None:
        try:
            await node.start()
            if self._rollouts is not None and (live := node.position) is not None:
                self._rollouts.service.admit(live.version, live.digest.hex())
        except BaseException:
            if self._rollouts is not None:
                await self._rollouts.abandon()
            raise

    def _serve_rollouts(self, hub: HubService) -> None:
        if self._rollouts is not None:
            self._rollouts.mount(hub, self._background.loop)
        self._on_hub(hub)

    def _on_node_event(self, event: Event) -> None:
        if self._rollouts is not None and isinstance(event, Published):
            self._rollouts.published(event)  # before it is announced: no result of it must come sooner
        self._on_event(event)

    def _resident_state(self) -> PublishedState:
        def parameters() -> ModuleTable:
            table = self._table()
            if table is not seen[0]:
                seen[:] = [table, table.with_names(self._master_keys)]
            return seen[1]

        seen = [self._table(), self._table().with_names(self._master_keys)]
        return ResidentSnapshot(parameters, self._others())

    def _source(self) -> TensorSource:
        if self._masters is None:
            return TensorSource(self._table().rows, self._files, self._path)
        masters = {name: self._masters[key] for name, key in self._master_keys.items()}
        return MasterSource(masters, self._others(), self._files, self._path)

    def _others(self) -> dict[str, torch.Tensor]:
        """The module's tensors that have no masters, by published names."""
        return {spec.name: tensor for spec, tensor in self._table().rows.items() if spec.name not in self._master_keys}


def wait_until_running(loop: BackgroundLoop, node: TrainerNode, actors: int, timeout: float) -> None:
    """Wait until at least so many actors, and all that the hub knows, run the newest version of a node on `loop`.

    Raises `WaitTimeoutError` after `timeout` seconds, which says who is missing.
    """
    try:
        loop.call(node.until_running(actors), timeout)
    except TimeoutError:
        raise WaitTimeoutError(f"{actors} actors were asked for: after {timeout:g} s {node.adoption}") from None


def _master_keys(table: ModuleTable, masters: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The keys of masters by the published names of their parameters. Raises `UsageError` for those that do not fit."""
    tensors = {spec.name: tensor for spec, tensor in table.rows.items()}
    keys: dict[str, str] = {}
    for key, master in masters.items():
        name = table.names.get(key, "")
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != master.shape or tensor.dtype != torch.bfloat16:
            raise UsageError(f"{key}: masters of shape {tuple(master.shape)} have no bf16 parameter in the module")
        if name in keys:
            raise UsageError(f"{key} and {keys[name]} are tied: give one of them masters")
        keys[name] = key
    return keys
