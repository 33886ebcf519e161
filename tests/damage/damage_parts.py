"""An actor's or relay's follower, engine and store, without a network: chunks come straight from the publisher."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("engines", "store")]

from engine_parts import Files, Run, Weights, perturb, tensor, tree, write_files
from store_parts import KEY

from p2psync.actor.node import chunk_reader
from p2psync.engines.base import PathStep
from p2psync.engines.directory.engine import DirectoryEngine
from p2psync.engines.relay import RelayEngine
from p2psync.errors import P2PSyncError
from p2psync.membership.records import Announcement, NodeInfo, View
from p2psync.net.engine_driver import EngineDriver
from p2psync.observe.events import Event, Trouble
from p2psync.protocol.manifest import Manifest, SignedManifest, sign
from p2psync.store.packs import Store
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.exchange.actions import Save
from p2psync.swarm.node import NodeCore
from p2psync.swarm.synchronizer.actions import (
    AbandonStage,
    Adopt,
    CommitStage,
    Fetch,
    GetManifest,
    OpenStage,
    Retire,
    StageChunk,
    StopFetch,
)
from p2psync.swarm.synchronizer.follower import Follower
from p2psync.swarm.synchronizer.states import SyncState
from p2psync.trainer.versions.builder import announcement_of

#: Versions that are published; and rounds of a follower's life after which it must be there or have refused.
VERSIONS, ROUNDS = 4, 60


class Published:
    """A few versions of a small checkpoint: an anchor of the first and of the last, and the deltas between."""

    def __init__(self, place: Path) -> None:
        self.run = Run()
        self.signed: dict[bytes, SignedManifest] = {}
        self.manifests: dict[bytes, Manifest] = {}
        self.chunks: dict[bytes, list[bytes]] = {}
        self.trees: list[dict[str, bytes]] = []
        self.announced: list[tuple[int, Announcement]] = []
        big: Weights = {"big": tensor(0, "BF16", 40_000), "scale": tensor(1, "F8_E4M3", 20_000)}
        small: Weights = {"norm": tensor(2, "F32", 33), "scalar": tensor(4, "I64")}
        made = []
        for version in range(VERSIONS):
            files: Files = {
                "model-1.safetensors": big,
                "sub/model-2.safetensors": small,
                "config.json": b'{"step": %d}' % version,
            }
            made.append(write_files(place / f"v{version}", files))
            self.trees.append(tree(made[-1]))
            big, small = perturb(big, version), perturb(small, version)
            self._add(version, self.run.anchor(version, made[version]))
            if version:
                self._add(version, self.run.delta(version - 1, version, made[version - 1], made[version]))

    def _add(self, version: int, step: PathStep) -> None:
        signed = sign(step.manifest, KEY)
        self.signed[signed.id], self.manifests[signed.id] = signed, step.manifest
        self.chunks[signed.id] = self.run.data(step)
        self.announced.append((version, announcement_of(signed, step.manifest)))

    def view(self, version: int) -> View:
        """Returns the hub's view once `version` is announced."""
        lineage = [a for number, a in self.announced if number <= version]
        run = next(iter(self.manifests.values())).run
        return View(instance="hub", revision=version + 1, run=run, epoch=1, head=version, lineage=lineage)


class Refused(Exception):
    """A start that was refused, in one line."""


