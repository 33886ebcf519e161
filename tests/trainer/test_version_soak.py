"""Many small versions leave no growing state: open files, announcements, views, stores and memory stay bounded."""

from __future__ import annotations

from pathlib import Path

import pytest
from reachable_objects import names
from version_soak import ResourceUsage, Soak, open_files

from p2psync.store.payloads import MAX_OPEN_PAYLOADS

#: Versions; deltas after which an anchor is due; versions kept for absent members.
VERSIONS, ANCHOR_DELTAS, KEEP = 120, 10, 4
#: Of two stores: files open, each with its map, and whatever else a process opens.
MAX_DESCRIPTORS = 4 * MAX_OPEN_PAYLOADS + 64


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the kernel does not tell what is open")
async def test_many_small_versions_leave_no_growing_state(tmp_path: Path) -> None:
    usages: list[ResourceUsage] = []
    told: set[bytes] = set()
    others = open_files()  # files that earlier tests of this process left open
    async with Soak(tmp_path, anchor_ratio=1e9, anchor_deltas=ANCHOR_DELTAS, keep=KEEP) as soak:
        for version in range(VERSIONS):
            await soak.publish()
            told |= {pack.id for pack in soak.trainer.runner.store.packs()}
            if version % 30 == 29:
                await soak.settled()
                usages.append(soak.usage())
        assert soak.troubles == []
        assert soak.actor.position == soak.trainer.position
        retired = told - {pack.id for store in (soak.trainer.runner.store, soak.actor.store) for pack in store.packs()}
        assert len(retired) > VERSIONS / 2
        # The hub remembers recent changes; nothing else remembers retired versions.
        hub, soak.trainer.hub = soak.trainer.hub, None
        known = names([soak.trainer, soak.actor])
        soak.trainer.hub = hub
        assert not {id.hex() for id in retired} & known and not retired & known
    # Deltas since the last anchor, those published while it was made, and the path to it for absent actors.
    most = 2 * ANCHOR_DELTAS + KEEP + 2
    for usage in usages:
        assert usage.announced <= usage.packs <= most
        assert usage.actor_packs <= most
        assert usage.descriptors - others <= MAX_DESCRIPTORS
        assert usage.view_bytes <= most * 1200
        assert usage.files <= 3 * 2 * most + 20
