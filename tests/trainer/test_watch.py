"""Which checkpoint of a watched directory is published, and which is not: the watcher over made-up listings."""

from __future__ import annotations

import itertools

import pytest
from watch_parts import SECOND, Disk, Watched

from p2psync.trainer.watch.listing import EntryKind, TensorHeader


@pytest.fixture
def disk() -> Disk:
    return Disk()


def shards(total: int) -> list[str]:
    return [f"model-{i:05d}-of-{total:05d}.safetensors" for i in range(1, total + 1)]


# ---- when a checkpoint is complete ----------------


@pytest.mark.parametrize("order", list(itertools.permutations([*shards(3), "model.safetensors.index.json"])))
def test_a_sharded_checkpoint_counts_once_every_shard_and_the_index_are_there(
    disk: Disk, order: tuple[str, ...]
) -> None:
    watched = Watched(disk, settle=1)
    disk.write("step-1/config.json")
    for name in order:
        assert watched.look(10) == [] and watched.look(10) == []
        if name.endswith(".json"):
            disk.index(f"step-1/{name}", *shards(3))
        else:
            disk.write(f"step-1/{name}", "a")
    assert watched.look(0) == [] and watched.look(1) == ["step-1"]


@pytest.mark.parametrize("first", [0, 1])
def test_shards_may_be_counted_from_nought(disk: Disk, first: int) -> None:
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


def test_an_index_that_names_fewer_shards_than_the_files_do_completes_nothing(disk: Disk) -> None:
    watched = Watched(disk)
    disk.index("step-1/model.safetensors.index.json", *shards(3)[:2])
    for name in shards(3)[:2]:
        disk.write(f"step-1/{name}")
    assert watched.look(1) == [] and "shard 3 of 3 of model is missing" in watched.notices[-1]


def test_what_is_left_of_a_checkpoint_that_was_never_published_is_none(disk: Disk) -> None:
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
    for name in shards(3):
        disk.write(name, "b")
    assert watched.look(1) == [] and "named by no index" in watched.notices[-1]


def test_a_file_that_is_shorter_than_its_header_says_is_waited_for(disk: Disk) -> None:
    watched = Watched(disk)
    fault = "8 bytes, its header describes 80"
    disk.write("step-1/model.safetensors", tensors=TensorHeader(80), fault=fault)
    assert watched.look(1) == [] and fault in watched.notices[-1]
    disk.write("step-1/model.safetensors", "a", size=80)
    assert watched.look(1) == ["step-1"]


def test_everything_must_have_been_quiet_for_the_settling_time(disk: Disk) -> None:
    watched = Watched(disk, settle=2)
    disk.model("step-1", "a")
    assert watched.look() == []
    disk.now += 1.9
    disk.write("step-1/optimizer.pt")  # not published, yet the framework is still writing
    assert watched.look() == [] and watched.look(1.9) == []
    assert watched.look(0.1) == ["step-1"]


def test_a_clock_that_jumps_back_begins_the_settling_anew(disk: Disk) -> None:
    watched = Watched(disk, settle=2)
    disk.model("step-1", "a")
    assert watched.look() == [] and watched.look(-500) == [] and watched.look(1.9) == []
    assert watched.look(0.1) == ["step-1"]


def test_a_log_that_grows_keeps_nothing_from_being_complete(disk: Disk) -> None:
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
def test_an_unfinished_name_anywhere_inside_means_incomplete(disk: Disk, name: str) -> None:
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


