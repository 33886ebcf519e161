"""The announcer gets versions to a hub that is full, holds older manifests, or is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from trainer_parts import KEY, Arrays

from p2psync.membership.hub import HubConfig
from p2psync.net.hub import HubService
from p2psync.observe.events import Event, Trouble
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.node import TrainerNode

TRUSTED = frozenset({KEY.public_key().public_bytes_raw()})
LIMIT = 60.0


@asynccontextmanager
async def hub_of(**bounds: int) -> AsyncIterator[HubService]:
    """An external hub with these bounds, such as on the manifests that it holds."""
    service = HubService(HubConfig(trusted=TRUSTED, **bounds))
    await service.start("127.0.0.1", 0)
    try:
        yield service
    finally:
        await service.stop()


@asynccontextmanager
async def trainer_at(
    hub: HubService, place: Path, **settings: object
) -> AsyncIterator[tuple[TrainerNode, list[Event]]]:
    """A trainer at that hub, and its events."""
    events: list[Event] = []
    alone = {"host": "127.0.0.1", "port": 0, "probe": False}
    config = TrainerConfig(**{"store": place, "key": KEY, "hub_url": f"http://127.0.0.1:{hub.port}"} | alone | settings)
    node = TrainerNode(config, events.append)
    await node.start()
    try:
        yield node, events
    finally:
        await node.stop()


async def publish(node: TrainerNode, source: Arrays, versions: int) -> None:
    """Publish `versions` versions, and wait until the hub has each."""
    for _ in range(versions):
        assert await node.publish(source.step()) is not None
        async with asyncio.timeout(LIMIT):
            await node.announced()


@pytest.mark.parametrize("bounds", [{"max_manifests": 6}, {"max_manifests": 2}, {"max_manifest_bytes": 3000}])
async def test_announcer_announces_a_version_at_a_full_hub(tmp_path: Path, bounds: dict[str, int]) -> None:
    async with hub_of(**bounds) as hub, trainer_at(hub, tmp_path, anchor_ratio=1e9, keep=1000) as (node, events):
        source = Arrays(a=4000)
        await publish(node, source, 12)
        await node.anchored()
        assert hub.core.head == 11
        assert hub.core.announced <= bounds.get("max_manifests", 6)
        assert any(isinstance(event, Trouble) and "making room" in event.message for event in events)
        await publish(node, source, 2)
        assert hub.core.head == 13


async def test_announcer_retires_an_earlier_trainers_manifests_at_a_full_hub(tmp_path: Path) -> None:
    async with hub_of(max_manifests=4) as hub:
        async with trainer_at(hub, tmp_path / "one", anchor_ratio=1e9, keep=1000) as (node, _):
            source = Arrays(a=4000)
            await publish(node, source, 4)
            run = (tmp_path / "one" / "run.json").read_bytes()
        (tmp_path / "two").mkdir()
        (tmp_path / "two" / "run.json").write_bytes(run)  # it takes the run over, without any published version
        async with trainer_at(hub, tmp_path / "two", anchor_ratio=1e9, keep=1000) as (node, _):
            await publish(node, source, 3)
            assert hub.core.head == 2
            assert {a.epoch for a in hub.core.view().lineage} == {node.versions.epoch}


async def test_announcer_removes_unannounced_manifests_while_the_hub_is_away(tmp_path: Path) -> None:
    settings = {"anchor_ratio": 1e9, "anchor_deltas": 2, "keep": 0}
    async with hub_of() as hub, trainer_at(hub, tmp_path, **settings) as (node, _):
        source = Arrays(a=4000)
        await publish(node, source, 1)
        await hub.stop()
        for _ in range(12):
            assert await node.publish(source.step()) is not None
            await node.anchored()
        store = node.runner.store
        async with asyncio.timeout(LIMIT):
            while len(store.packs()) > 8:  # noqa: ASYNC110 (the announcer tells nobody of what it removes)
                await asyncio.sleep(0.05)
