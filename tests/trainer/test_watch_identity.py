"""A policy is told by its bits: which changes to a watched directory make a checkpoint new, and which do not."""

from __future__ import annotations

import pytest
from watch_parts import Disk, Watched, shard_names


def three_steps(disk: Disk) -> Watched:
    watched = Watched(disk)
    for step, bits in ((5, "a"), (10, "b"), (20, "c")):
        disk.model(f"checkpoint-{step}", bits, shards=2)
        assert watched.look(60) == [f"checkpoint-{step}"]
    return watched


@pytest.mark.parametrize("gone", [False, True], ids=["newer there", "newer removed"])
@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize(
    "happens",
    [
        lambda disk: disk.touch("checkpoint-10"),
        lambda disk: disk.new_inodes("checkpoint-10"),
        lambda disk: disk.write("checkpoint-10/eval_results.json"),
        lambda disk: disk.remove(f"checkpoint-10/{shard_names(2)[0]}"),
        lambda disk: disk.remove("checkpoint-10/config.json"),
        lambda disk: disk.move("checkpoint-10", "old-10"),
        lambda disk: disk.copy("checkpoint-10", "backup"),
        lambda disk: disk.copy("checkpoint-10", "saved/checkpoint-10"),
        lambda disk: (disk.remove("checkpoint-10"), disk.model("checkpoint-10", "b", shards=2)),
    ],
    ids=["touch", "inodes", "evaluation", "half removed", "no config", "rename", "copy", "copy below", "copied back"],
)
def test_changes_without_new_weights_never_republish_an_old_step(
    disk: Disk, happens: object, restart: bool, gone: bool
) -> None:
    watched = three_steps(disk)
    if gone:
        disk.remove("checkpoint-20")
    if restart:
        watched.restart()
    disk.now += 60
    happens(disk)  # type: ignore[operator]
    assert watched.look() == [] and watched.look(60) == []
    disk.model("checkpoint-30", "d", shards=2)
    assert watched.look() == ["checkpoint-30"]


@pytest.mark.parametrize("known", ["published", "overtaken"])
def test_an_older_step_with_new_weights_is_published_once_newer_ones_are_gone(disk: Disk, known: str) -> None:
    if known == "published":
        watched = three_steps(disk)
    else:
        watched = Watched(disk)
        for step in (10, 20):
            disk.model(f"checkpoint-{step}", str(step), shards=2)
        assert watched.look() == ["checkpoint-20"]
    disk.now += 60
    disk.model("checkpoint-10", "new", shards=2)
    assert watched.look() == []
    disk.now += 60
    disk.model("checkpoint-10", "newer", shards=2)
    disk.remove("checkpoint-20")
    assert watched.look(60) == ["checkpoint-10"]


def test_a_half_removed_live_checkpoint_is_not_a_new_policy(disk: Disk) -> None:
    watched = Watched(disk)
    for step in (10, 20):
        disk.model(f"step-{step}", f"{step}")
        disk.write(f"step-{step}/extra.safetensors", "e")
        assert watched.look(60) == [f"step-{step}"]
    disk.remove("step-20/model.safetensors")
    assert watched.look(60) == [] and watched.look(60) == []
    disk.remove("step-20")
    disk.remove("step-10/extra.safetensors")
    assert watched.look(60) == []


def test_a_restarted_run_is_followed_once_the_old_steps_are_gone(disk: Disk) -> None:
    watched = three_steps(disk)
    disk.now += 60
    disk.model("checkpoint-1", "n", shards=2)
    assert watched.look() == []
    assert "it is older than checkpoint-20; if the run started over, move" in watched.notices[-1]
    disk.remove("checkpoint-20")
    disk.now += 60
    disk.model("checkpoint-2", "m", shards=2)
    assert watched.look() == [] and "it is older than checkpoint-10; if the run" in watched.notices[-1]
    for step in (5, 10):
        disk.remove(f"checkpoint-{step}")
    disk.now += 60
    disk.model("checkpoint-3", "l", shards=2)
    assert watched.look() == ["checkpoint-3"]
    assert watched.look(60) == []


