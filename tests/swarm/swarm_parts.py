"""Parts of the swarm's specifications: manifests of made-up chunks, announcements, views."""

from __future__ import annotations

import numpy as np
from blake3 import blake3

from p2psync.membership.records import Announcement, Member, NodeInfo, View
from p2psync.protocol.manifest import Manifest, pack_table
from p2psync.swarm.exchange.bitmap import Bits

RUN = "0123456789abcdef" * 2
CHUNK = 100
EMPTY_TABLE = pack_table([])


def chunk_data(index: int, salt: int = 0) -> bytes:
    """The bytes of a made-up chunk."""
    return bytes([index % 256, salt]) * (CHUNK // 2)


def manifest_of(chunks: int, *, version: int = 1, base: int | None = 0, epoch: int = 1, salt: int = 0) -> Manifest:
    """A manifest whose chunks are `chunk_data`; unchecked and unsigned."""
    return Manifest(
        run=RUN,
        epoch=epoch,
        version=version,
        base=base,
        digest=digest_of(version, salt),
        base_digest=bytes(16) if base is None else digest_of(base, salt),
        profile="fast",
        block_units=1 << 16,
        table=EMPTY_TABLE,
        sizes=[CHUNK] * chunks,
        hashes=b"".join(blake3(chunk_data(i, salt)).digest() for i in range(chunks)),
        first_rows=[0] * chunks,
        changed=0,
        total=0,
        created=0.0,
    )


def digest_of(version: int, salt: int = 0) -> bytes:
    """A made-up digest."""
    return bytes([version, salt]) * 8


def id_of(manifest: Manifest) -> bytes:
    """A made-up id: 32 bytes."""
    return blake3(repr((manifest.version, manifest.base, manifest.epoch, manifest.digest)).encode()).digest()


def flags(chunks: int, *held: int) -> Bits:
    """One flag per chunk."""
    out = np.zeros(chunks, np.bool_)
    out[list(held)] = True
    return out


def announce(manifest: Manifest, *, payload: int | None = None) -> Announcement:
    """What the hub says of a manifest."""
    return Announcement(
        id=id_of(manifest).hex(),
        version=manifest.version,
        base=manifest.base,
        epoch=manifest.epoch,
        digest=manifest.digest.hex(),
        base_digest=manifest.base_digest.hex(),
        payload_bytes=manifest.payload_bytes if payload is None else payload,
        manifest_bytes=1,
    )


def view_of(
    *lineage: Announcement,
    run: str = RUN,
    epoch: int = 1,
    revision: int = 1,
    members: tuple[NodeInfo, ...] = (),
) -> View:
    """A hub's view."""
    head = max(((a.epoch, a.version) for a in lineage), default=None)
    return View(
        instance="hub",
        revision=revision,
        run=run,
        epoch=epoch,
        head=head[1] if head else None,
        members=[Member(info=info) for info in members],
        lineage=list(lineage),
    )