def test_a_download_of_a_directory_beside_it_means_incomplete(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("step-1", "a")
    disk.write("step-1.aria2")
    assert watched.look() == []
    disk.remove("step-1.aria2")
    assert watched.look() == ["step-1"]


def test_with_a_marker_it_counts_at_once_when_the_marker_comes(disk: Disk) -> None:
    watched = Watched(disk, marker="DONE", settle=100)
    disk.model("step-1", "a")
    assert watched.look(1) == [] and watched.look(1000) == []
    disk.write("step-1/DONE")
    assert watched.look() == ["step-1"]


def test_a_marker_older_than_the_weights_does_not_vouch_for_them(disk: Disk) -> None:
    """`cp -r` may copy it first, and in place it may be the last policy's."""
    watched = Watched(disk, marker="DONE", settle=5)
    disk.write("step-1/DONE")
    disk.now += 1
    disk.model("step-1", "a")
    assert watched.look() == [] and watched.look(4.9) == []
    assert watched.look(0.1) == ["step-1"]


# ---- a policy is its bits ----------------


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
        lambda disk: disk.remove(f"checkpoint-10/{shards(2)[0]}"),
        lambda disk: disk.remove("checkpoint-10/config.json"),
        lambda disk: disk.move("checkpoint-10", "old-10"),
        lambda disk: disk.copy("checkpoint-10", "backup"),
        lambda disk: disk.copy("checkpoint-10", "saved/checkpoint-10"),
        lambda disk: (disk.remove("checkpoint-10"), disk.model("checkpoint-10", "b", shards=2)),
    ],
    ids=["touch", "inodes", "evaluation", "half removed", "no config", "rename", "copy", "copy below", "copied back"],
)
def test_nothing_that_leaves_its_weights_as_they_were_brings_an_old_step_back(
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
def test_an_older_step_with_new_weights_is_published_once_nothing_newer_is_there(disk: Disk, known: str) -> None:
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


def test_a_run_that_begins_anew_is_followed_once_the_old_steps_are_gone(disk: Disk) -> None:
    watched = three_steps(disk)
    disk.now += 60
    disk.model("checkpoint-1", "n", shards=2)
    assert watched.look() == [] and "it is older than checkpoint-20; if the run began anew, move" in watched.notices[-1]
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


def test_a_step_that_was_overtaken_while_it_was_incomplete_does_not_come_back(disk: Disk) -> None:
    watched = Watched(disk)
    disk.write("step-1/model-00001-of-00002.safetensors", "a")
    assert watched.look(1) == []
    disk.model("step-2", "b")
    assert watched.look(1) == ["step-2"]
    disk.remove("step-2")
    disk.model("step-1", "a", shards=2)
    assert watched.look(1) == [] and watched.look(1) == []


def test_an_older_step_that_comes_from_elsewhere_does_not_replace_one_that_was_removed(disk: Disk) -> None:
    disk.model("elsewhere/checkpoint-15", "old", shards=2)
    watched = Watched(disk, ignore=("elsewhere",))
    disk.now += 60
    for step in (10, 20):
        disk.model(f"checkpoint-{step}", str(step), shards=2)
    assert watched.look() == ["checkpoint-20"]
    disk.remove("checkpoint-20")
    disk.move("elsewhere/checkpoint-15", "checkpoint-15")
    assert watched.look(60) == []


def test_what_is_left_of_the_live_directory_keeps_older_steps_out(disk: Disk) -> None:
    watched = three_steps(disk)
    for name in [*shards(2), "model.safetensors.index.json"]:
        disk.remove(f"checkpoint-20/{name}")
    disk.now += 60
    disk.model("checkpoint-10", "new", shards=2)
    assert watched.look() == [] and watched.look(60) == []
    disk.remove("checkpoint-20")
    disk.now += 60
    disk.model("checkpoint-10", "newer", shards=2)
    assert watched.look() == ["checkpoint-10"]


def test_a_directory_that_vanishes_and_returns_changes_nothing(disk: Disk) -> None:
    watched = three_steps(disk)
    entries = dict(disk.entries)
    disk.entries.clear()
    assert watched.look(1) == []
    disk.entries.update(entries)
    disk.remove("checkpoint-20")
    disk.new_inodes("")
    assert watched.look(1) == []


def test_what_cannot_be_listed_is_not_taken_for_gone(disk: Disk) -> None:
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


def test_one_checkpoint_replaced_in_place_is_published_at_each_change_of_its_weights(disk: Disk) -> None:
    watched = Watched(disk, settle=1)
    for bits in "abab":  # a trainer may go back on purpose: what it writes in place is what it means
        disk.model("", bits)
        disk.write("tokenizer/tokenizer.json")
        assert watched.look() == [] and watched.look(1) == [""]
        assert watched.look(60) == []
    disk.write("eval.json")
    disk.new_inodes("")
    assert watched.look(60) == [] and watched.look(60) == []


def test_a_state_that_came_while_the_last_one_was_published_is_published_next(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("step-1", "a")
    candidate = watched.offered()
    assert candidate is not None
    read = disk.fingerprint_of(candidate)
    disk.now += 1
    disk.model("step-1", "b")
    watched.publish(candidate, read)
    assert watched.look() == ["step-1"]


def test_what_was_being_published_when_the_process_ended_counts_if_it_became_a_version(disk: Disk) -> None:
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


def test_without_a_version_in_the_store_everything_is_published_again(disk: Disk) -> None:
    watched = three_steps(disk)
    watched.history.clear()
    watched.watcher.resume(None)
    assert watched.look() == ["checkpoint-20"]


def test_what_was_being_published_and_came_to_nothing_is_published_after_the_restart(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("step-3", "3")
    candidate = watched.offered()
    assert candidate is not None
    watched.watcher.begin(candidate, None)
    watched.restart()
    assert watched.look() == ["step-3"]


# ---- which is newest ----------------


@pytest.mark.parametrize("order", list(itertools.permutations([500, 1000, 1500, 20])))
@pytest.mark.parametrize("looks", [True, False], ids=["seen one by one", "seen at once"])
def test_copied_in_any_order_the_highest_step_ends_live(disk: Disk, order: tuple[int, ...], looks: bool) -> None:
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
def test_numbers_order_names_that_are_alike(disk: Disk, older: str, newer: str) -> None:
    watched = Watched(disk)
    disk.model(newer, "n")
    disk.now += 60
    disk.model(older, "o")
    assert watched.look() == [newer] and watched.look(60) == []


def test_time_orders_names_that_are_not_alike(disk: Disk) -> None:
    watched = Watched(disk)
    for name in ("zebra", "step-7", "apple"):
        disk.now += 60
        disk.model(name, name)
    assert watched.look() == ["apple"]
    disk.now += 60
    disk.model("step-8", "8")
    assert watched.look() == ["step-8"]


def test_names_of_the_same_time_are_published_once_each_at_most(disk: Disk) -> None:
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


def test_of_a_backlog_only_the_newest_is_published_and_that_is_said(disk: Disk) -> None:
    watched = Watched(disk)
    for step in range(1, 14):
        disk.model(f"step-{step}", str(step))
    assert watched.look() == ["step-13"]
    assert "the newest of 13 checkpoints: the 12 others are not published; --backlog all" in watched.notices[0]
    assert watched.look(60) == []


def test_all_of_a_backlog_is_published_oldest_first_if_asked_for(disk: Disk) -> None:
    watched = Watched(disk, backlog=True)
    for step in (3, 11, 2, 1):
        disk.model(f"step-{step}", str(step))
    assert watched.look() == [f"step-{step}" for step in (1, 2, 3, 11)]
    watched.restart()
    assert watched.look(60) == []


# ---- what is no checkpoint of its own ----------------


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


def test_ignored_names_are_passed_over(disk: Disk) -> None:
    watched = Watched(disk, ignore=("eval-*", "run1/*", "*.bak"))
    disk.model("step-1", "1")
    disk.write("step-1/old.bak")
    for name in ("eval-7", "run1/step-9"):
        disk.model(name, name)
    candidate = watched.offered()
    assert candidate is not None and candidate.path == "step-1"
    assert candidate.files == ("step-1/config.json", "step-1/model.safetensors")


# ---- what is not taken, and why ----------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pytorch_model.bin", "pytorch_model.bin is no safetensors file and cannot be sent as a delta: save the model"),
        ("model.gguf", "model.gguf is no safetensors file"),
        ("notes.txt", "no .safetensors file is in it"),
        ("", "it is empty"),
    ],
)
def test_what_is_seen_and_not_taken_is_said_once_with_the_reason(disk: Disk, name: str, reason: str) -> None:
    watched = Watched(disk)
    disk.folder("step-1")
    if name:
        disk.write(f"step-1/{name}")
    assert watched.look() == [] and not watched.notices
    for _ in range(3):
        assert watched.look(5) == []
    assert len(watched.notices) == 1 and watched.notices[0].startswith(f"step-1 is not taken: {reason}")


def test_training_state_is_left_out_and_that_is_said_once(disk: Disk) -> None:
    watched = Watched(disk)
    for step in (1, 2):
        place = f"checkpoint-{step}"
        disk.model(place, str(step))
        for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "training_args.bin", "trainer_state.json"):
            disk.write(f"{place}/{name}", size=1_000_000)
        disk.write(f"{place}/global_step{step}/zero_pp_rank_0_mp_rank_00_optim_states.pt", size=5_000_000)
        disk.write(f"{place}/adam.safetensors", size=2_000_000, tensors=TensorHeader(2_000_000, optimizer=True))
        disk.write(f"{place}/__0_0.distcp")
        candidate = watched.offered()
        assert candidate is not None
        assert candidate.files == (f"{place}/config.json", f"{place}/model.safetensors")
        watched.look(60)
    assert [notice for notice in watched.notices if "training state" in notice] == [watched.notices[0]]
    assert "(12.0 MB) left out as training state; --training-state sends" in watched.notices[0]


