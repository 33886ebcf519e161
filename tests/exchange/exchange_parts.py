"""Parts of the specifications of the exchange: an exchange under test, with shorthands."""

from __future__ import annotations

import random
from typing import TypeVar

import numpy as np

from p2psync.protocol.messages import SHORT_ID_BYTES, Bitfield, Chunk, Message, Request
from p2psync.swarm.exchange.actions import Action, SendChunk
from p2psync.swarm.exchange.bitmap import pack_bitmap
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.exchange import Exchange
from tests.swarm.swarm_parts import chunk_data, flags, id_of, manifest_of

CONFIG = ExchangeConfig(
    window_least=1000,
    window_most=4000,
    surplus_most=8000,
    flush_limit=250,
    push_room=1,
    request_timeout=5.0,
    horizon=0.5,
)

T = TypeVar("T")


class Bench:
    """A swarm under test, its manifest, and what it did since the last look."""

    def __init__(
        self, chunks: int = 8, *, config: ExchangeConfig = CONFIG, seed: int = 1, node: str = "", base: int | None = 0
    ) -> None:
        self.swarm = Exchange(config, random.Random(seed), node)
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

    def peer(self, name: str, *held: int, now: float = 0.0, same_region: bool = False) -> None:
        """A peer that says what it holds."""
        assert self.swarm.peer_up(name, same_region, now)
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


def asked(bench: Bench) -> dict[str, list[int]]:
    """The chunks asked of each peer since the last look."""
    found: dict[str, list[int]] = {}
    for name, request in bench.sent(Request):
        found.setdefault(name, []).extend(request.chunks)
    return found
