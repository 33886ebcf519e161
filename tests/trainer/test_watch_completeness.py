"""Checkpoints of a watched directory are published only once they are complete."""

from __future__ import annotations

import itertools

import pytest
from watch_parts import Disk, Watched, shard_names

from p2psync.trainer.watch.listing import TensorHeader


@pytest.mark.parametrize("order", list(itertools.permutations([*shard_names(3), "model.safetensors.index.json"])))
def test_a_sharded_checkpoint_is_complete_with_every_shard_and_the_index(disk: Disk, order: tuple[str, ...]) -> None:
    watched = Watched(disk, settle=1)
    disk.write("step-1/config.json")
    for name in order:
        assert watched.look(10) == [] and watched.look(10) == []
        if name.endswith(".json"):
            disk.index(f"step-1/{name}", *shard_names(3))
        else:
            disk.write(f"step-1/{name}", "a")
    assert watched.look(0) == [] and watched.look(1) == ["step-1"]


@pytest.mark.parametrize("first", [0, 1])
def test_shards_may_be_counted_from_0(disk: Disk, first: int) -> None:
    watched = Watched(disk)
    names = [f"model-{i:05d}-of-00002.safetensors" for i in (first, first + 1)]
    disk.index("step-1/model.safetensors.index.json", *names)
    disk.write(f"step-1/{names[0]}")
    assert watched.look() == []
    disk.write(f"step-1/{names[1]}")
    assert watched.look() == ["step-1"]


def test_one_shard_of_one_needs_no_index(disk: Disk) -> None:
    disk.write("step-1/model-00001-of-00001.safetensors", "a")
    assert Watched(disk).look() == ["step-1"]


def test_an_index_that_names_too_few_shards_is_incomplete(disk: Disk) -> None:
    watched = Watched(disk)
    disk.index("step-1/model.safetensors.index.json", *shard_names(3)[:2])
    for name in shard_names(3)[:2]:
        disk.write(f"step-1/{name}")
    assert watched.look(1) == [] and "shard 3 of 3 of model is missing" in watched.notices[-1]


