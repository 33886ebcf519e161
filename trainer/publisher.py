"""Publishing a live torch module from a training loop.

    with Publisher(policy, TrainerConfig(store=Path("run"), key=key)) as publisher:
        for batch in batches:
            optimizer.step()
            publisher.publish()

`publish` returns once the version is durable; actors get it while training goes on. The module must not change while
`publish` runs, which is so when the training thread itself calls it.

Where the optimizer holds fp32 masters, `masters` names them, and their rounded bits are published in place of the
module's. With `resident` the module's own bf16 parameters are the trainer's copy of the published bits, so that none
is kept beside them: then nobody but `publish` may write them (see `trainer.resident`), and it is `publish` that
refreshes them:

    with Publisher(policy, config, masters=masters, resident=True) as publisher:
        for batch in batches:
            optimizer.step()        # updates the masters
            publisher.publish()     # and this the policy
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import torch
from torch import nn

from p2psync.engines.weights import module_rows
from p2psync.errors import UsageError
from p2psync.net.background import BackgroundLoop
from p2psync.net.hub import HubService
from p2psync.observe.events import Event, Published
from p2psync.protocol.versions import Position
from p2psync.store.packs import Store
from trainer.device_path import DevicePath
from trainer.node import TrainerConfig, TrainerNode
from trainer.resident import ResidentSnapshot
from trainer.rollouts import Rollouts
from trainer.snapshot import Keeper
from trainer.tensors import MasterSource, ModuleSource, TensorSource
from trainer.versions import Maker

__all__ = ["MasterSource", "ModuleSource", "Publisher"]

T = TypeVar("T")


class Publisher:
    """A trainer node in a thread of its own, publishing one module. A context manager."""

    def __init__(
        self,
        module: nn.Module,
        config: TrainerConfig,
        *,
        files: Path | None = None,
        masters: Mapping[str, torch.Tensor] | None = None,
        resident: bool = False,
        on_device: bool | None = None,
        twin: bool = False,
        on_event: Callable[[Event], None] = lambda event: None,
        on_hub: Callable[[HubService], None] = lambda hub: None,
        rollouts: Rollouts | None = None,
        maker: Callable[[Store, str], Maker] | None = None,
    ) -> None:
        """files: a directory whose files other than weights go along. masters: fp32 masters of the module's bf16
        parameters, by their names in its state_dict; read anew at each publish. resident: see above.

        on_device: find changes where the tensors are; by default if any is on a GPU. twin: keep a second copy of the
        published bits there, instead of streaming them there for each version. on_event: called in the node's thread.
        on_hub: may add routes to the embedded hub before it serves. rollouts: the ledger to serve there; it admits each
        version that is published. maker: see `TrainerNode`.

        Raises `UsageError` for masters that do not fit, or a module that is sharded.
        """
        if any(hasattr(parameter, "device_mesh") for parameter in module.parameters()):
            raise UsageError("the module is sharded: publish it with trainer.fsdp.publisher.FsdpPublisher")
        self._module = module
        self._files = files
        self._masters = masters
        tensors = {spec.name: tensor for spec, tensor in module_rows(module).items()}
        self._check(tensors, masters or {})
        if resident and not masters:
            raise UsageError("resident: there are no masters to refresh the module from")
        if on_device is None:
            on_device = any(tensor.is_cuda for tensor in [*tensors.values(), *(masters or {}).values()])
        self._path = DevicePath(twin=twin, everywhere=on_device) if on_device else None

        if rollouts is not None and config.hub_url is not None:
            raise UsageError("rollouts: the ledger is served by the publisher's own hub, not by one elsewhere")
        self._rollouts = rollouts

        def on_own_hub(hub: HubService) -> None:
            if rollouts is not None:
                rollouts.mount(hub, self._loop)
            on_hub(hub)

        def on_own_event(event: Event) -> None:
            if rollouts is not None and isinstance(event, Published):
                rollouts.published(event)  # before it is announced: no result of it must come sooner
            on_event(event)

        def keeper() -> Keeper:
            return ResidentSnapshot({name: tensors[name] for name in masters or {}}, self._others())

        self._loop = BackgroundLoop("p2psync-trainer")
        self.node = self._loop.call(
            _make(
                lambda: TrainerNode(config, on_own_event, on_own_hub, keeper=keeper if resident else None, maker=maker)
            )
        )

    def __enter__(self) -> Publisher:
        try:
            self._loop.call(self.node.start())
            if self._rollouts is not None and (live := self.position) is not None:
                self._rollouts.admit(live)
        except BaseException:
            if self._rollouts is not None:
                self._loop.call(self._rollouts.abandon())
            self._loop.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._loop.call(self.node.stop())
        finally:
            self._loop.close()

    @property
    def hub_url(self) -> str:
        """Where actors join."""
        return self.node.hub_url

    @property
    def position(self) -> Position | None:
        """The newest version."""
        return self.node.position

    def publish(self, *, announced: bool = False) -> Published | None:
        """Publish the module as it is now; None if no bit differs from the last version.

        announced: wait until the hub knows of it too. Raises as `TrainerNode.publish`.
        """
        event = self._loop.call(self.node.publish(self._source()))
        if self._path is not None:
            self._path.published(self.position)
        if announced:
            self._loop.call(self.node.announced())
        return event

    def _source(self) -> TensorSource:
        if self._masters is None:
            return ModuleSource(self._module, self._files, self._path)
        return MasterSource(self._masters, self._others(), self._files, self._path)

    def _others(self) -> dict[str, torch.Tensor]:
        """The module's tensors that have no masters."""
        rows = module_rows(self._module).items()
        return {spec.name: tensor for spec, tensor in rows if spec.name not in (self._masters or {})}

    @staticmethod
    def _check(tensors: Mapping[str, torch.Tensor], masters: Mapping[str, torch.Tensor]) -> None:
        for name, master in masters.items():
            tensor = tensors.get(name)
            if tensor is None or tensor.shape != master.shape or tensor.dtype != torch.bfloat16:
                raise UsageError(f"{name}: masters of shape {tuple(master.shape)} have no bf16 parameter in the module")

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the node's loop (for routes that `on_hub` added)."""
        return self._loop.call(_make(function))

    def wait(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine on the node's loop and wait for it."""
        return self._loop.call(coroutine)

    def wait_for_actors(self, actors: int, timeout: float) -> None:
        """Wait until at least so many actors, and all that the hub knows, run the newest version.

        Raises `UsageError` after `timeout` seconds.
        """
        try:
            self._loop.call(self.node.until_running(actors), timeout)
        except TimeoutError:
            raise UsageError(f"after {timeout:.0f} s {self.node.standing}") from None


async def _make(function: Callable[[], T]) -> T:
    return function()
