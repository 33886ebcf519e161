"""A node that is stopped drops what its engine was asked for and had not begun, and leaves nothing unawaited."""

from __future__ import annotations

import asyncio
import gc
import random
import warnings
from pathlib import Path

from p2psync.engines.relay import RelayEngine
from p2psync.membership.records import NodeInfo
from p2psync.net.engine_driver import EngineDriver
from p2psync.net.hub_client import HubClient
from p2psync.net.runner import NodeRunner
from p2psync.store.packs import Store
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.control.config import MeasureConfig
from p2psync.swarm.node import NodeCore
from p2psync.swarm.synchronizer.actions import AbandonStage
from p2psync.swarm.synchronizer.follower import Follower

#: Nothing listens at this port.
NOWHERE = "http://127.0.0.1:9"


def relay(place: Path, hub: HubClient) -> NodeRunner:
    """A relay at a hub that is not there."""
    info = NodeInfo(node="a" * 32, role="relay", host="127.0.0.1")
    store = Store(place / "packs")
    return NodeRunner(
        NodeCore(info, NodeConfig(), random.Random(1), Follower(None)),
        hub,
        store,
        trusted=frozenset(),
        instance="first",
        engine=RelayEngine(place / "position", store),
        measure=MeasureConfig(probe=False),
        widths=(),
    )


async def test_a_stop_in_the_turn_of_an_engines_action_leaves_no_coroutine_unawaited(tmp_path: Path) -> None:
    begun: list[object] = []

    async def abandon(driver: EngineDriver) -> None:
        begun.append(driver)

    async with HubClient(NOWHERE) as hub:
        runner = relay(tmp_path, hub)
        runner.start()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            runner._carry_out(AbandonStage())
            runner._drive(abandon)
            await runner.stop()
            gc.collect()
    assert not [str(warning.message) for warning in caught]
    assert begun == [], "what was not begun is dropped"
    assert asyncio.all_tasks() == {asyncio.current_task()}
