"""The sizes of an anchor's chunks, by the plan's rate."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainer_parts import KEY, Arrays

from p2psync.protocol.plan import NodePlan, TreePosition
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.node import TrainerNode

#: Of 32 MiB.
UNITS = 16 << 20


def plan(mbps: float) -> NodePlan:
    return NodePlan(1, ["an-actor"], [1], [TreePosition(-1, [0], 0, mbps)])


@pytest.mark.parametrize(("mbps", "chunk"), [(None, 64 << 10), (100, 64 << 10), (1000, 128 << 10)])
async def test_anchor_has_larger_chunks_where_the_planned_rate_is_high(
    tmp_path: Path, mbps: float | None, chunk: int
) -> None:
    config = TrainerConfig(store=tmp_path, key=KEY, host="127.0.0.1", hub_port=0, port=0, plan=False)
    node = TrainerNode(config, lambda event: None)
    await node.start()
    try:
        if mbps is not None:
            node.runner.core.planned(plan(mbps), 0.0)
        await node.publish(Arrays(a=UNITS))
        (pack,) = node.runner.store.packs()
        assert pack.manifest.chunks == 2 * UNITS // chunk
    finally:
        await node.stop()
