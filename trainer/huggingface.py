"""Publishing from a `transformers.Trainer`: a callback that publishes the policy after optimizer steps or saves.

    from transformers import Trainer
    from p2psync import PublishCallback, TrainerConfig

    callback = PublishCallback(TrainerConfig(store="run", key="trainer.key"), every=1)
    with callback:
        Trainer(model, args, train_dataset=data, callbacks=[callback]).train()

Rank 0 publishes a module that every rank holds whole (one process, DDP); of a module that FSDP2 shards each rank
publishes its own shards. The weights travel in the dtype that the module holds: load it in bf16 to publish bf16.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Self

from torch import nn
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from p2psync.errors import UsageError
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.fsdp.publisher import FsdpPublisher
from p2psync.trainer.publisher import Publisher

__all__ = ["PublishCallback"]


class PublishCallback(TrainerCallback):
    """Publishes the model that a `transformers.Trainer` trains; a context manager, so that it ends also after an error.

    It publishes the initial weights when training begins and the last ones when it ends, and in between after every
    `every`-th optimizer step, or after each save.
    """

    def __init__(
        self,
        config: TrainerConfig,
        *,
        after: Literal["step", "save"] = "step",
        every: int = 1,
        wait_for_actors: int = 0,
        wait_seconds: float = 600.0,
        **options: Any,
    ) -> None:
        """after: publish after optimizer steps, or after the trainer's saves. every: publish after each so many of
        them. wait_for_actors: at the end, wait until so many actors, and all that the hub knows, run the last version;
        wait_seconds: for that long at most (seconds). options: of `Publisher`, or of `FsdpPublisher` for a sharded
        module.

        Raises `UsageError` for options that are none.
        """
        if after not in ("step", "save"):
            raise UsageError(f"after={after!r}: choose step or save")
        if every < 1:
            raise UsageError(f"every={every}: at least 1")
        if not isinstance(config, TrainerConfig):
            raise UsageError(f"config={config!r}: give a TrainerConfig")
        self._config = config
        self._after = after
        self._every = every
        self._actors = wait_for_actors
        self._wait_seconds = wait_seconds
        self._options = options
        self._saves = 0
        #: The publisher while training runs; None before, after, and at ranks that publish nothing.
        self.publisher: Publisher | FsdpPublisher | None = None

    # ---- what transformers calls -----------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Start the publisher and publish the weights that training begins from. Raises `P2PSyncError`."""
        self.close()
        self.publisher = self._make(given["model"], first=state.is_world_process_zero)
        if self.publisher is not None:
            self.publisher.start()
            self.publisher.publish()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Publish after an optimizer step, if it is the turn of this one."""
        if self._after == "step" and state.global_step % self._every == 0:
            self._publish()

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Publish after a save, if it is the turn of this one."""
        self._saves += 1
        if self._after == "save" and self._saves % self._every == 0:
            self._publish()

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Publish the last weights, wait for actors if that was asked for, and leave the swarm."""
        publisher = self.publisher
        if publisher is None:
            return
        leads = isinstance(publisher, Publisher) or state.is_world_process_zero
        publisher.publish(announced=leads)
        if self._actors and leads:
            publisher.wait_for_actors(self._actors, self._wait_seconds)
        self.close()

    # ---- life ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the swarm and close everything. Again, or before training begins: no effect."""
        publisher, self.publisher = self.publisher, None
        if publisher is not None:
            publisher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        publisher, self.publisher = self.publisher, None
        if publisher is not None:
            publisher.__exit__(kind, error, trace)

    def _publish(self) -> None:
        if self.publisher is not None:
            self.publisher.publish()

    def _make(self, module: nn.Module, *, first: bool) -> Publisher | FsdpPublisher | None:
        if any(hasattr(parameter, "ds_id") for parameter in module.parameters()):
            raise UsageError(
                "DeepSpeed ZeRO-3 keeps only a part of each parameter here: publish its saved checkpoints with"
                " `p2psync trainer --watch`"
            )
        if any(isinstance(parameter, DTensor) for parameter in module.parameters()):
            return FsdpPublisher(module, self._config, **self._options)
        return Publisher(module, self._config, **self._options) if first else None