def test_training_state_is_published_if_asked_for(disk: Disk) -> None:
    disk.model("checkpoint-1", "a")
    disk.write("checkpoint-1/optimizer.pt")
    disk.write("checkpoint-1/global_step1/x.pt")
    candidate = Watched(disk, training_state=True).offered()
    assert candidate is not None
    assert {"checkpoint-1/optimizer.pt", "checkpoint-1/global_step1/x.pt"} < set(candidate.files)


# ---- links and other hazards ----------------

HAZARDS = {
    "link out": lambda disk: disk.link("step-9/x.json", "/etc/passwd", EntryKind.FILE),
    "link to the store": lambda disk: disk.link("step-9/x.json", ".p2psync/trainer.key", EntryKind.FILE),
    "hard link of another owner": lambda disk: disk.write("step-9/x.json", links=2, owner=7),
    "secret": lambda disk: disk.write("step-9/x.json", identity=(9, 9)),
    "linked directory": lambda disk: disk.link("step-9/tokenizer", "/usr/share"),
    "loop": lambda disk: disk.write("step-9/x", kind=EntryKind.OTHER, error="Too many levels of symbolic links"),
    "not UTF-8": lambda disk: disk.write("step-9/x\udcff.json"),
    "control characters": lambda disk: disk.write("step-9/x\n.json"),
    "closed directory": lambda disk: disk.folder("step-9/tokenizer", error="Permission denied: trying again"),
    "pipe": lambda disk: disk.write("step-9/pipe", kind=EntryKind.OTHER),
    "read error": lambda disk: disk.write("step-9/x.json", error="Stale file handle: trying again"),
}