def test_remnants_of_an_unpublished_checkpoint_are_not_published(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("step-1", "1")
    disk.write("step-1/extra.safetensors", "e")
    candidate = watched.offered()
    assert candidate is not None
    watched.watcher.failed(candidate, disk.now)
    disk.remove("step-1/extra.safetensors")
    assert watched.look(60) == [] and "some of its weights files were removed" in watched.notices[-1]
    disk.model("step-1", "2")
    assert watched.look(60) == ["step-1"]


def test_an_index_of_an_earlier_sharding_does_not_complete_a_new_one(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("", "a", shards=2)
    assert watched.look() == [""]
    for name in shard_names(3):
        disk.write(name, "b")
    assert watched.look(1) == [] and "named by no index" in watched.notices[-1]


def test_a_file_shorter_than_its_header_demands_is_incomplete(disk: Disk) -> None:
    watched = Watched(disk)
    fault = "8 bytes, its header describes 80"
    disk.write("step-1/model.safetensors", tensors=TensorHeader(80), fault=fault)
    assert watched.look(1) == [] and fault in watched.notices[-1]
    disk.write("step-1/model.safetensors", "a", size=80)
    assert watched.look(1) == ["step-1"]


def test_a_checkpoint_is_complete_after_the_settling_time_without_changes(disk: Disk) -> None:
    watched = Watched(disk, settle=2)
    disk.model("step-1", "a")
    assert watched.look() == []
    disk.now += 1.9
    disk.write("step-1/optimizer.pt")  # not published, yet the framework is still writing
    assert watched.look() == [] and watched.look(1.9) == []
    assert watched.look(0.1) == ["step-1"]


def test_a_clock_that_jumps_back_restarts_the_settling_time(disk: Disk) -> None:
    watched = Watched(disk, settle=2)
    disk.model("step-1", "a")
    assert watched.look() == [] and watched.look(-500) == [] and watched.look(1.9) == []
    assert watched.look(0.1) == ["step-1"]


def test_a_growing_log_does_not_delay_completeness(disk: Disk) -> None:
    watched = Watched(disk, settle=2)
    disk.model("step-1", "a")
    for _ in range(4):
        disk.write("step-1/runs/events.out.tfevents.1")
        disk.write("step-1/train.log")
        published = watched.look(0.9)
    assert published == ["step-1"]


UNFINISHED = [
    "model.safetensors.partial", "x.part", "x.crdownload", "x.incomplete", "model.safetensors.aria2", "x.tmp",
    ".model.safetensors.Ab12Cd", "model.safetensors.6eF3a1B2", "tokenizer/.vocab.json.x9Yz01", "x.filepart",
    ".cache/huggingface/download/x.incomplete", "global_step5/x.tmp", "sub_tmp/a", "x.TMP", "x.gstmp", ".~tmp~/x",
]  # fmt: skip


@pytest.mark.parametrize("name", UNFINISHED)
def test_an_unfinished_name_inside_makes_a_checkpoint_incomplete(disk: Disk, name: str) -> None:
    watched = Watched(disk, settle=1)
    disk.model("step-1", "a")
    disk.write(f"step-1/{name}")
    assert watched.look() == [] and watched.look(50) == [] and watched.notices == []
    assert watched.look(50) == [] and "is unfinished: remove it" in watched.notices[-1]
    disk.remove(f"step-1/{name.split('/')[0]}")
    assert watched.look() == [] and watched.look(1) == ["step-1"]


@pytest.mark.parametrize(
    "name",
    [
        "tmp_step_2", "checkpoint-300-tmp", "step_10_tmp", "tmp-checkpoint-1", "step-1.tmp", "STEP-1.TMP", ".step-1",
        "5.orbax-checkpoint-tmp-1234", "default.orbax-checkpoint-tmp", "step-1.partial", "tmpab12cd34", "step-1.tmp-99",
    ],
)  # fmt: skip
def test_an_unfinished_directory_is_no_checkpoint_until_it_is_renamed(disk: Disk, name: str) -> None:
    watched = Watched(disk)
    disk.model(name, "a")
    assert watched.look() == [] and watched.look(59) == [] and watched.notices == []
    assert watched.look(1) == [] and len(watched.notices) == (not name.startswith("."))
    disk.move(name, "step-1")
    assert watched.look() == ["step-1"]


@pytest.mark.parametrize("name", ["step-1-attempt", "template", "tmpfs-run", "temp0.7", "step-1-temp-0.7", "contempt"])
def test_a_name_that_only_sounds_unfinished_is_a_checkpoint(disk: Disk, name: str) -> None:
    disk.model(name, "a")
    disk.write(f"{name}/model_template.json")
    assert Watched(disk).look() == [name]


def test_a_download_control_file_beside_it_makes_a_checkpoint_incomplete(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("step-1", "a")
    disk.write("step-1.aria2")
    assert watched.look() == []
    disk.remove("step-1.aria2")
    assert watched.look() == ["step-1"]


def test_a_marker_completes_a_checkpoint_at_once(disk: Disk) -> None:
    watched = Watched(disk, marker="DONE", settle=100)
    disk.model("step-1", "a")
    assert watched.look(1) == [] and watched.look(1000) == []
    disk.write("step-1/DONE")
    assert watched.look() == ["step-1"]


def test_a_marker_older_than_the_weights_does_not_complete_them(disk: Disk) -> None:
    """`cp -r` may copy it first, and in place it may be the last policy's."""
    watched = Watched(disk, marker="DONE", settle=5)
    disk.write("step-1/DONE")
    disk.now += 1
    disk.model("step-1", "a")
    assert watched.look() == [] and watched.look(4.9) == []
    assert watched.look(0.1) == ["step-1"]
