"""Damages the files of whole nodes on loopback: a trainer, a relay and two actors, while they run and in between.

    python -m tests.damage.fuzz_nodes --seeds 0:40

Which files are damaged follows from the seed; when exactly it happens depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import traceback
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("", "damage", "engines", "store")]

from damage_parts import VERSIONS, Published, one_line
from damages import damage_one
from engine_parts import tree
from store_parts import KEY

from p2psync.actor.directory import open_directory
from p2psync.actor.node import ActorConfig, ActorNode, make_relay
from p2psync.errors import P2PSyncError
from p2psync.observe.events import Event, Trouble
from p2psync.store.records import clear
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.daemon import publish_checkpoint
from p2psync.trainer.node import TrainerNode

#: How long a node may take to be at the newest version again (seconds): its pauses after failures double.
LIMIT = 60.0
TRUSTED = frozenset({KEY.public_key().public_bytes_raw()})


class Node:
    """One actor or relay, which can be ended and started again."""

    def __init__(self, root: Path, hub: str, *, is_relay: bool) -> None:
        self.root, self.is_relay, self._hub = root, is_relay, hub
        self.troubles: list[str] = []

    async def start(self) -> None:
        """Starts the node. Raises `P2PSyncError` if it refuses its files."""
        config = ActorConfig(
            hub_url=self._hub,
            trusted=TRUSTED,
            store=self.root / ".p2psync" / "swarm",
            host="127.0.0.1",
            scrub_share=1.0,
        )
        if self.is_relay:
            self.node = make_relay(config, on_event=self._hear)
        else:
            self.node = ActorNode(
                config, lambda store: open_directory(self.root, store, None, 1.0), on_event=self._hear
            )
        await self.node.start()

    def _hear(self, event: Event) -> None:
        if isinstance(event, Trouble):
            self.troubles.append(event.message)


async def run_case(seed: int, published: Published, place: Path, root: Path) -> str:
    """Runs one seed; returns the damage and the outcome. Raises for a wrong outcome."""
    dice = random.Random(f"nodes {seed}")
    done: list[str] = []
    trainer = TrainerNode(
        TrainerConfig(store=root / "trainer", key=KEY, host="127.0.0.1", hub_port=0, port=0, plan=False)
    )
    await trainer.start()
    nodes = [Node(root / name, trainer.hub_url, is_relay=name == "relay") for name in ("a", "b", "relay")]
    running = list(nodes)
    try:
        for node in nodes:
            await node.start()
        for version in range(VERSIONS):
            await publish_checkpoint(trainer, place / f"v{version}")
            if version:
                victim = dice.choice(running)
                rest = dice.random() < 0.4
                if rest:
                    await victim.node.stop()
                what = damage_one(victim.root, dice, lambda path: path.name == "lock")
                done.append(f"{victim.root.name} {'at rest' if rest else 'running'}: {what}")
                if rest:
                    try:
                        await victim.node.start()
                    except P2PSyncError as error:
                        one_line([str(error)])
                        done.append(f"refused: {error}")
                        running.remove(victim)
            for node in running:
                await _arrive(node, version, done)
                if not node.is_relay:
                    _check(node, published, version, done)
        for node in nodes:
            one_line(node.troubles)
    except BaseException:
        raise AssertionError(f"{done}: {[node.troubles[-5:] for node in nodes]}") from sys.exc_info()[1]
    finally:
        for node in running:
            await node.node.stop()
        await trainer.stop()
    return "; ".join(done)


async def _arrive(node: Node, version: int, done: list[str]) -> None:
    try:
        async with asyncio.timeout(LIMIT):
            await node.node.until(version)
    except TimeoutError:
        if not (node.troubles and "move it away" in node.troubles[-1]):
            raise
        done.append(f"refused: {node.troubles[-1]}")


def _check(node: Node, published: Published, version: int, done: list[str]) -> None:
    link = node.root / "current"
    if not link.is_symlink():
        done.append("no link")
        return
    held = {name: data for name, data in tree(link.resolve()).items() if not name.startswith(".")}
    # Weights in a subdirectory are a checkpoint of their own, which the daemon does not publish with this one.
    if held != {name: data for name, data in published.trees[version].items() if "/" not in name}:
        # Damage after the commit is seen within a second.
        node.node.engine.inspect()  # type: ignore[attr-defined]
        live = node.node.position
        assert live is None or live.version != version, f"{node.root.name} claims version {version} with other bits"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:10", help="FIRST:END, or one")
    seeds = parser.parse_args().seeds
    command = "python -m tests.damage.fuzz_nodes --seeds"
    print(f"{command} {seeds}", flush=True)
    first, _, end = seeds.partition(":")
    faults = 0
    with tempfile.TemporaryDirectory(prefix="p2psync-nodes-") as folder:
        place = Path(folder)
        published = Published(place / "published")
        for seed in range(int(first), int(end) if end else int(first) + 1):
            try:
                print(seed, asyncio.run(run_case(seed, published, place / "published", place / "case")), flush=True)
            except Exception:
                faults += 1
                print(f"FAULT {seed}: {traceback.format_exc()}\n  again: {command} {seed}", flush=True)
            clear(place / "case")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
