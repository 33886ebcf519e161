"""A node that stops first makes its complete packs durable."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from pathlib import Path

import pytest
from store_parts import make_pack

from p2psync.membership.records import NodeInfo
from p2psync.net.hub_client import HubClient
from p2psync.net.runner import NodeRunner
from p2psync.store.packs import Store
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.node import NodeCore


async def test_runner_stop_waits_until_complete_packs_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    sync = os.fsync

    def slow(file: int) -> None:
        begun.set()
        may_end.wait()
        sync(file)

    store, client = Store(tmp_path), HubClient("http://127.0.0.1:9")
    core = NodeCore(NodeInfo(node="n", role="relay", host="127.0.0.1"), NodeConfig(), random.Random(0))
    runner = NodeRunner(core, client, store, trusted=frozenset(), instance="life", widths=())
    signed, manifest, chunks = make_pack(1, [10, 20])
    pack = store.add(signed, manifest)
    for index, chunk in enumerate(chunks):
        pack.write(index, chunk)
    monkeypatch.setattr(os, "fsync", slow)
    runner._chunks.complete(pack.id)
    stopping = asyncio.create_task(runner.stop())
    try:
        await asyncio.to_thread(begun.wait)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not stopping.done()
    finally:
        may_end.set()
    await stopping
    assert pack.sealed
    store.close()
    await client.close()
