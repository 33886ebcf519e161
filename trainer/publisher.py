"""Publishing a live torch module from a training loop.

    with Publisher(policy, TrainerConfig(store=Path("run"), key=key)) as publisher:
        for batch in batches:
            optimizer.step()
            publisher.publish()

`publish` returns once the version is durable; actors get it while training goes on. The module must not change while
`publish` runs, which is so when the training thread itself calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import numpy as np
from torch import nn

from p2psync.delta.tensors import Kind, TensorSpec, Units
from p2psync.engines.checkpoint import Checkpoint
from p2psync.engines.header import canonical_header
from p2psync.engines.weights import host_units, module_rows
from p2psync.errors import UsageError
from p2psync.net.background import BackgroundLoop
from p2psync.net.hub import HubService
from p2psync.observe.events import Event, Published
from p2psync.protocol.versions import Position
from trainer.node import TrainerConfig, TrainerNode

T = TypeVar("T")

#: The one weights file that an actor's directory gets.
WEIGHTS_FILE = "model.safetensors"


class ModuleSource:
    """A live module as a source: its tensors under their state-dict names, the header of a safetensors file that holds
    them, and the files that belong beside it (configuration, tokenizer)."""

    def __init__(self, module: nn.Module, files: Path | None = None) -> None:
        """files: a directory whose files other than weights are carried along. Raises `FormatError`."""
        self._tensors = module_rows(module)
        header = canonical_header(self._tensors, WEIGHTS_FILE)
        blobs = {TensorSpec(Kind.HEADER, WEIGHTS_FILE, "U8", (len(header),)): np.frombuffer(header, np.uint8)}
        if files is not None:
            with Checkpoint.open(files) as checkpoint:
                for spec in checkpoint.specs:
                    if spec.kind == Kind.FILE:
                        blobs[spec] = checkpoint.units(spec).copy()
        self._blobs: dict[TensorSpec, Units] = dict(blobs)
        self._specs = sorted([*self._tensors, *blobs])

    @property
    def specs(self) -> Sequence[TensorSpec]:
        """See `Source`."""
        return self._specs

    def units(self, spec: TensorSpec) -> Units:
        """See `Source`: of a CPU tensor a view of its storage, of another one a copy."""
        blob = self._blobs.get(spec)
        return blob if blob is not None else host_units(self._tensors[spec])


class Publisher:
    """A trainer node in a thread of its own, publishing one module. A context manager."""

    def __init__(
        self,
        module: nn.Module,
        config: TrainerConfig,
        *,
        files: Path | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
        on_hub: Callable[[HubService], None] = lambda hub: None,
    ) -> None:
        """on_event: called in the node's thread. on_hub: may add routes to the embedded hub before it serves."""
        self._module = module
        self._files = files
        self._loop = BackgroundLoop("p2psync-trainer")
        self.node = self._loop.call(_make(lambda: TrainerNode(config, on_event, on_hub)))

    def __enter__(self) -> Publisher:
        try:
            self._loop.call(self.node.start())
        except BaseException:
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
        event = self._loop.call(self.node.publish(ModuleSource(self._module, self._files)))
        if announced:
            self._loop.call(self.node.announced())
        return event

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
            raise UsageError(f"not every actor runs the newest version after {timeout:.0f} s") from None


async def _make(function: Callable[[], T]) -> T:
    return function()
