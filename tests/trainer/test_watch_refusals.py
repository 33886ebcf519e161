"""The watcher refuses some checkpoints and files of a directory, with the reason; failures block only their own."""

from __future__ import annotations

import pytest
from watch_parts import Disk, Watched

from p2psync.trainer.watch.listing import EntryKind, TensorHeader


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pytorch_model.bin", "pytorch_model.bin is no safetensors file and cannot be sent as a delta: save the model"),
        ("model.gguf", "model.gguf is no safetensors file"),
        ("notes.txt", "no .safetensors file is in it"),
        ("", "it is empty"),
    ],
)
def test_an_unpublishable_checkpoint_makes_one_notice_with_the_reason(disk: Disk, name: str, reason: str) -> None:
    watched = Watched(disk)
    disk.folder("step-1")
    if name:
        disk.write(f"step-1/{name}")
    assert watched.look() == [] and not watched.notices
    for _ in range(3):
        assert watched.look(5) == []
    assert len(watched.notices) == 1 and watched.notices[0].startswith(f"step-1 is not taken: {reason}")


def test_training_state_is_left_out_with_one_notice(disk: Disk) -> None:
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


def test_training_state_is_published_on_request(disk: Disk) -> None:
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
def test_a_hazard_spoils_only_its_own_checkpoint(disk: Disk, hazard: str) -> None:
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
def test_links_out_are_published_with_follow_links(disk: Disk, hazard: str) -> None:
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


def test_a_directory_with_an_undecodable_name_is_refused_by_name(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("step-1\udcff", "1")
    disk.model("ok", "2")
    assert watched.look(60) == ["ok"]
    assert "step-1\\udcff is not taken: its name is not UTF-8: rename it" in watched.notices


# ---- failures ----------------


def test_an_unreadable_checkpoint_is_retried_with_backoff_and_blocks_no_other(disk: Disk) -> None:
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


def test_a_refused_checkpoint_waits_for_another_state_and_blocks_no_other(disk: Disk) -> None:
    watched = Watched(disk)
    disk.model("step-1", "1")
    disk.model("step-2", "2")
    candidate = watched.offered()
    assert candidate is not None and candidate.path == "step-2"
    watched.watcher.refused(candidate)
    assert watched.look() == ["step-1"] and watched.look(60) == []
    disk.write("step-2/config.json")
    assert watched.look(60) == ["step-2"]
