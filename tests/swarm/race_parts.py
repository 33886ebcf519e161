"""A race of swarm cores in virtual time over a fluid network: uplinks, region links and downlinks take turns in order.

No sockets, no hub, no engines: what is left is what the core and the plan make of a network. Chunks stand for ones that
are `SCALE` times as large, on links as much faster.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3

from p2psync.protocol.manifest import Manifest, pack_table
from p2psync.protocol.messages import SHORT_ID_BYTES, Chunk, Message
from p2psync.protocol.plan import NodePlan
from p2psync.swarm.core import Ban, Complete, Send, SendChunk, Swarm, SwarmConfig
from topology.bound import least_makespan
from topology.network import Network
from topology.planner import make_plan

SCALE = 1024
#: TCP/IP and frames: bytes on the wire for each byte of a chunk.
HEADERS = 1.04
_MBIT = 1e6 / 8 / SCALE
_ID = blake3(b"race").digest()


def race_manifest(payload: int, chunk: int) -> tuple[Manifest, list[bytes]]:
    """A manifest of so many bytes in chunks of so many, both scaled down, and its chunks."""
    size, count = chunk // SCALE, payload // chunk
    data = [i.to_bytes(4, "little") * (size // 4) for i in range(count)]
    manifest = Manifest(
        run="0" * 32,
        epoch=1,
        version=1,
        base=0,
        digest=bytes(16),
        base_digest=bytes(16),
        profile="fast",
        block_units=1 << 16,
        table=pack_table([]),
        sizes=[size] * count,
        hashes=b"".join(blake3(d).digest() for d in data),
        first_rows=[0] * count,
        changed=0,
        total=0,
        created=0.0,
    )
    return manifest, data


def _scaled(plan: NodePlan) -> NodePlan:
    places = [msgspec.structs.replace(place, rate=place.rate / SCALE) for place in plan.places]
    return msgspec.structs.replace(plan, places=places)


@dataclass
class Race:
    """One payload from the trainer to everyone. `run` returns the seconds until the last has it.

    copies: of the payload that the trainer handed out. wasted: received chunks that were of no use, in copies for each
    receiver. crossed: copies that went from one region to another.
    """

    network: Network
    payload: int = 64 << 20
    chunk: int = 64 << 10
    planned: bool = True
    silent: frozenset[str] = frozenset()
    at: dict[float, Callable[[Race], None]] = field(default_factory=dict)

    def run(self, limit: float = 300.0) -> float:
        """Raises AssertionError if somebody has not got it within `limit` seconds."""
        self._prepare()
        for when, call in self.at.items():
            self.call(when, call, self)
        while self._heap and not self._over():
            self.now, _, function, arguments = heapq.heappop(self._heap)
            assert self.now < limit, f"{sorted(set(self.names) - self.done.keys())} have not got it"
            function(*arguments)
        assert self._over(), f"{sorted(set(self.names) - self.done.keys())} wait for nothing"
        return max(self.done[name] for name in self.names if name not in self.gone)

    @property
    def bound(self) -> float:
        """The least possible, headers not counted (seconds)."""
        return least_makespan(self.network, self.payload)

    @property
    def copies(self) -> float:
        """See above."""
        return self.swarms[self.trainer].sent_bytes / sum(self.manifest.sizes)

    @property
    def wasted(self) -> float:
        """See above."""
        total = sum(self.manifest.sizes) * (len(self.names) - 1)
        return sum(swarm.wasted_bytes for swarm in self.swarms.values()) / total

    def kill(self, name: str) -> None:
        """A node ends; its peers notice a little later."""
        self.gone.add(name)
        for other in self.names:
            if other != name:
                self.call(self.now + 0.1, self._lose, other, name)

    def call(self, when: float, function: Callable[..., None], *arguments: Any) -> None:
        """Call at a time."""
        heapq.heappush(self._heap, (when, next(self._ties), function, arguments))

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        network = self.network
        self.names = list(network.names)
        self.trainer = self.names[network.trainer]
        self.manifest, self._data = race_manifest(self.payload, self.chunk)
        self.up = {name: float(network.up[i]) * _MBIT for i, name in enumerate(self.names)}
        self._down = {name: float(network.down[i]) * _MBIT for i, name in enumerate(self.names)}
        self._region = {name: int(network.region[i]) for i, name in enumerate(self.names)}
        self._free: dict[Any, float] = {}
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._ties = itertools.count()
        self._wake: dict[str, float] = {}
        self.now = 0.0
        self.done: dict[str, float] = {}
        self.gone: set[str] = set()
        self.crossed: dict[tuple[int, int], float] = {}
        config = SwarmConfig(
            window_least=(256 << 10) // SCALE,
            window_most=(16 << 20) // SCALE,
            flush_limit=(256 << 10) // SCALE,
            flight_least=(256 << 10) // SCALE,
        )
        self.swarms = {name: Swarm(config, random.Random(i)) for i, name in enumerate(self.names)}
        for a, b in itertools.permutations(self.names, 2):
            self.swarms[a].peer_up(b, self._region[a] == self._region[b], 0.0, source=b == self.trainer)
        if self.planned:
            for name, plan in zip(self.names, make_plan(network, revision=1).node_plans(), strict=True):
                self.swarms[name].follow(_scaled(plan), 0.0)
        self._begin(self.trainer)
        for name in self.names:
            if name != self.trainer:
                self.call(self._delay(self.trainer, name), self._begin, name)

    def _begin(self, name: str) -> None:
        every, none = np.ones(self.manifest.chunks, np.bool_), np.zeros(self.manifest.chunks, np.bool_)
        held, wanted = (every, none) if name == self.trainer else (none, every)
        self.swarms[name].begin(_ID, self.manifest, held, wanted, self.now)
        self._drain(name)

    def _over(self) -> bool:
        return self.done.keys() | self.gone >= set(self.names)

    def _delay(self, a: str, b: str) -> float:
        return float(self.network.delay[self._region[a], self._region[b]]) + 0.0002

    def _drain(self, name: str) -> None:
        if name in self.gone:
            return
        swarm = self.swarms[name]
        swarm.poll(self.now)
        while actions := swarm.actions():
            for action in actions:
                self._do(name, action)
        wake = swarm.next_wake()
        if wake is not None and wake < self._wake.get(name, float("inf")):
            self._wake[name] = wake
            self.call(max(wake, self.now), self._alarm, name, wake)

    def _alarm(self, name: str, wake: float) -> None:
        if self._wake.get(name) == wake:
            del self._wake[name]
        self._drain(name)

    def _do(self, name: str, action: object) -> None:
        if isinstance(action, Send):
            self.call(self.now + self._delay(name, action.peer), self._receive, action.peer, name, action.message)
        elif isinstance(action, SendChunk) and name not in self.silent:
            left = self._pass(("up", name), self.up[name], self.now)
            self.call(left, self._left, name, action.peer)
            chunk = Chunk(_ID[:SHORT_ID_BYTES], action.index, self._data[action.index], action.tag)
            self.call(left, self._cross, name, action.peer, chunk)
        elif isinstance(action, Complete):
            self.done.setdefault(name, self.now)
        else:
            assert not isinstance(action, Ban), action

    def _pass(self, link: object, rate: float, now: float) -> float:
        size = self.manifest.sizes[0] * HEADERS
        self._free[link] = max(now, self._free.get(link, 0.0)) + size / rate
        return self._free[link]

    def _left(self, name: str, peer: str) -> None:
        self.swarms[name].flushed(peer, self.manifest.sizes[0], self.now)
        self._drain(name)

    def _cross(self, a: str, b: str, chunk: Chunk) -> None:
        pair = self._region[a], self._region[b]
        when = self.now
        if pair[0] != pair[1]:
            self.crossed[pair] = self.crossed.get(pair, 0.0) + 1 / self.manifest.chunks
            when = self._pass(pair, float(self.network.rate[pair]) * _MBIT, when)
        self.call(when + self._delay(a, b), self._enter, a, b, chunk)

    def _enter(self, a: str, b: str, chunk: Chunk) -> None:
        self.call(self._pass(("down", b), self._down[b], self.now), self._receive, b, a, chunk)

    def _receive(self, name: str, sender: str, message: Message) -> None:
        if name not in self.gone and sender not in self.gone:
            self.swarms[name].receive(sender, message, self.now)
            self._drain(name)

    def _lose(self, name: str, peer: str) -> None:
        self.swarms[name].peer_down(peer, self.now)
        self._drain(name)
