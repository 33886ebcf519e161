"""Over many small versions nothing grows: not what is open, announced, shown, stored or remembered."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from soak import Reading, Soak

from p2psync.store.payloads import MOST_OPEN

#: Versions; deltas after which an anchor is due; versions kept for who was away.
VERSIONS, ANCHOR_DELTAS, KEEP = 120, 10, 4
#: Of two stores: files open, each with its map, and whatever else a process opens.
MOST_DESCRIPTORS = 4 * MOST_OPEN + 64


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the kernel does not tell what is open")
async def test_over_many_small_versions_nothing_grows(tmp_path: Path) -> None:
    readings: list[Reading] = []
    objects: list[int] = []
    async with Soak(tmp_path, anchor_ratio=1e9, anchor_deltas=ANCHOR_DELTAS, keep=KEEP) as soak:
        for version in range(VERSIONS):
            await soak.publish()
            if version % 30 == 29:
                await soak.trainer.anchored()
                gc.collect()
                readings.append(soak.reading())
                objects.append(len(gc.get_objects()))
        assert soak.troubles == []
        assert soak.actor.position == soak.trainer.position
    # What leads on from the last anchor, what came while that was being made, and the way to it for who was away.
    most = 2 * ANCHOR_DELTAS + KEEP + 2
    for reading in readings:
        assert reading.announced <= reading.packs <= most
        assert reading.actor_packs <= most
        assert reading.descriptors <= MOST_DESCRIPTORS
        assert reading.view_bytes <= most * 1200
        assert reading.files <= 3 * 2 * most + 20
    assert objects[-1] - objects[0] < 80 * most, "nothing remembers a version that was retired"
