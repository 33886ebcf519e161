"""The locations of checkpoints in the directories that frameworks write."""

from __future__ import annotations

import pytest
from watch_parts import Disk, Watched

from p2psync.trainer.watch.locations import CheckpointRules, find_locations


def files(disk: Disk, **rules: object) -> dict[str, list[str]]:
    """Returns the files of each published checkpoint, by its path, oldest first."""
    watched, found = Watched(disk, backlog=True, **rules), {}
    while (candidate := watched.offered()) is not None:
        prefix = f"{candidate.path}/" if candidate.path and not candidate.lone else ""
        found[candidate.path] = [name.removeprefix(prefix) for name in candidate.files]
        watched.publish(candidate)
    return found


def write(disk: Disk, place: str, *names: str) -> None:
    for name in names:
        disk.write(f"{place}/{name}" if place else name, f"{place}{name}")


HF = ["config.json", "model.safetensors", "tokenizer.json"]
STATE = ["optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json", "training_args.bin"]


def test_hugging_face_trainer(disk: Disk) -> None:
    for step in (500, 1000):
        write(disk, f"checkpoint-{step}", *HF, *STATE)
    write(disk, "runs/Nov28", "events.out.tfevents.1")
    assert files(disk) == {"checkpoint-500": HF, "checkpoint-1000": HF}
    disk.now += 60
    write(disk, "", *HF, "training_args.bin")  # files that `save_model` leaves at the end
    assert files(disk)[""] == HF


