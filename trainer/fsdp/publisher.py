"""Publishing a model that FSDP2 trains: n ranks, n uplinks, and no full tensor anywhere.

    fully_shard(model)
    with FsdpPublisher(model, TrainerConfig(store=Path("run"), key=key)) as publisher:
        for batch in batches:
            optimizer.step()
            publisher.publish()

Every rank makes the same calls; `publish` is a collective. Rank 0 is the trainer of the run, embeds the hub, signs and
announces; each rank encodes its part of every version, and seeds it from a node of its own. With (replicate, shard)
meshes one replica publishes, and the calls of the others return at once.

`store` may be the same path everywhere, on a shared disk or on each machine's own. `port` counts up with the rank.
docs/guides/fsdp2.md tells how it works, and its costs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import msgspec
import numpy as np
import torch
from torch import nn

from p2psync.arguments import as_directory
from p2psync.delta.tensors import TensorSpec
from p2psync.engines.module.table import Names
from p2psync.errors import P2PSyncError, RanksError, UsageError
from p2psync.net.addresses import is_loopback, plain_host, url_of
from p2psync.net.background import BackgroundLoop
from p2psync.observe.events import Event, Published
from p2psync.observe.log_events import EventLog
from p2psync.protocol.versions import Position
from p2psync.store.packs import Store
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.fsdp import orders
from p2psync.trainer.fsdp.follower import RankFollower
from p2psync.trainer.fsdp.rank_layout import RankLayout
from p2psync.trainer.fsdp.ranks import GlooRankGroup, run_collectively
from p2psync.trainer.fsdp.seed_node import SeedNode
from p2psync.trainer.fsdp.shards import Shards, publishing_group
from p2psync.trainer.fsdp.unit_ranges import UnitRanges
from p2psync.trainer.fsdp.version_builder import ShardedVersionBuilder
from p2psync.trainer.node import TrainerNode
from p2psync.trainer.publisher import wait_until_running
from p2psync.trainer.version_events import published_event
from p2psync.trainer.versions.builder import BuiltVersion, position_of
from p2psync.trainer.versions.tensors import file_blobs

logger = logging.getLogger("p2psync.publisher")
#: How long a rank waits for another one (seconds). A rank that dies is noticed at once; this bounds one that hangs.
TIMEOUT = 7 * 86400.0
#: How long the other ranks wait at the end for rank 0 to order them to stop (seconds).
END_LIMIT = 60.0


class FsdpPublisher:
    """One rank of a sharded publisher; a context manager.

    Every rank of the default process group makes, enters, uses and leaves it, as any collective.
    """

    def __init__(
        self,
        module: nn.Module,
        config: TrainerConfig,
        *,
        dtype: torch.dtype | None = None,
        names: Names | None = None,
        files: Path | str | None = None,
        on_event: Callable[[Event], None] | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        """dtype: torch.bfloat16 publishes sharded fp32 parameters rounded to bf16, as mixed precision computes with;
        None: as they are. names: as of `p2psync.trainer.publisher.Publisher`. files: a directory whose files other than
        weights go along; rank 0's. on_event: called in a thread of the node's; by default events are logged under
        `p2psync.publisher`. timeout: see `TIMEOUT`. Raises `UsageError` for a module that cannot be published so.
        """
        if dtype not in (None, torch.bfloat16):
            raise UsageError(f"{dtype}: fp32 shards are published as they are, or as torch.bfloat16")
        self._module, self._dtype, self._names = module, dtype, names
        self._emit = on_event if on_event is not None else EventLog("p2psync.publisher")
        self._group = publishing_group(module, names)
        self.ranks = GlooRankGroup(self._group.members, timeout)
        self._builder: ShardedVersionBuilder | None = None
        self._node: TrainerNode | None = None
        self._loop: BackgroundLoop | None = None
        self._seed: SeedNode | None = None
        self._follower: RankFollower | None = None
        if self._group.rank is None:
            return
        self._config = _rank_config(config, self._group.rank)
        self.layout = self._agree_on_layout(as_directory(files, "files") if files is not None else None)

    def _agree_on_layout(self, files: Path | None) -> RankLayout:
        """Returns the layout of all ranks. Raises `UsageError` unless they have one table, and every unit once."""
        bare = run_collectively(self.ranks, lambda: Shards(self._module, self._group, self._dtype, {}, self._names))
        blobs = run_collectively(self.ranks, lambda: file_blobs(bare.tensors, files) if self.ranks.rank == 0 else {})
        data = self.ranks.broadcast(msgspec.msgpack.encode(list(blobs)))
        specs = msgspec.msgpack.decode(data, type=list[TensorSpec])
        self._blobs = blobs or {spec: np.empty(0, spec.unit) for spec in specs}
        shards = self._shards()
        mine = msgspec.msgpack.encode((list(shards.specs), list(shards.held)))
        tables = [
            msgspec.msgpack.decode(data, type=tuple[list[TensorSpec], list[tuple[int, int, int]]])
            for data in self.ranks.gather(mine)
        ]
        if any(theirs != tables[0][0] for theirs, _ in tables):
            raise UsageError("ranks have different tensors: the module must be the same at all of them")
        try:
            return RankLayout(tables[0][0], [UnitRanges.of(held) for _, held in tables])
        except ValueError as error:
            raise UsageError(str(error)) from None

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the nodes; a collective. Raises `P2PSyncError`."""
        if self._group.rank is None:
            return self
        try:
            if self._group.rank == 0:
                self._start_leading()
            else:
                self._start_following()
        except BaseException as error:
            self.close(f"{type(error).__name__}: {error}")
            raise
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        trouble = "" if error is None else f"{type(error).__name__}: {error}"
        if trouble:  # told before closing: a rank that waits in a collective may end this process without a word
            logger.warning("rank %d ends publishing: %s", self.ranks.rank, trouble)
        self.close(trouble)

    def close(self, trouble: str = "") -> None:
        """End publishing at this rank. trouble: why, if it ends before the other ranks do."""
        if self._group.rank == 0:
            self._stop_leading(trouble)
        elif self._follower is not None:
            self._stop_following(trouble)
        self.ranks.close()

    def _start_leading(self) -> None:
        def version_builder(store: Store, run: str) -> ShardedVersionBuilder:
            self._builder = ShardedVersionBuilder(
                self.ranks, self.layout, store, self._config.store / "copy", self._config.key, run
            )
            return self._builder

        self._loop = BackgroundLoop("p2psync-trainer")
        self._node = self._loop.run(lambda: TrainerNode(self._config, self._emit, version_builder=version_builder))
        self._loop.call(self._node.start())
        assert self._builder is not None
        key = self._config.key.public_key().public_bytes_raw()
        co_publishers = self._builder.serve(_reachable_hub_url(self._node.local_hub_url), key)
        self._loop.run(lambda: self._trainer.announcer.set_co_publishers(co_publishers))

    def _start_following(self) -> None:
        self._seed = SeedNode(self._config, self._emit)
        self._follower = RankFollower(self.ranks, self.layout, self._config.store, self._seed)
        self._follower.start()
        self._follower.serving.result()

    def _stop_leading(self, trouble: str) -> None:
        if self._loop is None:
            return
        with suppress(RanksError):
            if self._builder is not None:
                self._builder.end(trouble)
            else:
                orders.send_order(self.ranks, orders.StopOrder(trouble))
        try:
            if self._node is not None:
                self._loop.call(self._node.stop())
        finally:
            self._loop.close()
            self._loop = None

    def _stop_following(self, trouble: str) -> None:
        assert self._follower is not None and self._seed is not None
        if trouble:
            self.ranks.close()  # rank 0, which waits for this one, gets a `RanksError`
        self._follower.join(0 if trouble else END_LIMIT)
        self._seed.close()
        self._follower.close()
        self._follower = None

    # ---- publishing ------------------------------------------------------------------------------------------------

    @property
    def hub_url(self) -> str:
        """The URL where actors join; at rank 0."""
        return self._trainer.hub_url

    @property
    def position(self) -> Position | None:
        """The newest version that this rank made; None before the first."""
        if self._group.rank == 0:
            return self._trainer.position
        return self._follower.rank_builder.snapshot.position if self._follower is not None else None

    def publish(self, *, announced: bool = False) -> Published | None:
        """Publish the module as it is now. A collective: it returns once the version is durable at all ranks.

        Returns None if no bit differs from the last version, and at ranks of other replicas. announced: at rank 0, also
        wait until the hub has its announcement. Raises as `TrainerNode.publish`, and `RanksError` for a failure at
        another rank; then no rank has the version.
        """
        if self._group.rank is None:
            return None
        if self._builder is None and self._follower is None:
            raise UsageError(
                "the publisher is not started: use it as `with FsdpPublisher(...) as publisher`, or start()"
            )
        shards = self._shards()
        if list(shards.specs) != self.layout.specs:
            raise UsageError("the module's tensors are not those that it had when the publisher was made: make another")
        if self._follower is not None:
            pack = self._follower.publish(shards)
            return published_event(BuiltVersion(pack, position_of(pack.manifest), 0.0)) if pack is not None else None
        return self._publish(shards, announced)

    def _publish(self, shards: Shards, announced: bool) -> Published | None:
        assert self._builder is not None and self._loop is not None
        answered = self._builder.answered
        try:
            event = self._loop.call(self._trainer.publish(shards))
        except P2PSyncError as error:
            if self._builder.answered == answered:
                self._builder.refuse(str(error))
            raise
        if announced:
            self._loop.call(self._trainer.announced())
        return event

    def wait_for_actors(self, actors: int, timeout: float) -> None:
        """Wait until at least `actors` actors, and all others that the hub knows, run the newest version; at rank 0.

        Raises `WaitTimeoutError` after `timeout` seconds, which says who is missing.
        """
        assert self._loop is not None
        wait_until_running(self._loop, self._trainer, actors, timeout)

    @property
    def _trainer(self) -> TrainerNode:
        if self._node is None:
            raise UsageError("only rank 0 of an entered publisher has the trainer's node")
        return self._node

    def _shards(self) -> Shards:
        return Shards(self._module, self._group, self._dtype, self._blobs, self._names)


def _rank_config(config: TrainerConfig, rank: int) -> TrainerConfig:
    """Returns the settings of one rank: a store and a port of its own; no squashing, which needs all chunks."""
    port = config.port + rank if config.port else 0
    return replace(config, store=config.store / f"rank-{rank}", port=port, squash=False)


def _reachable_hub_url(hub_url: str) -> str:
    """Returns the URL at which other ranks reach a hub on rank 0's machine: at the address where they found rank 0."""
    url = urlsplit(hub_url)
    host = os.environ.get("MASTER_ADDR", "")
    if not is_loopback(url.hostname or "") or not host or is_loopback(host):
        return hub_url
    return url_of(plain_host(host, "MASTER_ADDR"), url.port or 0, url.scheme)
