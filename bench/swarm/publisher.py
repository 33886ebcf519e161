"""A trainer in a race: the real node, which publishes drawn weights on command.

    python -m p2psync.bench.swarm.publisher '{…}'     (see `PublisherOptions`)

It writes a JSON object a line: `{"ready": URL, "public": KEY}`, `{"peers": N}`, and for each version what
`PublishedVersion` names. It reads a command a line: `base N` (publish N random bytes: an anchor), `delta N` (change so
much of it that about N bytes are published).
"""

from __future__ import annotations

import asyncio
import bisect
import math
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.bench.swarm.jsonl import write_line
from p2psync.delta.tensors import TensorKind, TensorSpec, Units
from p2psync.delta.warm import warm
from p2psync.observe.events import Event, PeerDown, PeerUp, Published, Trouble
from p2psync.protocol.keys import public_text
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.node import TrainerNode
from p2psync.trainer.versions.builder import BuiltVersion

#: Units of one tensor.
_TENSOR = 1 << 22
#: How often the node is asked which plan it follows (seconds).
_GLANCE = 0.1


class PublisherOptions(msgspec.Struct, frozen=True):
    """key: 32 bytes in hex. address: of this host. cold: the process writes `{"loaded": true}` and waits for a line
    before the node starts."""

    store: str
    address: str
    region: str
    key: str
    seed: int
    hub_port: int
    port: int
    congestion: str = "auto"
    cold: bool = False


class PublishedVersion(msgspec.Struct, frozen=True):
    """A version. id: of its manifest, in hex. Moments of time.monotonic: of the call to publish, of the signed manifest
    and its chunks being durable, and of the version being offered to peers and the hub, after the trainer has tried it
    on its own copy."""

    version: int
    id: str
    payload_bytes: int
    chunks: int
    called: float
    sealed: float
    offered: float


class RaceWeights:
    """Random bf16 tensors: a source."""

    def __init__(self, nbytes: int, rng: np.random.Generator) -> None:
        counts = [min(_TENSOR, nbytes // 2 - at) for at in range(0, max(1, nbytes // 2), _TENSOR)]
        self.specs = [TensorSpec(TensorKind.TENSOR, f"w.{i:05d}", "BF16", (count,)) for i, count in enumerate(counts)]
        self._rng = rng
        self._bits = {spec: rng.integers(0, 1 << 16, spec.count, np.uint16) for spec in self.specs}

    def units(self, spec: TensorSpec) -> Units:
        """See `p2psync.trainer.versions.source.Source`."""
        return self._bits[spec]

    @property
    def count(self) -> int:
        """Units in all."""
        return sum(spec.count for spec in self.specs)

    def change(self, count: int) -> int:
        """Move about `count` units, anywhere, by one; returns how many were moved."""
        share = min(1.0, count / self.count)
        moved = 0
        for bits in self._bits.values():
            where = np.flatnonzero(self._rng.random(bits.size, np.float32) < share)
            bits[where] += self._rng.choice(np.array([1, 0xFFFF], np.uint16), where.size)
            moved += where.size
        return moved


class RaceTrainer(TrainerNode):
    """A trainer that notes when a version was ready."""

    made: BuiltVersion | None = None
    offered = 0.0

    def _offer(self, made: BuiltVersion, checkpoint: str = "") -> Published:
        event = super()._offer(made, checkpoint)
        self.made, self.offered = made, time.monotonic()
        return event


class RacePublisher:
    """Run the process."""

    def __init__(self, options: PublisherOptions) -> None:
        self._options = options
        self._rng = np.random.default_rng(options.seed)
        self._weights = RaceWeights(0, self._rng)
        #: The last delta's size as a multiple of the least one.
        self._factor = 1.0

    async def run(self) -> None:
        """Runs until standard input ends."""
        options = self._options
        key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(options.key))
        config = TrainerConfig(
            store=Path(options.store),
            key=key,
            host=options.address,
            hub_port=options.hub_port,
            port=options.port,
            advertise=options.address,
            region=options.region,
            congestion=options.congestion,
            profile="fast",
            squash=False,
            anchor_ratio=1e9,
        )
        node = self._node = RaceTrainer(config, self._hear)
        await asyncio.to_thread(warm)
        if options.cold:
            write_line({"loaded": True})
            await asyncio.to_thread(sys.stdin.readline)
        await node.start()
        plans = asyncio.create_task(self._tell_plans())
        try:
            write_line({"ready": node.hub_url, "public": public_text(key.public_key().public_bytes_raw())})
            while line := await asyncio.to_thread(sys.stdin.readline):
                what, count = line.split()
                await (self._base if what == "base" else self._delta)(int(count))
        finally:
            plans.cancel()
            await node.stop()

    async def _tell_plans(self) -> None:
        """Reports each new plan that the node follows."""
        revision = 0
        while True:
            plan = self._node.runner.core.plan
            if plan is not None and plan.revision != revision:
                revision = plan.revision
                write_line(
                    {"plan": revision, "rate": sum(place.rate for place in plan.positions), "at": time.monotonic()}
                )
            await asyncio.sleep(_GLANCE)

    async def _base(self, nbytes: int) -> None:
        self._weights = RaceWeights(nbytes, self._rng)
        write_line(await self._publish())

    async def _delta(self, nbytes: int) -> None:
        moved = self._weights.change(count_for(nbytes / self._factor, self._weights.count))
        made = await self._publish()
        self._factor = made.payload_bytes / least_bytes(moved, self._weights.count)
        write_line(made)

    async def _publish(self) -> PublishedVersion:
        called = time.monotonic()
        await self._node.publish(self._weights)
        made, offered = self._node.made, self._node.offered
        assert made is not None
        return PublishedVersion(
            made.position.version,
            made.pack.signed.id.hex(),
            made.pack.manifest.payload_bytes,
            made.pack.manifest.chunks,
            called,
            offered - made.apply_seconds,
            offered,
        )

    def _hear(self, event: Event) -> None:
        if isinstance(event, PeerUp | PeerDown):
            write_line({"peers": self._node.runner.peers})
        elif isinstance(event, Trouble):
            print(event.line(), file=sys.stderr, flush=True)


def least_bytes(changed: int, count: int) -> float:
    """Returns the least bytes that tell which units of `count` have changed, anywhere, and which way."""
    share = changed / count
    places = -sum(part * math.log2(part) for part in (share, 1 - share) if part)
    return (places * count + changed) / 8


def count_for(nbytes: float, count: int) -> int:
    """Returns how many of `count` units may change so that it takes so many bytes: half of them at most."""
    return bisect.bisect(range(1, count // 2), nbytes, key=lambda changed: least_bytes(changed, count))


if __name__ == "__main__":
    uvloop.run(RacePublisher(msgspec.json.decode(sys.argv[1], type=PublisherOptions)).run())
