"""What rank 0 tells the others to do, one thing after another, and where all stand when they start.

The ranks above 0 do nothing of their own accord: whether there is a delta or an anchor, and when, only rank 0 decides,
which knows the hub. Their training loops hand over the shards; the orders say what becomes of them.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from p2psync.protocol.versions import Position
from p2psync.store.packs import Store
from p2psync.trainer.fsdp.rank_snapshot import RankSnapshot
from p2psync.trainer.fsdp.ranks import RankGroup, run_collectively


class AgreeOrder(msgspec.Struct, frozen=True, tag="Agree"):
    """Tell where you stand in this run."""

    run: str


class ServeOrder(msgspec.Struct, frozen=True, tag="Serve"):
    """Join the swarm of this hub. key: 32 bytes, of rank 0. run: of the versions."""

    hub: str
    key: bytes
    run: str


class DeltaOrder(msgspec.Struct, frozen=True, tag="Delta"):
    """Make a delta of the shards that are handed over."""

    profile: str
    epoch: int


class FirstVersionOrder(msgspec.Struct, frozen=True, tag="First"):
    """Write the shards that are handed over out whole."""

    run: str
    epoch: int
    version: int


class AnchorOrder(msgspec.Struct, frozen=True, tag="Anchor"):
    """Write the version of the copies out whole."""


class KeepOrder(msgspec.Struct, frozen=True, tag="Keep"):
    """Remove all packs but these (ids)."""

    packs: list[bytes]


class RefuseOrder(msgspec.Struct, frozen=True, tag="Refuse"):
    """The shards that are handed over are not published, because of this."""

    message: str


class StopOrder(msgspec.Struct, frozen=True, tag="Stop"):
    """There will be no more orders. message: why, if something went wrong."""

    message: str = ""


Order: TypeAlias = (
    AgreeOrder | ServeOrder | DeltaOrder | FirstVersionOrder | AnchorOrder | KeepOrder | RefuseOrder | StopOrder
)


def send_order(ranks: RankGroup, order: Order) -> None:
    """Rank 0: tell the others. Raises `RanksError`."""
    ranks.broadcast(msgspec.msgpack.encode(order))


def receive_order(ranks: RankGroup) -> Order:
    """The others: the next order. Raises `RanksError`."""
    order: Order = msgspec.msgpack.decode(ranks.broadcast(), type=Order)
    return order


class _RankState(msgspec.Struct, frozen=True, array_like=True):
    """position: of the copy. newest: number of the newest version ever begun. packs: ids of sealed packs of the run, by
    rising version."""

    position: Position | None
    newest: int
    packs: list[bytes]


def agree_on_version(ranks: RankGroup, store: Store, snapshot: RankSnapshot, run: str) -> tuple[Position | None, int]:
    """(the version that every rank's copy is, None: there is none; number of the newest version that any rank began).

    A version that is not sealed at every rank, or is later than that of the copies, was never announced: its packs
    go. Where copies are of no one version, all packs go, and the next version is written out whole.
    """
    sealed = [pack for pack in store.packs() if pack.manifest.run == run and pack.sealed]
    mine = _RankState(snapshot.position, snapshot.newest, [pack.signed.id for pack in sealed])
    told = [msgspec.msgpack.decode(data, type=_RankState) for data in ranks.gather(msgspec.msgpack.encode(mine))]
    first = told[0].position
    same = first is not None and first.run == run and all(one.position == first for one in told)
    position = first if same else None
    everywhere = set(mine.packs).intersection(*(one.packs for one in told))
    keep = {
        pack.signed.id
        for pack in sealed
        if pack.signed.id in everywhere and position is not None and pack.manifest.version <= position.version
    }

    def clear() -> None:
        if position is None:
            snapshot.invalidate()
        remove_all_but(store, keep)

    run_collectively(ranks, clear)
    return position, max(one.newest for one in told)


def remove_all_but(store: Store, keep: set[bytes]) -> list[bytes]:
    """Remove packs that are not kept; returns the ids of those that went. Raises `StoreError`."""
    gone = [pack.signed.id for pack in store.packs() if pack.signed.id not in keep]
    for id in gone:
        store.remove(id)
    return gone
