"""vLLM's trainer side of the backend `p2psync`: a `WeightSource` is published, and the engines fetch it by themselves.

    trainer = WeightTransferTrainerFactory.trainer_init(
        P2PSyncTrainerInitInfo(rank=rank, store="run", key="trainer.key"), client=client, source=ModuleSource(model)
    )
    for batch in batches:
        optimizer.step()
        trainer.send_weights()          # on every rank; no pause around it

What travels is a delta, over the swarm; `client` is used only to have engines join, and to have them commit where they
are not conducted otherwise.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)

from p2psync.engines.module.table import module_rows
from p2psync.engines.vllm.conductor import Conductor, HTTPControls
from p2psync.errors import UsageError
from p2psync.net.background import BackgroundLoop
from p2psync.observe.events import Published
from p2psync.protocol.keys import parse_private, public_text
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.node import TrainerNode
from p2psync.trainer.versions.tensors import TensorSource

__all__ = ["P2PSyncTrainerEngine", "P2PSyncTrainerInitInfo"]


@dataclass
class P2PSyncTrainerInitInfo(TrainerInitInfo):
    """store: directory of versions. key: file with the private key. hub_url: an external hub; by default one is
    embedded at (host, hub_port). reach_hub: the hub's URL as engines reach it, if that is another one.

    files: directory whose files other than weights go along (configuration, tokenizer). engines: how many must run a
    version before `send_weights` returns (0: it returns once the version is durable). servers: URLs of vLLM servers
    whose commits this trainer conducts. conducted: engines have their own conductors; else, without `servers`, `client`
    is told to commit, and generates nothing while it waits for the version. wait: seconds, for all of this.
    worker: further fields of `p2psync.actor.vllm.backend.P2PSyncInitInfo`.
    """

    backend: ClassVar[str] = "p2psync"

    store: str
    key: str
    hub_url: str | None = None
    reach_hub: str = ""
    host: str = ""
    hub_port: int = 7070
    port: int = 7071
    region: str = ""
    token: str | None = None
    files: str = ""
    engines: int = 1
    servers: list[str] = field(default_factory=list)
    conducted: bool = False
    wait: float = 600.0
    worker: dict[str, object] = field(default_factory=dict)


class P2PSyncTrainerEngine(TrainerWeightTransferEngine[P2PSyncTrainerInitInfo]):
    """vLLM's trainer engine, on every trainer rank; rank 0 has the node."""

    init_info_cls = P2PSyncTrainerInitInfo

    def __init__(
        self, info: P2PSyncTrainerInitInfo, *, client: VLLMWeightSyncClient, source: WeightSource | None = None
    ) -> None:
        """Raises `UsageError` without a source."""
        if source is None:
            raise UsageError("the backend p2psync needs a WeightSource: what is to be published")
        super().__init__(client=client, source=source, is_sender=info.is_sender)
        self._info = info
        self._source: WeightSource = source
        self._loop: BackgroundLoop | None = None
        self._node: TrainerNode | None = None
        self._conductors = [Conductor(HTTPControls(url)) for url in info.servers]

    @classmethod
    def trainer_init(
        cls,
        init_info: P2PSyncTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> Self:
        """Start the node on rank 0, and make the engines join. Raises `P2PSyncError`."""
        engine = cls(init_info, client=client, source=source)
        if engine.is_sender:
            engine._start()
        return engine

    def send_weights(self) -> Published | None:  # type: ignore[override]
        """Publish the source's tensors, and wait for the engines as configured. Returns None if no bit differs.

        The source's tensors must not change meanwhile. Raises `P2PSyncError`.
        """
        tensors = {}
        for name, tensor in self._source:
            if self.is_sender:
                tensors[name] = tensor.detach()
        if not self.is_sender:
            return None
        loop, node = self._running()
        event = loop.call(node.publish(self._as_source(tensors)))
        if self._info.engines > 0 and node.position is not None:
            loop.call(node.announced())
            self._commit(node.position.version)
        return event

    def shutdown(self) -> None:
        """Leave the swarm. Idempotent."""
        if self._loop is not None:
            if self._node is not None:
                self._loop.call(self._node.stop())
            self._loop.close()
            self._loop = self._node = None

    def _start(self) -> None:
        info = self._info
        config = TrainerConfig(
            store=Path(info.store),
            key=parse_private(Path(info.key).read_text()),
            hub_url=info.hub_url,
            host=info.host,
            hub_port=info.hub_port,
            port=info.port,
            region=info.region,
            token=info.token,
        )
        self._loop = BackgroundLoop("p2psync-trainer")
        try:
            self._node = self._loop.run(lambda: TrainerNode(config))
            self._loop.call(self._node.start())
            join = {
                "hub_url": info.reach_hub or self._node.hub_url,
                "trust": [public_text(config.key.public_key().public_bytes_raw())],
                "token": info.token,
            }
            self.client.init_weight_transfer_engine(join | info.worker)
        except BaseException:
            self.shutdown()
            raise

    def _commit(self, version: int) -> None:
        """Make the version live, and wait until `engines` engines run it. Raises `UsageError` after `wait` seconds."""
        loop, node = self._running()
        info = self._info
        try:
            if self._conductors:
                loop.call(_all_reach(self._conductors, version, info.wait))
            elif not info.conducted:
                self.client.start_weight_update()
                self.client.update_weights({"version": version, "wait": info.wait})
                self.client.finish_weight_update(str(version))
            loop.call(node.until_running(info.engines), info.wait)
        except TimeoutError:
            raise UsageError(f"version {version} was not live everywhere after {info.wait:.0f} s") from None

    def _running(self) -> tuple[BackgroundLoop, TrainerNode]:
        if self._loop is None or self._node is None:
            raise UsageError("this trainer engine was shut down")
        return self._loop, self._node

    def _as_source(self, tensors: dict[str, torch.Tensor]) -> TensorSource:
        files = Path(self._info.files) if self._info.files else None
        return TensorSource(module_rows(tensors), files)


async def _all_reach(conductors: list[Conductor], version: int, limit: float) -> None:
    await asyncio.gather(*(conductor.reach(version, limit) for conductor in conductors))
