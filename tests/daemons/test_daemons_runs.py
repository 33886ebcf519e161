"""Going back to an earlier run: never by itself, said on both sides, and done by an explicit act of an operator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from checkpoint_parts import Model
from runs_parts import LIMIT, Site, actors, site_at, small

from p2psync.errors import FencedError
from p2psync.observe.events import ActorsOnNewerRun, Fetching, FewTensorsShared, RunChanged, RunRefused


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Nodes of one test."""
    async with site_at(tmp_path) as made:
        yield made


async def a_then_b(site: Site, weights: Model, *names: str, away: str = "") -> tuple[str, str]:
    """Run a publishes 0 and 1 to these actors, then run b its 0; one may be away meanwhile. Returns both runs."""
    trainer, _ = await site.trainer("a")
    for _ in range(2):
        await site.publish(trainer, weights.step())
    there = {name: await site.actor(name) for name in names}
    for actor in there.values():
        await actor.runs(trainer)
    run_a = trainer.position.run
    await site.stop("a")
    if away:
        await site.stop(away)
        del there[away]
    trainer, _ = await site.trainer("b")
    await site.publish(trainer, small(2))
    for actor in there.values():
        await actor.runs(trainer)
        changed = await actor.heard.one(RunChanged)
        assert (changed.before, changed.run) == (run_a, trainer.position.run)
    run_b = trainer.position.run
    await site.stop("b")
    return run_a, run_b


async def test_an_older_run_is_not_followed_and_actor_status_and_trainer_say_so(site: Site) -> None:
    weights = small(1)
    run_a, run_b = await a_then_b(site, weights, "x")
    trainer, told = await site.trainer("a", ttl=1.5)
    await site.publish(trainer, weights.step())
    actor = await restarted(site, "x")
    refused = await actor.heard.one(RunRefused)
    assert (refused.run, refused.live, refused.reason) == (run_a, run_b, "older")
    assert f"--supersede {run_b[:12]}" in refused.line() and f"--follow-run {run_a[:12]}" in refused.line()
    status = await site.status(lambda s: any(age.waits for age in s.ages))
    (member,) = actors(status)
    assert (status.view.run, member.run, member.version) == (run_a, run_b, 0)
    assert {age.waits for age in status.ages} == {"", refused.line()}
    assert (await told.one(ActorsOnNewerRun)).line().startswith("1 actor follows run")
    await site.publish(trainer, weights.step())
    async with asyncio.timeout(LIMIT):
        await trainer.until_running(0)  # who will not take it is not waited for
    assert len(actor.heard.all(RunRefused)) == 1, "once for one situation"
    assert actor.fetched == []


async def restarted(site: Site, name: str, **more: str):
    await site.stop(name)
    return await site.actor(name, **more)


async def test_every_actor_returns_to_a_trainer_that_supersedes_a_newer_run_and_absent_ones_fetch_nothing(
    site: Site,
) -> None:
    weights = small(1)
    run_a, run_b = await a_then_b(site, weights, "x", "away", away="away")
    trainer, _ = await site.trainer("a", supersede=run_b[:12])
    run_c = trainer.position.run
    assert run_c > run_b > run_a and trainer.position.version == 1
    away = await site.actor("away")
    there = await restarted(site, "x")
    for actor in (there, away):
        await actor.runs(trainer)
    assert there.fetched == [1] and away.fetched == [], "the same bits under a new run are taken up where they are"
    for _ in range(3):
        await site.publish(trainer, weights.step())
    for actor in (there, away):
        await actor.runs(trainer)
        assert not any(event.anchor for event in actor.heard.all(Fetching) if event.version > 1)
    await site.stop("a")
    trainer, _ = await site.trainer("a", supersede=run_b[:12])
    assert trainer.position.run == run_c, "the same act again changes nothing"
    assert {pack.manifest.run for pack in trainer._store.packs()} == {run_c}


async def test_a_version_that_is_waited_for_is_one_of_the_run_that_the_hub_offers(site: Site) -> None:
    trainer, _ = await site.trainer("a")
    for seed in range(3):
        await site.publish(trainer, small(seed))
    await (await site.actor("x")).runs(trainer)
    await site.stop("x")
    await site.stop("a")
    trainer, _ = await site.trainer("b")
    actor = await site.actor("x")
    waiting = asyncio.create_task(actor.node.until(0))
    await site.status(lambda s: bool(s.view.run) and [m.version for m in actors(s)] == [2])
    assert not waiting.done(), "version 2 of the run before is later in number alone"
    await site.publish(trainer, small(7))
    async with asyncio.timeout(LIMIT):
        await waiting
    assert actor.node.position == trainer.position