class Life:
    """One process's life: a follower, its engine and its store, on the loop; `now` runs ahead where it would wait."""

    def __init__(self, published: Published, root: Path, *, relay: bool, hook: Callable[[str], None]) -> None:
        """Opens everything, as an actor's start does. Raises `P2PSyncError`."""
        self.published = published
        self.root = root
        self.troubles: list[str] = []
        self.counts: Counter[str] = Counter()
        self.store = Store(root / ".p2psync" / "swarm" / "packs")
        try:
            self.engine: DirectoryEngine | RelayEngine = (
                RelayEngine(root / "relay.json", self.store)
                if relay
                else DirectoryEngine(root, chunk_reader(self.store), reader_limit=0.0, hook=hook)
            )
        except BaseException:
            self.store.close()
            raise
        self.troubles += self.store.diagnostics
        self.follower = Follower(self.engine.position, self.engine.unidentified_digest())
        info = NodeInfo(node="a" * 32, role="relay" if relay else "actor")
        self.core = NodeCore(info, NodeConfig(), random.Random(1), self.follower)
        self.driver = EngineDriver(
            self.engine, self.core, self.store, on_event=self._hear, on_trouble=self.troubles.append
        )
        self._fetching: dict[bytes, tuple[int, ...]] = {}
        self._skew = 0.0
        for pack in self.store.packs():
            self.follower.manifest(pack.signed.id.hex(), pack.manifest, self.now)
            self.follower.holds_bytes(pack.signed.id, sum(s for i, s in enumerate(pack.manifest.sizes) if pack.have[i]))

    def _hear(self, event: Event) -> None:
        if isinstance(event, Trouble):
            self.troubles.append(event.message)

    @property
    def now(self) -> float:
        """Returns the loop's time plus the skipped time."""
        return asyncio.get_running_loop().time() + self._skew

    async def close(self) -> None:
        """Ends as a killed process does: leaves the files as they are."""
        await self.driver.stop()
        if isinstance(self.engine, DirectoryEngine):
            self.engine.close()
        self.store.close()

    async def follow(self, version: int, between: Callable[[], None]) -> bool:
        """Go to `version`; `between`: called in each round. False if it did not get there within `ROUNDS` failures."""
        self.follower.viewed(self.published.view(version), self.now)
        for _ in range(ROUNDS * 20):
            between()
            await self.driver.inspect()
            await self._act()
            self._serve()
            await self._supply()
            live = self.follower.position
            if live is not None and live.version == version and self.follower.state is SyncState.IDLE:
                return True
            if self.follower.state is SyncState.IDLE:
                self.counts["pauses"] += 1
                if self.counts["pauses"] > ROUNDS:
                    return False
                self._skew += max(0.0, self.follower.next_wake() - self.now) if self.follower.next_wake() < 1e18 else 1
                self.follower.poll(self.now)
        return False

    async def _act(self) -> None:
        for action in self.follower.actions():
            self.counts[type(action).__name__] += 1
            match action:
                case GetManifest():
                    self.follower.manifest(action.id, self.published.manifests[bytes.fromhex(action.id)], self.now)
                case Adopt() | OpenStage() | CommitStage():
                    await self.driver.run(action)
                case StageChunk():
                    if not self.driver.stage_at_once(action):
                        await self.driver.run(action)
                case Fetch():
                    self._fetching[action.step.id] = action.wanted
                case AbandonStage():
                    await self.driver.abandon()
                case StopFetch():
                    self._fetching.pop(action.id, None)
                case Retire():
                    self._fetching.pop(action.id, None)
                    try:
                        await self.driver.in_worker(lambda id=action.id: self.store.remove(id))  # type: ignore[misc]
                    except P2PSyncError as error:
                        self.troubles.append(str(error))

    async def _supply(self) -> None:
        """Supplies the wanted chunks that are missing, as a swarm would."""
        for id, wanted in list(self._fetching.items()):
            try:
                pack = self.store.get(id) or self.store.add(self.published.signed[id], self.published.manifests[id])
                for index in wanted:
                    data = self.published.chunks[id][index]
                    if not pack.have[index]:
                        self.counts["fetched"] += 1
                        pack.write(index, data)
                    self.core.saved(Save(id, index, data))
                if pack.complete:
                    pack.seal()
            except P2PSyncError as error:
                self.troubles.append(str(error))
                self._fetching.pop(id, None)
                self.core.store_failed(id, str(error), self.now)

    def _serve(self) -> None:
        """Checks that a peer that requests a chunk gets that chunk, or nothing."""
        for pack in self.store.packs():
            for index, right in enumerate(self.published.chunks[pack.id]):
                try:
                    given = pack.view(index)
                except P2PSyncError as error:
                    self.troubles.append(str(error))
                    continue
                if given is not None and bytes(given) != right:
                    raise AssertionError(f"chunk {index} of {pack.path.name[:8]} was served with other bits")
                if given is None and pack.have[index]:
                    raise AssertionError("a chunk that is not given counts as held")

    def check_claim(self) -> None:
        """Checks that `current` holds the live version, bit for bit."""
        live = self.engine.position
        if live is None or not isinstance(self.engine, DirectoryEngine):
            return
        held = tree((self.root / "current").resolve())
        held = {name: data for name, data in held.items() if not Path(name).name.startswith(".")}
        if held != self.published.trees[live.version]:
            differ = sorted(
                k
                for k in held.keys() | self.published.trees[live.version].keys()
                if held.get(k) != self.published.trees[live.version].get(k)
            )
            raise AssertionError(f"version {live.version} is claimed, and {differ} are not its files")


def one_line(lines: list[str]) -> None:
    """Checks that each message is one line."""
    for line in lines:
        if "\n" in line or len(line) > 1000 or not line.strip() or "Traceback" in line:
            raise AssertionError(f"not one line: {line!r}")
