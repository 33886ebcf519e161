"""Modules and meshes that can be published: one replica publishes; unsupported ones are refused in one line."""

from __future__ import annotations

from pathlib import Path

from fsdp_parts import OneProcess, RankProcesses, packs_of, same_chunks, same_manifest


def test_one_of_several_replicas_publishes(tmp_path: Path) -> None:
    place = tmp_path / "run"
    with RankProcesses(place, 4, "--replicas", "2", "--width", "500") as training:
        training.fine("open")
        states = []
        for step in range(2):
            training.fine(f"train {step}")
            training.fine(f"save {step}")
            answers = training.fine("publish")
            assert [answer["version"] for answer in answers] == [step, step, None, None]
            states.append(step)
        training.fine("close")
        training.ranks = 2  # the shards of the first replica are all
        fulls = [training.full(str(step)) for step in states]
        training.ranks = 4
        packs = packs_of(place, 2)
        one = OneProcess(tmp_path / "one", packs[0][0].manifest.run, packs[0][0].manifest.epoch, "tight")
        for step, full in enumerate(fulls):
            whole = one.publish(full)
            same_manifest(packs[0][step].manifest, whole.manifest)
            same_chunks([theirs[step] for theirs in packs], whole)
        one.close()
    assert not (place / "store" / "rank-2").exists()


def test_modules_without_a_dtype_are_published_as_they_are(tmp_path: Path) -> None:
    place = tmp_path / "run"
    with RankProcesses(place, 2, "--dtype", "plain", "--width", "300") as training:
        training.fine("open")
        training.fine("disturb 1")
        training.fine("save 0")
        training.fine("publish")
        full = training.full("0")
        packs = packs_of(place, 2)
        one = OneProcess(tmp_path / "one", packs[0][0].manifest.run, packs[0][0].manifest.epoch, "tight")
        whole = one.publish(full)
        same_manifest(packs[0][0].manifest, whole.manifest)
        same_chunks([theirs[0] for theirs in packs], whole)
        one.close()


REFUSED = {
    "nothing": "no parameter is sharded: call fully_shard",
    "columns": "only sharding along the first dimension",
    "tensor-parallel": "only sharding along the first dimension",
    "two-meshes": "are sharded over different meshes",
    "one-process": "publish it with trainer.fsdp.publisher.FsdpPublisher",
    "float16": "fp32 shards are published as they are, or as torch.bfloat16",
}


def test_an_unsupported_module_is_refused_in_one_line_at_the_start(tmp_path: Path) -> None:
    with RankProcesses(tmp_path / "run", 2, "--width", "64") as training:
        for what, line in REFUSED.items():
            answers = training.tell(f"refused {what}")
            assert all(line in answer["error"] and "\n" not in answer["error"] for answer in answers), (what, answers)


def test_a_store_in_use_at_one_rank_fails_all_ranks(tmp_path: Path) -> None:
    from p2psync.store.packs import Store

    place = tmp_path / "run"
    for rank in (0, 1):
        with Store(place / "store" / f"rank-{rank}" / "packs"), RankProcesses(place, 2, "--width", "64") as training:
            answers = training.tell("open")
            assert all("in use by another process" in answer["error"] for answer in answers), answers


def test_publishing_takes_memory_for_changes_and_not_for_whole_tensors(tmp_path: Path) -> None:
    """The model is 64 MB in bf16. What is mapped counts too: a part of the published bits is at each rank."""
    with RankProcesses(tmp_path / "run", 4, "--width", "1800", "--profile", "fast") as training:
        for command in ("warm", "open", "nudge 0", "publish", "nudge 1", "publish", "nudge 2", "reset_peak"):
            training.fine(command)
        before = training.fine("rss")
        training.fine("publish")
        after = training.fine("rss")
        for one, two in zip(before, after, strict=True):
            assert two["VmHWM"] - one["VmRSS"] < 16 << 20, (before, after)