def test_a_step_overtaken_while_incomplete_is_never_published(disk: Disk) -> None:
    watched = Watched(disk)
    disk.write("step-1/model-00001-of-00002.safetensors", "a")
    assert watched.look(1) == []
    disk.model("step-2", "b")
    assert watched.look(1) == ["step-2"]
    disk.remove("step-2")
    disk.model("step-1", "a", shards=2)
    assert watched.look(1) == [] and watched.look(1) == []


def test_an_older_step_moved_in_does_not_replace_a_removed_one(disk: Disk) -> None:
    disk.model("elsewhere/checkpoint-15", "old", shards=2)
    watched = Watched(disk, ignore=("elsewhere",))
    disk.now += 60
    for step in (10, 20):
        disk.model(f"checkpoint-{step}", str(step), shards=2)
    assert watched.look() == ["checkpoint-20"]
    disk.remove("checkpoint-20")
    disk.move("elsewhere/checkpoint-15", "checkpoint-15")
    assert watched.look(60) == []


def test_remnants_of_the_live_directory_keep_older_steps_out(disk: Disk) -> None:
    watched = three_steps(disk)
    for name in [*shard_names(2), "model.safetensors.index.json"]:
        disk.remove(f"checkpoint-20/{name}")
    disk.now += 60
    disk.model("checkpoint-10", "new", shards=2)
    assert watched.look() == [] and watched.look(60) == []
    disk.remove("checkpoint-20")
    disk.now += 60
    disk.model("checkpoint-10", "newer", shards=2)
    assert watched.look() == ["checkpoint-10"]


def test_a_directory_that_vanishes_and_returns_is_not_republished(disk: Disk) -> None:
    watched = three_steps(disk)
    entries = dict(disk.entries)
    disk.entries.clear()
    assert watched.look(1) == []
    disk.entries.update(entries)
    disk.remove("checkpoint-20")
    disk.new_inodes("")
    assert watched.look(1) == []


def test_an_unlistable_directory_is_not_taken_for_gone(disk: Disk) -> None:
    watched = Watched(disk)
    for step in (10, 20):
        disk.model(f"run/step-{step}", str(step))
    assert watched.look() == ["run/step-20"]
    for name in disk.below("run")[1:]:
        del disk.entries[name]
    disk.folder("run", error="Stale file handle: trying again")
    disk.now += 60
    disk.model("step-1", "x")
    disk.entries["run/step-10"] = disk.entries["run"]
    assert "run/step-10" not in watched.look()


def test_a_checkpoint_replaced_in_place_is_published_at_each_change_of_weights(disk: Disk) -> None:
    watched = Watched(disk, settle=1)
    for bits in "abab":  # a trainer may go back on purpose, so weights written in place count
        disk.model("", bits)
        disk.write("tokenizer/tokenizer.json")
        assert watched.look() == [] and watched.look(1) == [""]
        assert watched.look(60) == []
    disk.write("eval.json")
    disk.new_inodes("")
    assert watched.look(60) == [] and watched.look(60) == []


def test_a_state_written_during_a_publish_is_published_next(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("step-1", "a")
    candidate = watched.offered()
    assert candidate is not None
    read = disk.fingerprint_of(candidate)
    disk.now += 1
    disk.model("step-1", "b")
    watched.publish(candidate, read)
    assert watched.look() == ["step-1"]


def test_a_pending_publish_counts_after_a_restart_if_it_became_a_version(disk: Disk) -> None:
    watched = Watched(disk)
    for step in (1, 2, 3):
        disk.model(f"step-{step}", str(step))
    candidate = watched.offered()
    assert candidate is not None and candidate.path == "step-3"
    watched.watcher.begin(candidate, None)
    disk.remove("step-3")
    watched.watcher.resume(0)
    assert watched.live == "step-3"
    assert watched.look(0) == []


def test_without_a_version_in_the_store_the_newest_is_published_again(disk: Disk) -> None:
    watched = three_steps(disk)
    watched.history.clear()
    watched.watcher.resume(None)
    assert watched.look() == ["checkpoint-20"]


def test_a_failed_pending_publish_is_repeated_after_a_restart(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("step-3", "3")
    candidate = watched.offered()
    assert candidate is not None
    watched.watcher.begin(candidate, None)
    watched.restart()
    assert watched.look() == ["step-3"]
