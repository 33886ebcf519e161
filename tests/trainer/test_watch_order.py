"""The watcher finds the newest checkpoint of a directory, and passes over copies of others."""

from __future__ import annotations

import itertools

import pytest
from watch_parts import SECOND, Disk, Watched

from p2psync.trainer.watch.listing import TensorHeader


@pytest.mark.parametrize("order", list(itertools.permutations([500, 1000, 1500, 20])))
@pytest.mark.parametrize("looks", [True, False], ids=["seen one by one", "seen at once"])
def test_steps_copied_in_any_order_end_at_the_highest(disk: Disk, order: tuple[int, ...], looks: bool) -> None:
    watched = Watched(disk)
    for step in order:
        disk.model(f"checkpoint-{step}", str(step), shards=2)
        if looks:
            watched.look(60)
        disk.now += 60
    watched.look()
    assert watched.live == "checkpoint-1500"
    steps = [int(path.split("-")[1]) for path in watched.published]
    assert steps == sorted(steps)
    assert watched.published == ["checkpoint-1500"] or looks


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("step-9", "step-10"),
        ("step-0009", "step-10"),
        ("epoch_1-step_200", "epoch_2-step_5"),
        ("step-9-loss-3.1", "step-10-loss-0.2"),
        ("loss-9.9-step-9", "loss-0.2-step-10"),
        ("checkpoint-9-a1b2", "checkpoint-10-03ff"),
        ("run1/step-500", "run2/step-5"),
        ("global_step_9/actor/huggingface", "global_step_10/actor/huggingface"),
        ("epoch=1-step=9", "epoch=1-step=10"),
        ("9", "10"),
        ("20240101-120000", "20240102-090000"),
    ],
)
def test_numbers_order_names_of_one_family(disk: Disk, older: str, newer: str) -> None:
    watched = Watched(disk)
    disk.model(newer, "n")
    disk.now += 60
    disk.model(older, "o")
    assert watched.look() == [newer] and watched.look(60) == []


def test_time_orders_names_of_different_families(disk: Disk) -> None:
    watched = Watched(disk)
    for name in ("zebra", "step-7", "apple"):
        disk.now += 60
        disk.model(name, name)
    assert watched.look() == ["apple"]
    disk.now += 60
    disk.model("step-8", "8")
    assert watched.look() == ["step-8"]


def test_checkpoints_of_the_same_time_are_published_at_most_once_each(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("a", "a")
    disk.model("b", "b")
    assert watched.look() == ["b"] and watched.look() == []
    disk.model("c", "c")  # of the same time, yet new
    assert watched.look() == ["c"]


def test_a_time_in_the_future_does_not_keep_later_checkpoints_out(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("a", "a")
    disk.entries["a/model.safetensors"] = disk.entries["a/model.safetensors"].__class__(
        "a/model.safetensors", size=8, mtime=int(9e9) * SECOND, tensors=TensorHeader(8)
    )
    assert watched.look() == ["a"]
    disk.now += 60
    disk.model("b", "b")
    assert watched.look() == ["b"]


def test_only_the_newest_of_a_backlog_is_published_with_a_notice(disk: Disk) -> None:
    watched = Watched(disk)
    for step in range(1, 14):
        disk.model(f"step-{step}", str(step))
    assert watched.look() == ["step-13"]
    assert "the newest of 13 checkpoints: the 12 others are not published; --backlog all" in watched.notices[0]
    assert watched.look(60) == []


def test_backlog_publishes_all_checkpoints_oldest_first(disk: Disk) -> None:
    watched = Watched(disk, backlog=True)
    for step in (3, 11, 2, 1):
        disk.model(f"step-{step}", str(step))
    assert watched.look() == [f"step-{step}" for step in (1, 2, 3, 11)]
    watched.restart()
    assert watched.look(60) == []


# ---- copies and aliases --------------------------


def test_a_latest_link_is_not_another_checkpoint(disk: Disk) -> None:
    watched = Watched(disk)
    for step in (1, 2):
        disk.model(f"step-{step}", str(step))
        disk.link("latest", f"step-{step}")
        assert watched.look(60) == [f"step-{step}"] and watched.look(60) == []


@pytest.mark.parametrize("name", ["latest", "last", "current-policy"])
def test_a_copy_of_the_latest_is_not_another_checkpoint(disk: Disk, name: str) -> None:
    watched = Watched(disk)
    for step in (1, 2, 3):
        disk.model(f"step-{step}", str(step))
        disk.now += 1
        disk.model(name, str(step))
        assert watched.look(60) == [f"step-{step}"] and watched.look(60) == []


def test_the_best_checkpoint_is_not_the_newest(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("step-1", "1")
    disk.model("step-2", "2")
    disk.now += 60
    disk.model("best", "0")
    assert watched.look() == ["step-2"]
    assert any("best is left out" in notice for notice in watched.notices)


def test_ignored_names_are_not_published(disk: Disk) -> None:
    watched = Watched(disk, ignore=("eval-*", "run1/*", "*.bak"))
    disk.model("step-1", "1")
    disk.write("step-1/old.bak")
    for name in ("eval-7", "run1/step-9"):
        disk.model(name, name)
    candidate = watched.offered()
    assert candidate is not None and candidate.path == "step-1"
    assert candidate.files == ("step-1/config.json", "step-1/model.safetensors")