def test_hugging_face_trainer_with_deepspeed(disk: Disk) -> None:
    place = "checkpoint-10"
    write(disk, place, *HF, *STATE, "latest", "zero_to_fp32.py", "rng_state_0.pth")
    write(disk, f"{place}/global_step10", "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    assert files(disk) == {place: HF}


def test_verl(disk: Disk) -> None:
    for step in (9, 10):
        place = f"run/global_step_{step}"
        write(disk, place, "data.pt")
        for role in ("actor", "critic"):
            write(disk, f"{place}/{role}", "model_world_size_8_rank_0.pt", "optim_world_size_8_rank_0.pt")
            write(disk, f"{place}/{role}/huggingface", *HF)
    write(disk, "run", "latest_checkpointed_iteration.txt")
    assert files(disk) == {f"run/global_step_{step}/actor/huggingface": HF for step in (9, 10)}


def test_verl_without_a_policy_in_safetensors_makes_a_notice(disk: Disk) -> None:
    write(disk, "global_step_1/actor", "model_world_size_8_rank_0.pt")
    watched = Watched(disk)
    assert watched.look() == [] and watched.look(60) == []
    assert watched.notices[0].startswith("global_step_1 is not taken:")


def test_deepspeed_chat(disk: Disk) -> None:
    for name in ("actor", "critic"):
        write(disk, f"step_3/{name}", *HF)
    assert files(disk) == {"step_3/actor": HF}


def test_prime_rl(disk: Disk) -> None:
    for step in (1, 2):
        write(disk, f"weights/step_{step}", *HF, "STABLE")
        write(disk, f"checkpoints/step_{step}/trainer", "__0_0.distcp", "__1_0.distcp")
    write(disk, "logs", "trainer.log")
    assert list(files(disk)) == ["weights/step_1", "weights/step_2"]
    assert list(files(disk, marker="STABLE")) == ["weights/step_1", "weights/step_2"]


def test_torchtune(disk: Disk) -> None:
    for epoch in (0, 1):
        disk.model(f"epoch_{epoch}", str(epoch), shards=2)
        write(disk, f"epoch_{epoch}", "adapter_model.pt", "original_repo_id.json")
    write(disk, "recipe_state", "recipe_state.pt")
    found = files(disk)
    assert list(found) == ["epoch_0", "epoch_1"] and "adapter_model.pt" not in found["epoch_0"]


def test_orbax_and_lightning_leave_nothing_to_publish(disk: Disk) -> None:
    write(disk, "100/state", "_METADATA", "manifest.ocdbt")
    write(disk, "200.orbax-checkpoint-tmp-17/state", "model.safetensors")
    write(disk, "lightning", "epoch=1-step=10.ckpt")
    assert files(disk) == {}


def test_one_directory_replaced_in_place(disk: Disk) -> None:
    write(disk, "", *HF, "notes.txt")
    write(disk, "tokenizer", "vocab.txt")
    write(disk, "optimizer", "state.safetensors")
    assert files(disk) == {"": sorted([*HF, "notes.txt", "tokenizer/vocab.txt"])}


def test_a_stray_file_beside_checkpoints_is_no_checkpoint(disk: Disk) -> None:
    write(disk, "", "reward.safetensors")
    write(disk, "checkpoint-5", *HF)
    write(disk, "run1/checkpoint-6", *HF)
    assert files(disk) == {"checkpoint-5": HF, "run1/checkpoint-6": HF}
    watched = Watched(disk)
    watched.look(60)
    assert any("reward.safetensors is left out: it stands beside checkpoints" in text for text in watched.notices)


def test_checkpoints_of_an_empty_name_wait_beside_a_model(disk: Disk) -> None:
    """A step without weights yet is no part of the model above it."""
    write(disk, "", *HF)
    write(disk, "checkpoint-5", "config.json")
    assert files(disk) == {"": HF}


def test_files_that_are_a_step_each(disk: Disk) -> None:
    write(disk, "", "policy-9.safetensors", "policy-10.safetensors")
    found = files(disk)
    assert found == {name: [name] for name in ("policy-9.safetensors", "policy-10.safetensors")}
    disk.write("policy-11.safetensors", "11")
    disk.write("policy-11.safetensors.aria2")
    assert list(files(disk)) == ["policy-9.safetensors", "policy-10.safetensors"]


def test_components_of_one_model_stay_together(disk: Disk) -> None:
    write(disk, "step-1", "model_index.json")
    for part in ("unet", "vae"):
        write(disk, f"step-1/{part}", "config.json", "diffusion.safetensors")
    write(disk, "step-1/scheduler", "scheduler_config.json")
    assert len(files(disk)["step-1"]) == 6
    write(disk, "step-2", "modules.json", *HF)
    write(disk, "step-2/2_Dense", "model.safetensors")
    assert "2_Dense/model.safetensors" in files(disk)["step-2"]


@pytest.mark.parametrize("nested", ["reference", "old", "checkpoint-1"])
def test_a_nested_model_is_never_part_of_its_parent(disk: Disk, nested: str) -> None:
    write(disk, "checkpoint-9", *HF)
    write(disk, f"checkpoint-9/{nested}", *HF)
    disk.now += 60
    disk.touch(f"checkpoint-9/{nested}")
    assert files(disk) == {"checkpoint-9": HF}


def test_several_models_in_one_step_ask_the_user_to_choose(disk: Disk) -> None:
    for name in ("left", "right"):
        write(disk, f"step-1/{name}", *HF)
    watched = Watched(disk)
    assert watched.look() == []
    assert "several models (step-1/left, step-1/right): choose one with --inside" in watched.notices[0]
    assert files(disk, inside="right") == {"step-1/right": HF}
    assert list(files(disk, inside="r*")) == ["step-1/right"]
    assert len(files(disk, inside=".")["step-1"]) == 6


def test_inside_takes_only_matching_directories(disk: Disk) -> None:
    write(disk, "global_step_1", *HF)
    write(disk, "global_step_1/critic/huggingface", *HF)
    assert list(files(disk, inside="critic/huggingface")) == ["global_step_1/critic/huggingface"]


def test_a_policy_is_never_found_within_hidden_or_unfinished_directories(disk: Disk) -> None:
    for place in (".p2psync/slots/a", ".staging", "tmp-1/checkpoint-9", "a/b.tmp/step-1"):
        write(disk, place, *HF)
    assert [place for place in find_locations(disk.listing(), CheckpointRules()).locations if place.has_weights] == []
