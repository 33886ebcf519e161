"""What a watching trainer that is stopped in the middle remembers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from trainer_parts import KEY

from p2psync.observe.events import Event, Published, Trouble
from trainer.daemon import WatchDaemon
from trainer.node import TrainerConfig, TrainerNode
from trainer.watch import Watcher


def test_what_was_published_as_it_was_stopped_is_not_read_again(tmp_path: Path) -> None:
    config = TrainerConfig(
        store=tmp_path / "store", key=KEY, host="127.0.0.1", hub_port=0, port=0, probe=False, plan=False
    )
    (tmp_path / "watched" / "step-1").mkdir(parents=True)
    save_file({"w": torch.zeros(8, dtype=torch.bfloat16)}, tmp_path / "watched" / "step-1" / "model.safetensors")

    async def stopped_by_its_own_event() -> Watcher:
        running: asyncio.Task[None] | None = None

        def hear(event: Event) -> None:
            if isinstance(event, Published) and running is not None:
                running.cancel()

        node = TrainerNode(config, hear)
        await node.start()
        try:
            running = asyncio.create_task(WatchDaemon(node, tmp_path / "watched", marker=None, settle=0).run())
            with pytest.raises(asyncio.CancelledError):
                await running
            assert node.position is not None
            return WatchDaemon(node, tmp_path / "watched", marker=None, settle=0)._watcher
        finally:
            await node.stop()

    assert asyncio.run(stopped_by_its_own_event()).scan(0.0) == []


def test_one_whose_memory_is_damaged_says_so_and_publishes_the_newest_checkpoint_only(tmp_path: Path) -> None:
    """Earlier ones were published before, and would lead every actor back."""
    config = TrainerConfig(
        store=tmp_path / "store", key=KEY, host="127.0.0.1", hub_port=0, port=0, probe=False, plan=False
    )
    for step in range(3):
        path = tmp_path / "watched" / f"step-{step}" / "model.safetensors"
        path.parent.mkdir(parents=True)
        save_file({"w": torch.full((8,), step, dtype=torch.bfloat16)}, path)
        os.utime(path, (step, step))

    async def published() -> int:
        heard: list[str] = []

        def hear(event: Event) -> None:
            if isinstance(event, Trouble):
                heard.append(event.message)

        done = asyncio.Event()
        node = TrainerNode(config, lambda event: done.set() if isinstance(event, Published) else None)
        await node.start()
        try:
            (tmp_path / "store" / "watched.json").write_bytes(b"\xff{")
            daemon = WatchDaemon(node, tmp_path / "watched", marker=None, settle=0, on_event=hear)
            (line,) = heard
            assert "watched.json.damaged; of the checkpoints that are there only the newest" in line
            running = asyncio.create_task(daemon.run())
            await done.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert daemon._watcher.scan(0.0) == []
            with (tmp_path / "store" / "watched.json").open("rb") as file:
                assert b"step-0" in file.read(), "and that is remembered"
            assert node.position is not None
            return node.position.version
        finally:
            await node.stop()

    assert asyncio.run(published()) == 0
