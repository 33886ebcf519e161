"""A trainer that watches a directory and actors that keep theirs byte-identical to it."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from checkpoint_parts import Model, copy_of, sums, write_files
from daemon_parts import Process, Swarm


@dataclass
class Running:
    """A trainer and two actors at the newest version."""

    swarm: Swarm
    model: Model
    trainer: Process
    actors: dict[str, Process]

    def publish(self) -> int:
        """Publish the model, and see every actor get it bit for bit."""
        seen = {name: len(actor.events) for name, actor in self.actors.items()}
        version = self.swarm.publish(self.model, self.trainer)
        for name, actor in self.actors.items():
            self.swarm.converged(actor, name, version, seen[name])
        return version


@pytest.fixture(scope="module")
def running(shared: Swarm) -> Running:
    shared.plans = True
    trainer = shared.trainer(anchor_ratio=50)
    actors = {name: shared.actor(name) for name in ("one", "two")}
    model = Model()
    made = Running(shared, model, trainer, actors)
    assert made.publish() == 0
    copy_of(shared.watch / "step-0", shared.place / "version-0")
    return made


def test_after_every_publish_each_file_is_the_published_one(running: Running) -> None:
    for _ in range(3):
        running.model.step()
        running.publish()


def test_an_ordinary_step_patches_the_slots_in_place(running: Running) -> None:
    slots = running.swarm.place / "one" / ".p2psync" / "slots"
    for _ in range(2):  # both slots are filled
        running.model.step()
        running.publish()
    before = {path: path.stat().st_ino for path in slots.rglob("*.safetensors")}
    for _ in range(2):
        running.model.step()
        running.publish()
    assert {path: path.stat().st_ino for path in slots.rglob("*.safetensors")} == before
    assert len(before) == 6


def test_a_delta_fetches_little(running: Running) -> None:
    running.model.step()
    seen = len(running.actors["one"].events)
    version = running.publish()
    event = running.actors["one"].wait_for("Committed", seen, version=version)
    whole = sum(len(data) for data in running.model.contents().values())
    assert 0 < event["fetched_bytes"] < whole / 10


def test_files_may_be_added_removed_grown_and_resharded(running: Running) -> None:
    model = running.model
    model.files["generation_config.json"] = b"{}"
    model.files["deeply/nested/note.txt"] = b"x" * 5000
    running.publish()
    del model.files["tokenizer/tokenizer.json"]
    model.files["config.json"] = b'{"hidden_size": 256, "vocab_size": 300}\n'
    running.publish()
    first = next(iter(model.shards))
    model.shards[first]["layers.0.weight"] = model.tensor(300, 256)
    model.shards[first]["extra"] = np.zeros((0, 7), np.uint16)
    running.publish()
    tensors = {key: bits for part in model.shards.values() for key, bits in part.items()}
    names = sorted(tensors)
    model.shards = {
        "model-00001-of-00002.safetensors": {name: tensors[name] for name in names[:2]},
        "model-00002-of-00002.safetensors": {name: tensors[name] for name in names[2:]},
    }
    running.publish()
    model.step()
    running.publish()


def test_an_actor_that_joins_late_gets_the_newest_version(running: Running) -> None:
    version = max(running.swarm.sums)
    actor = running.swarm.actor("late", until=version)
    event = running.swarm.converged(actor, "late", version)
    assert actor.exit_code() == 0
    assert len(actor.find("Committed")) == 1, "it went there in one go"
    assert event["fetched_bytes"] > 100_000


def test_a_local_copy_of_the_base_spares_the_anchor(running: Running) -> None:
    version = max(running.swarm.sums)
    actor = running.swarm.actor("copied", base=running.swarm.place / "version-0", until=version)
    running.swarm.converged(actor, "copied", version)
    assert actor.exit_code() == 0
    assert not actor.find("Fetching", anchor=True)
    deltas = [event["payload_bytes"] for event in running.trainer.find("Published", anchor=False)]
    assert sum(event["payload_bytes"] for event in actor.find("Fetching")) == sum(deltas)


def test_verify_finds_wrong_bits_and_status_shows_all_nodes(running: Running, tmp_path: Path) -> None:
    swarm, version = running.swarm, max(running.swarm.sums)
    good = swarm.run("verify", swarm.place / "one" / "current", "--join", swarm.url, "--trust", swarm.public)
    kept = swarm.run("verify", swarm.place / "one", "--join", swarm.url, "--trust", swarm.public)
    stale = swarm.run("verify", swarm.place / "version-0", "--join", swarm.url, "--trust", swarm.public, "--json", "-")
    shown = swarm.run("status", swarm.url, "--json", tmp_path / "status.json")
    assert good.exit_code() == 0, good.stderr
    assert kept.exit_code() == 0, kept.stderr
    assert stale.exit_code() == 1
    assert f"is not version {version}, it is version 0" in stale.stderr and stale.stderr.count("\n") == 1
    assert shown.exit_code() == 0
    view = json.loads((tmp_path / "status.json").read_text())["view"]
    assert view["head"] == version
    assert {member["version"] for member in view["members"]} == {version}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_told_to_stop_an_actor_gives_its_lease_back(running: Running, number: int, code: int, tmp_path: Path) -> None:
    swarm = running.swarm
    actor = swarm.actor(f"leaving-{code}")
    swarm.converged(actor, f"leaving-{code}", max(swarm.sums))
    assert actor.stop(number) == code
    assert "Traceback" not in actor.stderr
    shown = swarm.run("status", swarm.url, "--json", tmp_path / "status.json")
    assert shown.exit_code() == 0
    members = json.loads((tmp_path / "status.json").read_text())["view"]["members"]
    assert len(members) == 3, "the trainer and the two that stay"


def test_a_base_that_differs_in_one_tensor_costs_that_tensor(swarm: Swarm) -> None:
    model = Model(seed=5, rows=512)
    trainer = swarm.trainer()
    version = swarm.publish(model, trainer)
    contents = model.contents()
    model.shards["model-00002-of-00003.safetensors"]["layers.1.weight"][100:110] += 1
    name = "model-00002-of-00003.safetensors"
    write_files(swarm.place / "near", contents | {name: model.contents()[name]})
    write_files(swarm.place / "far", dict.fromkeys(contents, b"\x10\x00\x00\x00\x00\x00\x00\x00garbage"))
    near = swarm.actor("a", base=swarm.place / "near", until=version)
    event = swarm.converged(near, "a", version)
    assert 100_000 < event["fetched_bytes"] < 400_000, "one of three tensors of 256 KiB, in whole chunks"
    far = swarm.actor("b", base=swarm.place / "far", until=version)
    swarm.converged(far, "b", version)
    assert far.find("Trouble", message=lambda m: "--base is of no use" in m)
    assert (near.exit_code(), far.exit_code()) == (0, 0)
    assert sums(swarm.place / "near") != swarm.sums[version], "the copy itself is left alone"
