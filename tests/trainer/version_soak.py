"""Publishes thousands of small versions to one actor, and prints the costs of each thousand.

    python -m tests.trainer.version_soak --versions 10000

One process holds a trainer with its hub, and an actor that keeps a directory; both are those of the daemons. The model
is 1 MiB, and each version changes a few elements: its delta is far below 1/4096 of an anchor. Nothing that is printed
may grow with the number of versions.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.actor.directory import open_directory
from p2psync.actor.node import ActorConfig, ActorNode
from p2psync.delta.tensors import TensorKind, TensorSpec
from p2psync.errors import P2PSyncError
from p2psync.observe.events import Event, Trouble
from p2psync.store.packs import Store
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.node import TrainerNode
from p2psync.trainer.versions.tensors import TensorSource

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
#: Elements of the model, and those that one version changes.
ELEMENTS, CHANGED = 1 << 19, 4
#: Seconds that a version may take, on a machine that does other work too.
LIMIT = 600.0


@dataclass(frozen=True)
class ResourceUsage:
    """The resources that the process and its stores hold after a version.

    files, store_bytes: below both stores. announced, view_bytes: of the hub's lineage, and of the view of it that a
    newcomer gets.
    """

    version: int
    cpu_seconds: float
    descriptors: int
    rss: int
    packs: int
    actor_packs: int
    announced: int
    view_bytes: int
    files: int
    store_bytes: int


class Soak:
    """A trainer and an actor over one small model. An async context manager."""

    def __init__(self, place: Path, **settings: object) -> None:
        """settings: of the `TrainerConfig`, besides those that a test on one machine needs."""
        self.place = place
        self.troubles: list[str] = []
        rng = np.random.default_rng(1)
        self._rng = rng
        self._bits = torch.from_numpy(rng.integers(0, 1 << 15, ELEMENTS, np.int16)).view(torch.bfloat16)
        spec = TensorSpec(int(TensorKind.TENSOR), "w", "BF16", (ELEMENTS,))
        self._source = TensorSource({spec: self._bits})
        alone = {"host": "127.0.0.1", "hub_port": 0, "port": 0, "plan": False, "probe": False}
        self.trainer = TrainerNode(
            TrainerConfig(**{"store": place / "trainer", "key": KEY} | alone | settings), self._heard
        )
        self.actor: ActorNode

    async def __aenter__(self) -> Soak:
        await self.trainer.start()
        config = ActorConfig(
            hub_url=self.trainer.hub_url,
            trusted=frozenset({KEY.public_key().public_bytes_raw()}),
            store=self.place / "actor",
            host="127.0.0.1",
            probe=False,
            scrub_share=0.0,
        )
        into = self.place / "into"
        self.actor = ActorNode(config, lambda store: open_directory(into, store, None, 60.0), on_event=self._heard)
        await self.actor.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.actor.stop()
        await self.trainer.stop()

    def _heard(self, event: Event) -> None:
        if isinstance(event, Trouble):
            self.troubles.append(str(event))

    async def publish(self) -> int:
        """Publish a version, and wait until the hub knows that the actor runs it; returns its number."""
        at = self._rng.integers(0, ELEMENTS, CHANGED)
        self._bits.view(torch.int16)[torch.from_numpy(at)] += 1
        made = await self.trainer.publish(self._source)
        assert made is not None, "some bit changed"
        await self.trainer.announced()
        await self.actor.until(made.version)
        return made.version

    async def settled(self) -> None:
        """Wait until a due anchor is made, and all nodes know which manifests were retired."""
        await self.trainer.anchored()
        hub = self.trainer.hub
        assert hub is not None
        cores = [self.trainer.runner.core, self.actor.runner.core]
        while (  # noqa: ASYNC110 (three programs settle, none of which tells of it)
            any((view := core.membership.view) is None or view.revision < hub.core.revision for core in cores)
            or {pack.id for pack in self.actor.store.packs()} - {pack.id for pack in self.trainer.runner.store.packs()}
            or hub.core.announced != len(self.trainer.runner.store.packs())
        ):
            await asyncio.sleep(0.01)

    def usage(self) -> ResourceUsage:
        """Returns the figures now."""
        hub = self.trainer.hub
        assert hub is not None
        files = [path for root in ("trainer", "actor") for path in (self.place / root).rglob("*") if path.is_file()]
        return ResourceUsage(
            version=-1 if self.trainer.position is None else self.trainer.position.version,
            cpu_seconds=time.process_time(),
            descriptors=open_files(),
            rss=_resident(),
            packs=_packs(self.trainer.runner.store),
            actor_packs=_packs(self.actor.store),
            announced=hub.core.announced,
            view_bytes=len(msgspec.json.encode(hub.core.view())),
            files=len(files),
            store_bytes=sum(path.stat().st_size for path in files),
        )


def open_files() -> int:
    """Descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _packs(store: Store) -> int:
    return len(store.packs())


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def run(versions: int, every: int, place: Path) -> None:
    """Publish `versions` versions, and print a line for every `every` of them."""
    print(f"{'version':>8} {'CPU ms':>7} {'ms':>7} {'fds':>5} {'RSS MB':>7} {'packs':>11} {'announced':>9} ", end="")
    print(f"{'view kB':>8} {'files':>6} {'store MB':>8}", flush=True)
    async with Soak(place) as soak:
        cpu, began = time.process_time(), time.monotonic()
        for done in range(1, versions + 1):
            try:
                async with asyncio.timeout(LIMIT):
                    await soak.publish()
            except TimeoutError:
                sys.exit(f"version {done - 1} did not arrive within {LIMIT:.0f} s: {soak.troubles[-3:]}")
            except P2PSyncError as error:
                sys.exit(f"version {done - 1}: {error}")
            if done % every == 0 or done == versions:
                seconds, now, wall = time.process_time(), soak.usage(), time.monotonic()
                print(
                    f"{now.version:8} {(seconds - cpu) / every * 1e3:7.1f} {(wall - began) / every * 1e3:7.1f} "
                    f"{now.descriptors:5} {now.rss / 1e6:7.1f} {now.packs:5}/{now.actor_packs:5} {now.announced:9} "
                    f"{now.view_bytes / 1e3:8.1f} {now.files:6} {now.store_bytes / 1e6:8.2f}",
                    flush=True,
                )
                cpu, began = time.process_time(), time.monotonic()
        for trouble in sorted(set(soak.troubles)):
            print(f"trouble: {trouble}")


def main() -> None:
    """Run the long form of the test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=1_000, help="versions for each line")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="p2psync-soak-") as place:
        asyncio.run(run(args.versions, args.every, Path(place)))


if __name__ == "__main__":
    main()
