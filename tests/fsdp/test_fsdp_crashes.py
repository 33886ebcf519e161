"""Real ranks are killed: no version is half published, and later versions are exact."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fsdp_parts import OneProcess, RankProcesses, packs_of, same_chunks
from test_fsdp_swarm import LIMIT, actor, holds, run

from p2psync.net.hub_client import HubClient
from p2psync.store.pack import Pack

SMALL = ("--width", "500")


def versions(packs: list[Pack]) -> list[tuple[int | None, int]]:
    return [(pack.manifest.base, pack.manifest.version) for pack in packs]


@pytest.mark.parametrize("step", ["signing", "sealed"])
def test_a_rank_killed_during_a_build_leaves_no_announced_version(tmp_path: Path, step: str) -> None:
    place = tmp_path / "run"
    with RankProcesses(place, 4, *SMALL) as training:
        hub = training.fine("open")[0]["hub"]
        training.fine("publish")
        training.fine("train 1")
        assert training.tell(f"die_when {step}", [3]) == [{}]
        answers = training.tell("publish")
        assert answers[3] == {"gone": True}
        # Also rank 1, which is no neighbour of the one that went; and none of them had to wait until it gave up.
        told = [answer["error"] for answer in answers[:3]]
        assert all(error.startswith("RanksError: a rank is gone") and "Timed out" not in error for error in told), told

        async def announced() -> list[int]:
            client = HubClient(hub)
            try:
                return [a.version for a in (await client.view()).lineage]
            finally:
                await client.close()

        assert asyncio.run(announced()) == [0]
        # Nothing of it can be published after, nor do the others wait for ever.
        again = training.tell("publish", [0, 1, 2])
        assert all("error" in answer for answer in again), again
    with RankProcesses(place, 4, *SMALL) as training:
        hub = training.fine("open")[0]["hub"]
        training.fine("train 2")
        training.fine("save end")
        answers = training.fine("publish")
        packs = packs_of(place, 4)
        assert len({tuple(versions(theirs)) for theirs in packs}) == 1
        full = training.full("end")

        async def follow() -> None:
            node = actor(hub, tmp_path, "actor")
            await node.start()
            async with asyncio.timeout(LIMIT):
                await node.until(answers[0]["version"])
            await node.stop()

        run(follow)
        holds(tmp_path / "actor", full)


def test_a_different_number_of_ranks_goes_on_with_an_anchor(tmp_path: Path) -> None:
    place = tmp_path / "run"
    with RankProcesses(place, 2, *SMALL) as training:
        training.fine("open")
        training.fine("publish")
        training.fine("train 1")
        training.fine("publish")
        training.fine("close")
    with RankProcesses(place, 2, *SMALL) as training:  # the same: only what changed
        training.fine("open")
        training.fine("train 2")
        training.fine("publish")
        training.fine("close")
        assert [versions(theirs) for theirs in packs_of(place, 2)] == [[(None, 0), (0, 1), (1, 2)]] * 2
    with RankProcesses(place, 3, *SMALL) as training:
        training.fine("open")
        training.fine("train 3")
        training.fine("publish")
        packs = packs_of(place, 3)
        assert [versions(theirs) for theirs in packs] == [[(None, 3)]] * 3
        training.fine("train 4")
        training.fine("publish")
        training.fine("close")
        assert [versions(theirs) for theirs in packs_of(place, 3)] == [[(None, 3), (3, 4)]] * 3


def test_a_due_anchor_equals_that_of_one_process(tmp_path: Path) -> None:
    place = tmp_path / "run"
    with RankProcesses(place, 2, *SMALL, "--anchor-ratio", "0.0001") as training:
        training.fine("open")
        training.fine("publish")
        training.fine("train 1")
        training.fine("save end")
        training.fine("publish")
        training.fine("anchored")
        training.fine("train 2")
        training.fine("publish")  # and nobody is still at the anchor
        packs = packs_of(place, 2)
        anchors = [next(p for p in theirs if (p.manifest.base, p.manifest.version) == (None, 1)) for theirs in packs]
        full = training.full("end")
        training.fine("close")
    one = OneProcess(tmp_path / "one", anchors[0].manifest.run, anchors[0].manifest.epoch, "tight")
    whole = one.publish(full)
    same_chunks(anchors, whole)
    wanted = whole.manifest
    for name in ("digest", "table", "sizes", "hashes"):
        assert getattr(anchors[0].manifest, name) == getattr(wanted, name)
    one.close()