async def test_an_actor_with_follow_run_follows_no_other_run(site: Site) -> None:
    weights = small(1)
    run_a, run_b = await a_then_b(site, weights, "x", "y")
    trainer, _ = await site.trainer("a")
    await site.publish(trainer, weights.step())
    pinned = await restarted(site, "x", follow_run=run_a[:12])
    await pinned.runs(trainer)
    free = await restarted(site, "y", follow_run="any")
    await free.runs(trainer)
    await site.stop("a")
    trainer, _ = await site.trainer("b")
    await site.publish(trainer, small(2).step())
    await free.runs(trainer)
    refused = await pinned.heard.one(RunRefused)
    assert (refused.run, refused.reason) == (run_b, "other")
    assert pinned.node.position.run == run_a


async def test_a_run_that_was_never_committed_binds_no_actor(site: Site) -> None:
    weights = small(1)
    trainer, _ = await site.trainer("a")
    await site.publish(trainer, weights.step())
    actor = await site.actor("x")
    await actor.runs(trainer)
    await site.stop("a")
    await site.trainer("b")
    await site.status(lambda s: bool(actors(s)))
    await site.stop("b")
    trainer, _ = await site.trainer("a")
    await site.publish(trainer, weights.step())
    await actor.runs(trainer)
    assert actor.heard.all(RunRefused) == []


# ---- a hub that is held --------------------------------------------------------------------------------------------


async def test_a_new_run_takes_a_held_hub_only_on_purpose_and_the_first_trainer_names_it(site: Site) -> None:
    await site.hub()
    first, _ = await site.trainer("a", at_hub=True)
    await site.publish(first, small(1))
    ends = asyncio.create_task(first.until_broken())
    with pytest.raises(FencedError, match=r"at 127.0.0.1 claimed run .* s ago, and is at work.*--take-over"):
        await site.trainer("b", at_hub=True)
    assert not ends.done()
    await site.publish(first, small(1).step())
    second, _ = await site.trainer("b", at_hub=True, take_over=True)
    async with asyncio.timeout(LIMIT):
        with pytest.raises(FencedError, match=r"another run took the hub over: trainer \w{8} .* with --take-over"):
            await ends
    await site.publish(second, small(2))


async def test_the_same_store_takes_its_run_back_without_a_word_and_a_run_that_is_over_is_followed_by_a_newer(
    site: Site,
) -> None:
    await site.hub()
    for name in ("a", "a", "b"):
        trainer, _ = await site.trainer(name, at_hub=True)
        await site.publish(trainer, small(1))
        await site.stop(name)
    with pytest.raises(FencedError, match=r"newer than .* --supersede"):
        await site.trainer("a", at_hub=True)


async def test_a_hub_inside_a_trainer_takes_no_other_and_stays_with_its_members(site: Site) -> None:
    trainer, _ = await site.trainer("a")
    await site.publish(trainer, small(1))
    for more in ({}, {"take_over": True}):
        with pytest.raises(FencedError, match="part of a trainer"):
            await site.trainer("b", at_hub=True, **more)
    actor = await site.actor("x")
    await actor.runs(trainer)
    assert trainer.fenced is None


async def test_a_restarted_hub_is_not_lost_to_the_first_trainer_that_claims_it(site: Site) -> None:
    await site.hub()
    first, _ = await site.trainer("a", at_hub=True)
    await site.publish(first, small(1))
    await site.stop("hub")
    service = await site.hub()
    await site.status(lambda s: s.view.run == first.position.run)
    assert service.core.claimant.node == first.runner.core.info.node
    with pytest.raises(FencedError, match="is at work"):
        await site.trainer("b", at_hub=True)


# ---- another model -------------------------------------------------------------------------------------------------


async def test_a_version_of_another_model_on_the_same_store_is_said_to_be_one(site: Site) -> None:
    trainer, told = await site.trainer("a")
    for seed in (1, 2):
        await site.publish(trainer, small(seed))
    assert told.all(FewTensorsShared) == [], "other bits of the same tensors are a step of training"
    await site.publish(trainer, Model(1, shards=1, rows=64))
    (unlike,) = told.all(FewTensorsShared)
    assert unlike.shared < unlike.tensors and unlike.total_bytes > 64 * 256 * 2 > 2 * unlike.shared_bytes
    assert "of its" in unlike.line() and "with version 1: every actor fetches" in unlike.line()
