"""Parts of the swarm's specifications: manifests of made-up chunks, a swarm with shorthands, announcements, views."""

from __future__ import annotations

import random
from typing import TypeVar

import numpy as np
from blake3 import blake3

from p2psync.membership.records import Announcement, Member, NodeInfo, View
from p2psync.protocol.manifest import Manifest, pack_table
from p2psync.protocol.messages import SHORT_ID_BYTES, Bitfield, Chunk, Message, Request
from p2psync.swarm.core import Action, SendChunk, Swarm, SwarmConfig
from p2psync.swarm.transfer import Bits, pack_bitmap

RUN = "0123456789abcdef" * 2
CHUNK = 100
CONFIG = SwarmConfig(
    window_least=1000, window_most=4000, surplus_most=8000, flush_limit=250, push_room=250, late_after=5.0, horizon=0.5
)
#: By then a first request is overdue, and not yet late (seconds).
OVERDUE = 1.0
EMPTY_TABLE = pack_table([])

T = TypeVar("T")


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


class Bench:
    """A swarm under test, its manifest, and what it did since the last look."""

    def __init__(
        self, chunks: int = 8, *, config: SwarmConfig = CONFIG, seed: int = 1, node: str = "", base: int | None = 0
    ) -> None:
        self.swarm = Swarm(config, random.Random(seed), node)
        self.manifest = manifest_of(chunks, base=base)
        self.id = id_of(self.manifest)
        self.short = self.id[:SHORT_ID_BYTES]
        self.chunks = chunks

    def fetch_all(self, now: float = 0.0) -> None:
        """Want every chunk, hold none."""
        self.swarm.begin(self.id, self.manifest, flags(self.chunks), np.ones(self.chunks, np.bool_), now)

    def seed_all(self, now: float = 0.0) -> None:
        """Hold every chunk."""
        self.swarm.begin(self.id, self.manifest, np.ones(self.chunks, np.bool_), flags(self.chunks), now)

    def peer(self, name: str, *held: int, now: float = 0.0, near: bool = False) -> None:
        """A peer that says what it holds."""
        assert self.swarm.peer_up(name, near, now)
        if held:
            self.have(name, *held, now=now)

    def have(self, name: str, *held: int, now: float = 0.0) -> None:
        """A peer says all that it holds."""
        self.say(name, Bitfield(self.short, pack_bitmap(flags(self.chunks, *held))), now)

    def say(self, name: str, message: Message, now: float = 0.0) -> None:
        """A message of a peer."""
        self.swarm.receive(name, message, now)

    def chunk(self, name: str, index: int, now: float = 0.0, data: bytes | None = None) -> None:
        """A chunk comes from a peer; the right one unless told otherwise."""
        self.say(name, Chunk(self.short, index, chunk_data(index) if data is None else data), now)

    def actions(self) -> list[Action]:
        """What was done since the last look."""
        return self.swarm.actions()

    def done(self, kind: type[T]) -> list[T]:
        """The actions of one kind since the last look."""
        return [action for action in self.actions() if isinstance(action, kind)]

    def sent(self, kind: type[T]) -> list[tuple[str, T]]:
        """The messages of one kind, with their receivers, since the last look."""
        found: list[tuple[str, T]] = []
        for action in self.actions():
            message = getattr(action, "message", None)
            if isinstance(message, kind):
                found.append((action.peer, message))  # type: ignore[union-attr]
        return found

    def served(self) -> list[tuple[str, int]]:
        """The chunks handed out since the last look."""
        return [(action.peer, action.index) for action in self.done(SendChunk)]


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


def asked(bench: Bench) -> dict[str, list[int]]:
    """The chunks asked of each peer since the last look."""
    found: dict[str, list[int]] = {}
    for name, request in bench.sent(Request):
        found.setdefault(name, []).extend(request.chunks)
    return found
