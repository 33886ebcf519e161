"""Far paths restart once before anything of a transfer is sent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from pathlib import Path

import pytest
from peer_parts import Told, until

from p2psync.membership.records import NodeInfo
from p2psync.net.hub_client import HubClient
from p2psync.net.runner import NodeRunner
from p2psync.protocol.messages import Control, ManifestGossip
from p2psync.store.packs import Store
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.control.config import LARGE, QUIET, MeasureConfig, ProbeConfig
from p2psync.swarm.control.monitor import NetworkMonitor
from p2psync.swarm.control.path_estimates import PathEstimates
from p2psync.swarm.exchange.actions import VerifyManifest
from p2psync.swarm.node import NodeCore
from p2psync.swarm.synchronizer.follower import Follower
from tests.store.store_parts import KEY, make_pack


class Beginner:
    """A monitor with a far peer; `begun`: the far paths of each transfer that started."""

    def __init__(self, told: Told, congestion: str = "") -> None:
        self.begun: list[Collection[str]] = []
        self.table = told.table
        config = MeasureConfig(probing=ProbeConfig(settle_seconds=1e6))
        self.monitor = NetworkMonitor(
            told.info,
            told.table,
            random.Random(0),
            config,
            asyncio.get_running_loop(),
            streams=0,
            congestion=congestion,
        )
        self.monitor._up.add("far")
        self.monitor.estimates.paths["far"] = PathEstimates(0.1)
        self.monitor._path_controllers.start_transfer = lambda quiet, now, nbytes: self.begun.append(quiet)  # type: ignore[method-assign]

    def chunk(self, ago: float = 0.0) -> None:
        """One flowed so many seconds ago."""
        self.table.chunk_at = asyncio.get_running_loop().time() - ago

    def look(self) -> None:
        self.monitor._look(asyncio.get_running_loop().time())


@pytest.fixture
async def beginner() -> Beginner:
    return Beginner(Told("a"))


async def test_far_paths_restart_even_if_the_first_chunk_was_faster_than_the_manifest(beginner: Beginner) -> None:
    beginner.look()
    beginner.chunk()
    beginner.monitor.transfer_begins(LARGE + 1)
    assert beginner.begun == [{"far"}]


async def test_a_transfer_that_is_told_twice_starts_once(beginner: Beginner) -> None:
    beginner.monitor.transfer_begins(LARGE + 1)
    beginner.monitor.transfer_begins(LARGE + 1)
    assert len(beginner.begun) == 1


async def test_far_paths_restart_only_once_no_chunks_flow(beginner: Beginner) -> None:
    beginner.chunk()
    beginner.look()
    beginner.monitor.transfer_begins(LARGE + 1)
    assert not beginner.begun
    beginner.chunk(ago=QUIET + 0.1)
    beginner.look()
    beginner.monitor.transfer_begins(LARGE + 1)
    assert len(beginner.begun) == 1


async def test_far_paths_restart_for_a_small_transfer_only_with_bbr(
    beginner: Beginner,
) -> None:
    beginner.monitor.transfer_begins(LARGE)
    assert len(beginner.begun) == 1
    cubic = Beginner(Told("b"), "cubic")
    cubic.monitor.transfer_begins(LARGE)
    assert not cubic.begun


async def test_idle_connections_restart_now_and_then(beginner: Beginner) -> None:
    rests: list[float] = []
    beginner.monitor._path_controllers.restart_idle = rests.append  # type: ignore[method-assign]
    beginner.look()
    assert rests


@pytest.mark.parametrize("taken", [True, False])
async def test_a_manifest_is_passed_on_after_the_paths_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    signed, manifest, _ = make_pack(1, [LARGE, LARGE])
    trusted = frozenset({KEY.public_key().public_bytes_raw()})
    info, follower = NodeInfo(node="n", role="relay", host="127.0.0.1"), Follower(None)
    core = NodeCore(info, NodeConfig(), random.Random(0), follower)
    client, store = HubClient("http://127.0.0.1:9"), Store(tmp_path)
    runner = NodeRunner(core, client, store, trusted=trusted, instance="life", widths=())
    done: list[str] = []

    def pass_on(verify: VerifyManifest, *, taken: bool) -> None:
        core.swarm._state.send("child", ManifestGossip(verify.id, verify.signed))

    def send(name: str, message: Control) -> None:
        done.append(f"{type(message).__name__} to {name}")

    monkeypatch.setattr(follower, "peer_announced", lambda announcement, manifest, now: taken)
    monkeypatch.setattr(core.swarm.gossip, "verified", pass_on)
    monkeypatch.setattr(runner._connections, "send", send)
    monkeypatch.setattr(runner.monitor, "transfer_begins", lambda nbytes: done.append(f"begin {nbytes}"))
    await runner._manifests.verify(VerifyManifest("parent", signed.id, signed.to_bytes()))
    await until(lambda: "ManifestGossip to child" in done)
    assert done == [f"begin {manifest.payload_bytes}"] * taken + ["ManifestGossip to child"]
    await runner.stop()
    store.close()
    await client.close()