@pytest.mark.parametrize("hazard", HAZARDS)
def test_a_hazard_concerns_only_its_own_checkpoint(disk: Disk, hazard: str) -> None:
    watched = Watched(disk, secrets=frozenset({(9, 9)}))
    disk.model("step-8", "8")
    disk.model("step-9", "9")
    HAZARDS[hazard](disk)
    assert watched.look() == ["step-8"]
    assert any(notice.startswith("step-9 is not") for notice in watched.notices)
    assert all(notice.isprintable() and notice.encode() for notice in watched.notices)
    disk.model("step-10", "10")
    assert watched.look(60) == ["step-10"]


@pytest.mark.parametrize("hazard", ["link out", "link to the store", "hard link of another owner"])
def test_links_out_are_published_if_allowed(disk: Disk, hazard: str) -> None:
    disk.model("step-9", "9")
    HAZARDS[hazard](disk)
    assert Watched(disk, follow_links=True).look() == ["step-9"]


def test_a_secret_is_never_published(disk: Disk) -> None:
    disk.model("step-9", "9")
    HAZARDS["secret"](disk)
    assert Watched(disk, follow_links=True, secrets=frozenset({(9, 9)})).look() == []


def test_links_and_hard_links_within_the_directory_are_part_of_a_checkpoint(disk: Disk) -> None:
    disk.model("step-1", "1")
    disk.write("shared/tokenizer.json", links=2)
    disk.link("step-1/tokenizer.json", "shared/tokenizer.json", EntryKind.FILE)
    disk.write("step-1/merges.txt", links=5)
    assert Watched(disk).look() == ["step-1"]


def test_a_directory_whose_name_is_no_text_is_refused_by_name(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("step-1\udcff", "1")
    disk.model("ok", "2")
    assert watched.look(60) == ["ok"]
    assert "step-1\\udcff is not taken: its name is not UTF-8: rename it" in watched.notices


# ---- failures ----------------


def test_a_checkpoint_that_cannot_be_read_is_tried_again_and_blocks_no_other(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("step-1", "1")
    disk.model("step-2", "2")
    pauses = []
    for _ in range(7):
        candidate = watched.offered()
        assert candidate is not None and candidate.path == "step-2"
        watched.watcher.failed(candidate, disk.now)
        if "step-1" not in watched.published:
            assert watched.look() == ["step-1"]
        begun = disk.now
        while watched.offered() is None:
            disk.now += 0.25
        pauses.append(disk.now - begun)
    assert pauses == [0.5, 1, 2, 4, 8, 10, 10]
    assert watched.look() == ["step-2"]


def test_a_checkpoint_that_is_refused_waits_for_another_state_and_blocks_no_other(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("step-1", "1")
    disk.model("step-2", "2")
    candidate = watched.offered()
    assert candidate is not None and candidate.path == "step-2"
    watched.watcher.refused(candidate)
    assert watched.look() == ["step-1"] and watched.look(60) == []
    disk.write("step-2/config.json")
    assert watched.look(60) == ["step-2"]
