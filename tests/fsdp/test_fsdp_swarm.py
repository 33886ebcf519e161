"""Actors that join a publisher of several ranks get every bit, from every rank, by pushes and by pulls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import torch
from fsdp_parts import TRUSTED, RankProcesses, packs_of
from safetensors.torch import load_file

from p2psync.actor.directory import open_directory
from p2psync.actor.node import ActorConfig, ActorNode
from p2psync.net.background import BackgroundLoop

LIMIT = 60.0


def actor(hub: str, place: Path, name: str) -> ActorNode:
    config = ActorConfig(hub_url=hub, trusted=TRUSTED, store=place / f"store-{name}", host="127.0.0.1", probe=False)
    return ActorNode(config, lambda store: open_directory(place / name, store, None, 1.0))


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Runs a coroutine on a loop as daemons use."""
    loop = BackgroundLoop("actors")
    try:
        loop.call(work(), timeout=2 * LIMIT)  # type: ignore[arg-type]
    finally:
        loop.close()


def holds(place: Path, full: dict[str, torch.Tensor]) -> None:
    """The directory is the trained policy, rounded."""
    loaded = load_file(place / "current" / "model.safetensors")
    assert loaded.keys() == full.keys() - {"head.weight"}
    for name, bits in loaded.items():
        wanted = full[name].to(bits.dtype)
        assert torch.equal(bits.view(torch.uint8), wanted.view(torch.uint8)), name


@pytest.mark.parametrize("plan", ["1", "0"])
def test_actors_get_every_bit_from_every_rank(tmp_path: Path, plan: str) -> None:
    place = tmp_path / "run"
    with RankProcesses(place, 4, "--plan", plan) as training:
        hub = next(answer["hub"] for answer in training.fine("open") if answer["hub"])
        training.fine("train 0")
        training.fine("publish")
        nodes = [actor(hub, tmp_path, name) for name in ("one", "two")]

        async def follow() -> None:
            async with AsyncExitStack() as stack:
                for node in nodes:
                    await node.start()
                    stack.push_async_callback(node.stop)
                for version in range(3):
                    if version:
                        await asyncio.to_thread(training.fine, f"train {version}")
                        await asyncio.to_thread(training.fine, "publish")
                    async with asyncio.timeout(LIMIT):
                        for node in nodes:
                            await node.until(version)
                plans = [node.runner.core.plan for node in nodes]
                # The plan feeds at least one of them from all ranks.
                assert bool(int(plan)) == any(len(mine.co_publishers) == 3 for mine in plans if mine is not None)

        run(follow)
        training.fine("save end")
        for name in ("one", "two"):
            holds(tmp_path / name, training.full("end"))
        sent = [answer["sent"] for answer in training.fine("sent")]
        parts = [sum((p.path / "payload").stat().st_size for p in packs) for packs in packs_of(place, 4)]
        # Nobody else had it, so each rank sent all of its part at least once; and rank 0 nothing of the others'.
        assert all(part <= mine <= 2 * part for mine, part in zip(sent, parts, strict=True)), (sent, parts)
