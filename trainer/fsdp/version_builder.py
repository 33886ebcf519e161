"""Rank 0 of a sharded publisher: it decides when a version is built, and has all ranks build it together.

Both do the same work (`rank_builder`). Rank 0's `ShardedVersionBuilder` stands where a trainer has its
`LocalVersionBuilder`; a `RankFollower` has a thread of its own that waits for orders, and seeds what it made from a
node of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.errors import StoreError
from p2psync.protocol.versions import Position
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.trainer.fsdp import orders
from p2psync.trainer.fsdp.rank_builder import RankBuilder
from p2psync.trainer.fsdp.rank_layout import RankLayout
from p2psync.trainer.fsdp.rank_snapshot import RankSnapshot
from p2psync.trainer.fsdp.ranks import RankGroup, run_collectively
from p2psync.trainer.fsdp.shards import Shards
from p2psync.trainer.versions.builder import BuiltVersion, position_of
from p2psync.trainer.versions.source import Source


class ShardedVersionBuilder:
    """Builds the versions of a run at all ranks; at rank 0. See `p2psync.trainer.versions.builder.VersionBuilder`."""

    def __init__(
        self, ranks: RankGroup, layout: RankLayout, store: Store, root: Path, key: Ed25519PrivateKey, run: str
    ) -> None:
        """root: directory of the snapshot. Raises `StoreError`, and `RanksError` if another rank fails or is lost."""
        self.epoch = 0
        self._ranks = ranks
        self._store = store
        self._run = run
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        #: Publishes whose outcome the other ranks were sent: they wait for one each.
        self.answered = 0
        orders.send_order(ranks, orders.AgreeOrder(run))
        snapshot = run_collectively(ranks, lambda: RankSnapshot(root, layout.specs, layout.kept(0)))
        self._position, self._newest = orders.agree_on_version(ranks, store, snapshot, run)
        self.rank_builder = RankBuilder(ranks, layout, store, snapshot, key)

    @property
    def position(self) -> Position | None:
        """The newest version; None before the first, and where the snapshots are of no version."""
        return self._position

    def stop(self) -> None:
        """Make a version in progress fail soon, with `StoreError`. May be called from any thread."""
        self._stopped.set()

    def close(self) -> None:
        """Close the snapshot."""
        self.rank_builder.snapshot.close()

    def make(
        self,
        source: Source,
        *,
        profile: str = "fast",
        rate: float = 0.0,
        settled: Callable[[], bool] = lambda: True,
        given_up: Callable[[], bool] = lambda: False,
    ) -> BuiltVersion | None:
        """Make the next version from `source`, rank 0's `Shards`. Raises `RanksError` for a failure at another rank.

        rate: ignored; the owner of each block is fixed, and sharded models are large. See `VersionBuilder.make`.
        """
        assert isinstance(source, Shards)
        began, encoding = time.monotonic(), 0.0

        def check_stopped() -> None:
            if self._stopped.is_set() or given_up():
                raise StoreError("stopped while a version was being made: not published")

        with self._lock:
            check_stopped()
            self._order_retirement()
            live = self._position
            pack: Pack | None
            self.answered += 1
            try:
                if live is None:
                    order = orders.FirstVersionOrder(self._run, self.epoch, self._newest + 1)
                    orders.send_order(self._ranks, order)
                    pack = self.rank_builder.first(source.part, order.run, order.epoch, order.version)
                else:
                    orders.send_order(self._ranks, orders.DeltaOrder(profile, self.epoch))
                    made = self.rank_builder.delta(
                        source.part, live, profile=profile, epoch=self.epoch, check_stopped=check_stopped
                    )
                    pack, encoding = made if made is not None else (None, 0.0)
            finally:
                self._position = self.rank_builder.snapshot.position
                self._newest = max(self._newest, self.rank_builder.snapshot.newest)
        if pack is None:
            return None
        seconds = time.monotonic() - began
        return BuiltVersion(pack, position_of(pack.manifest), seconds, encoding, max(0.0, seconds - encoding))

    def make_anchor(self, rate: float = 0.0) -> BuiltVersion:
        """Write the newest version out whole. rate: see `make`. Raises `StoreError` if there is none."""
        began = time.monotonic()
        with self._lock:
            if self._position is None:
                raise StoreError("there is no version to write out yet")
            self._order_retirement()
            orders.send_order(self._ranks, orders.AnchorOrder())
            try:
                pack = self.rank_builder.anchor(self._position)
            finally:
                self._position = self.rank_builder.snapshot.position
        return BuiltVersion(pack, position_of(pack.manifest), time.monotonic() - began)

    def write_whole(self) -> None:
        """Write the next version out whole, whatever changes."""
        with self._lock:
            self._position = None

    def serve(self, hub: str, key: bytes) -> list[str]:
        """Order the other ranks to join the swarm; returns the names of their nodes.

        hub: URL. key: public key, 32 bytes. Raises `RanksError` if a rank cannot join.
        """
        with self._lock:
            orders.send_order(self._ranks, orders.ServeOrder(hub, key, self._run))
            run_collectively(self._ranks, lambda: None)
            return [name.decode() for name in self._ranks.gather(b"") if name]

    def refuse(self, message: str) -> None:
        """Tells the other ranks that their shards are not published. message: the reason."""
        with self._lock:
            self.answered += 1
            orders.send_order(self._ranks, orders.RefuseOrder(message))

    def end(self, message: str) -> None:
        """Order the other ranks to stop. message: why, if something went wrong."""
        with self._lock:
            orders.send_order(self._ranks, orders.StopOrder(message))

    def _order_retirement(self) -> None:
        """Order the other ranks to remove the packs that rank 0 has retired."""
        orders.send_order(self._ranks, orders.KeepOrder([pack.signed.id for pack in self._store.packs()]))
