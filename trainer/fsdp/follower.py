"""A rank above 0: it follows the orders of rank 0 in a thread of its own, and seeds what it built."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from p2psync.errors import P2PSyncError, RanksError, StoreError
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.trainer.fsdp import orders
from p2psync.trainer.fsdp.rank_builder import RankBuilder
from p2psync.trainer.fsdp.rank_layout import RankLayout
from p2psync.trainer.fsdp.rank_snapshot import RankSnapshot
from p2psync.trainer.fsdp.ranks import RankGroup, run_collectively
from p2psync.trainer.fsdp.shards import Shards


class Seeder(Protocol):
    """The node that seeds a follower's chunks."""

    def start(self, order: orders.ServeOrder, store: Store) -> str:
        """Join the swarm, and serve what the store holds; returns the node's name."""

    def offer(self, pack: Pack) -> None:
        """Serve what this rank has of a version."""

    def withdraw(self, id: bytes) -> None:
        """Stop serving a manifest."""


class RankFollower:
    """A rank above 0: it follows orders, in a thread of its own, until it is ordered to stop or a rank is lost."""

    def __init__(self, ranks: RankGroup, layout: RankLayout, root: Path, seed: Seeder) -> None:
        """root: directory of the store and the snapshot."""
        self._ranks = ranks
        self._layout = layout
        self._root = root
        self._seed = seed
        self._store: Store | None = None
        self._rank_builder: RankBuilder | None = None
        self._handed: queue.SimpleQueue[tuple[Shards, Future[Pack | None]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended: P2PSyncError | None = None
        #: Done once this rank is in the swarm.
        self.serving: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=f"p2psync-rank-{ranks.rank}", daemon=True)

    @property
    def rank_builder(self) -> RankBuilder:
        """Builds this rank's part of the versions; once it serves."""
        assert self._rank_builder is not None
        return self._rank_builder

    def start(self) -> None:
        """Start the thread that follows orders."""
        self._thread.start()

    def publish(self, shards: Shards) -> Pack | None:
        """Hands the shards over, and waits until rank 0 has published or refused them; None if no bit differs.

        Once it returns, the shards are not read any more. Raises `P2PSyncError`.
        """
        outcome: Future[Pack | None] = Future()
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._handed.put((shards, outcome))
        return outcome.result()

    def join(self, timeout: float) -> None:
        """Wait until rank 0 has ordered to stop, or for `timeout` seconds."""
        self._thread.join(timeout)

    def close(self) -> None:
        """Close the store and the snapshot; after `join`."""
        if not self._thread.is_alive() and self._store is not None:
            self.rank_builder.snapshot.close()
            self._store.close()

    def _run(self) -> None:
        try:
            ended = self._follow()
        except Exception as error:  # a thread that ended in silence would leave the training hanging
            ended = error if isinstance(error, P2PSyncError) else RanksError(f"{type(error).__name__}: {error}")
        with self._lock:
            self._ended = ended
            while not self._handed.empty():
                self._handed.get()[1].set_exception(ended)
        if not self.serving.done():
            self.serving.set_exception(ended)

    def _follow(self) -> P2PSyncError:
        while True:
            match orders.receive_order(self._ranks):
                case orders.StopOrder(message=message):
                    return RanksError(message or "rank 0 has ended publishing")
                case orders.AgreeOrder(run=run):
                    self._agree(run)
                case orders.ServeOrder() as order:
                    self._serve(order)
                case orders.KeepOrder(packs=packs):
                    self._keep(set(packs))
                case orders.AnchorOrder():
                    self._anchor()
                case orders.RefuseOrder(message=message):
                    self._handed.get()[1].set_exception(RanksError(f"rank 0: {message}"))
                case (orders.DeltaOrder() | orders.FirstVersionOrder()) as order:
                    self._publish(order)

    def _agree(self, run: str) -> None:
        def opened() -> RankSnapshot:
            self._store = Store(self._root / "packs")
            return RankSnapshot(self._root / "copy", self._layout.specs, self._layout.kept(self._ranks.rank))

        snapshot = run_collectively(self._ranks, opened)
        assert self._store is not None
        orders.agree_on_version(self._ranks, self._store, snapshot, run)
        self._rank_builder = RankBuilder(self._ranks, self._layout, self._store, snapshot, None)

    def _serve(self, order: orders.ServeOrder) -> None:
        store = self.rank_builder.store
        name = run_collectively(self._ranks, lambda: self._seed.start(order, store))
        self._ranks.gather(name.encode())
        self.serving.set_result(None)

    def _keep(self, packs: set[bytes]) -> None:
        store = self.rank_builder.store
        for id in {pack.signed.id for pack in store.packs()} - packs:
            self._seed.withdraw(id)
        with suppress(StoreError):  # a pack that cannot be removed now is removed at the next start
            orders.remove_all_but(store, packs)

    def _publish(self, order: orders.DeltaOrder | orders.FirstVersionOrder) -> None:
        rank_builder = self.rank_builder
        shards, outcome = self._handed.get()
        try:
            pack: Pack | None
            if isinstance(order, orders.FirstVersionOrder):
                pack = rank_builder.first(shards.part, order.run, order.epoch, order.version)
            else:
                base = rank_builder.snapshot.position
                assert base is not None
                made = rank_builder.delta(shards.part, base, profile=order.profile, epoch=order.epoch)
                pack = made[0] if made is not None else None
        except Exception as error:  # raised at the caller; all ranks have given this version up
            outcome.set_exception(error)
            return
        if pack is not None:
            self._seed.offer(pack)
        outcome.set_result(pack)

    def _anchor(self) -> None:
        position = self.rank_builder.snapshot.position
        assert position is not None
        try:
            pack = self.rank_builder.anchor(position)
        except P2PSyncError:
            return  # rank 0 reports it
        self._seed.offer(pack)
