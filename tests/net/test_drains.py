"""What a node looks at when something came: where that were chunks or words on them, the swarm, until more is due."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from p2psync.membership.records import NodeInfo, NodeStatistics
from p2psync.net.hub_client import HubClient
from p2psync.net.runner import NodeRunner
from p2psync.protocol.messages import Ping
from p2psync.store.packs import Store
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.exchange.actions import Ban, Save
from p2psync.swarm.node import NodeCore
from tests.store.store_parts import make_pack

NEVER = float("inf")


class Node:
    """A node of which all but the swarm is due at `core_due`. looked: how often at the swarm, and at the rest."""

    def __init__(self, path: Path) -> None:
        self.core_due = NEVER
        self.looked = [0, 0]
        self.core = core = NodeCore(NodeInfo(node="n", role="relay", host="127.0.0.1"), NodeConfig(), random.Random(0))
        self.store, self.client = Store(path), HubClient("http://127.0.0.1:9")
        trusted: frozenset[bytes] = frozenset()
        self.runner = NodeRunner(core, self.client, self.store, trusted=trusted, instance="life", widths=())
        polled, swarm_polled = core.membership.poll, core.swarm.poll

        def poll(now: float) -> list[object]:
            self.looked[1] += 1
            polled(now)
            return []

        def poll_swarm(now: float) -> None:
            self.looked[0] += 1
            swarm_polled(now)

        core.membership.poll = poll  # type: ignore[assignment]
        core.swarm.poll = poll_swarm  # type: ignore[method-assign]
        core.next_wake_except_exchange = lambda: self.core_due  # type: ignore[method-assign]
        self.runner._peer_up("peer", "")

    async def settled(self) -> tuple[int, int]:
        """How often it looked at the swarm, and at the rest, until it had nothing to do."""
        self.looked = [0, 0]
        for _ in range(5):
            await asyncio.sleep(0)
        return self.looked[0], self.looked[1]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    assert await node.settled() == (1, 1), "a peer is up"
    yield node
    await node.runner.stop()
    node.store.close()
    await node.client.close()


async def test_what_a_peer_says_of_chunks_wakes_the_swarm_alone(node: Node) -> None:
    node.runner._message("peer", Ping(1))
    assert await node.settled() == (1, 0)
    node.runner._flushed("peer", 0)
    assert await node.settled() == (1, 0)


async def test_messages_of_one_turn_are_handled_in_one_drain(node: Node) -> None:
    node.runner._message("peer", Ping(1))
    node.runner._core_loop.wake()
    node.runner._message("peer", Ping(2))
    assert await node.settled() == (1, 1)


async def test_the_rest_is_looked_at_when_it_is_due_whatever_came(node: Node) -> None:
    node.core_due = 0.0
    node.runner._core_loop.wake()
    await node.settled()
    node.core_due = NEVER
    node.runner._message("peer", Ping(1))
    assert await node.settled() == (1, 1)
    node.runner._message("peer", Ping(2))
    assert await node.settled() == (1, 0)


async def test_runner_wakes_by_itself_for_the_rest_of_the_core(node: Node) -> None:
    node.core_due = asyncio.get_running_loop().time() + 0.01
    node.runner._core_loop.wake()
    await node.settled()
    node.core_due = NEVER
    looked = asyncio.Event()
    poll = node.core.membership.poll
    node.core.membership.poll = lambda now: (looked.set(), poll(now))[1]  # type: ignore[method-assign,func-returns-value]
    await asyncio.wait_for(looked.wait(), 5)


async def test_what_was_measured_is_looked_at_since_the_hub_may_have_to_hear_of_it(node: Node) -> None:
    node.runner._measured(NodeStatistics())
    assert await node.settled() == (1, 1)


async def test_a_ban_is_looked_at_as_a_whole_since_others_may_be_dialled_then(node: Node) -> None:
    node.core.swarm._state.actions.append(Ban("peer", "it lies", 1e9))
    node.runner._core_loop.wake_exchange()
    assert await node.settled() == (2, 1)


async def test_a_failed_save_is_looked_at_as_a_whole_since_the_transfer_ends(node: Node) -> None:
    signed, _, chunks = make_pack(1, [10])
    node.core.swarm._state.actions.append(Save(signed.id, 0, chunks[0]))
    node.runner._core_loop.wake_exchange()
    assert await node.settled() == (2, 1)
