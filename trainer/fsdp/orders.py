"""The orders that rank 0 sends to the other ranks, and the agreement of all ranks on a version at a start.

Only rank 0, which knows the hub, decides whether and when a delta or an anchor is made. The training loops of the other
ranks hand over their shards; the orders tell the use of these shards.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from p2psync.protocol.versions import Position
from p2psync.store.packs import Store
from p2psync.trainer.fsdp.rank_snapshot import RankSnapshot
from p2psync.trainer.fsdp.ranks import RankGroup, run_collectively


class AgreeOrder(msgspec.Struct, frozen=True, tag="Agree"):
    """Asks a rank for its version and its packs of this run."""

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
    """Write the version of the snapshots out whole."""


class KeepOrder(msgspec.Struct, frozen=True, tag="Keep"):
    """Remove all packs but these (ids)."""

    packs: list[bytes]


class RefuseOrder(msgspec.Struct, frozen=True, tag="Refuse"):
    """The shards that are handed over are not published. message: why."""

    message: str


class StopOrder(msgspec.Struct, frozen=True, tag="Stop"):
    """Ends the orders. message: the reason, after an error."""

    message: str = ""


Order: TypeAlias = (
    AgreeOrder | ServeOrder | DeltaOrder | FirstVersionOrder | AnchorOrder | KeepOrder | RefuseOrder | StopOrder
)


def send_order(ranks: RankGroup, order: Order) -> None:
    """Send an order from rank 0 to the others. Raises `RanksError`."""
    ranks.broadcast(msgspec.msgpack.encode(order))


def receive_order(ranks: RankGroup) -> Order:
    """Returns the next order, at a rank above 0. Raises `RanksError`."""
    order: Order = msgspec.msgpack.decode(ranks.broadcast(), type=Order)
    return order


class _RankState(msgspec.Struct, frozen=True, array_like=True):
    """position: of the snapshot. newest: number of the newest version ever begun. packs: ids of sealed packs of the
    run, by rising version."""

    position: Position | None
    newest: int
    packs: list[bytes]


def agree_on_version(ranks: RankGroup, store: Store, snapshot: RankSnapshot, run: str) -> tuple[Position | None, int]:
    """Returns the version of all ranks' snapshots, and the number of the newest version that any rank began (-1: none).

    Removes the packs of versions that are not sealed at every rank, or are later than that of the snapshots: they were
    never announced. Where the snapshots are not of one version, it returns None for it and removes all packs; the next
    version is then written out whole. All ranks call this together. Raises `RanksError`, `StoreError`.
    """
    sealed = [pack for pack in store.packs() if pack.manifest.run == run and pack.sealed]
    mine = _RankState(snapshot.position, snapshot.newest, [pack.signed.id for pack in sealed])
    states = [msgspec.msgpack.decode(data, type=_RankState) for data in ranks.gather(msgspec.msgpack.encode(mine))]
    first = states[0].position
    same = first is not None and first.run == run and all(one.position == first for one in states)
    position = first if same else None
    everywhere = set(mine.packs).intersection(*(one.packs for one in states))
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
    return position, max(one.newest for one in states)


def remove_all_but(store: Store, keep: set[bytes]) -> list[bytes]:
    """Remove packs that are not kept; returns the ids of those that went. Raises `StoreError`."""
    gone = [pack.signed.id for pack in store.packs() if pack.signed.id not in keep]
    for id in gone:
        store.remove(id)
    return gone
