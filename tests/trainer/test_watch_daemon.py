"""What a watching trainer that is stopped in the middle remembers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from trainer_parts import KEY

from p2psync.observe.events import Event, Published
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
