"""`p2psync trainer --watch` publishes whole checkpoints, waits for unfinished ones, and refuses broken ones."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path

import pytest
from checkpoint_parts import MARKER, Model, write_files
from daemon_parts import Process, Swarm

SETTLE = 0.3


@pytest.fixture(scope="module")
def trainer(shared: Swarm) -> Process:
    return shared.trainer(settle=SETTLE)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(rows=64)


def digest_of(contents: dict[str, bytes], place: Path, shared: Swarm, trainer: Process) -> str:
    """The digest that the trainer reports for a checkpoint that appears whole."""
    seen = len(trainer.events)
    write_files(place.with_name(f".{place.name}"), contents)
    place.with_name(f".{place.name}").rename(place)
    return str(trainer.published(seen)["digest"])


def test_a_checkpoint_whose_shards_come_slowly_is_published_once_whole(
    shared: Swarm, trainer: Process, model: Model
) -> None:
    contents = model.contents()
    shards = sorted(name for name in contents if name.endswith(".safetensors"))
    place = shared.watch / "slow-1"
    write_files(place, {name: data for name, data in contents.items() if name not in shards})
    for shard, missing in itertools.pairwise(shards):
        write_files(place, {shard: contents[shard]})
        trainer.wait_for("Trouble", message=lambda m, missing=missing: f"{missing} of its index is missing" in m)
        assert not trainer.find("Published")
    write_files(place, {shards[-1]: contents[shards[-1]]})
    trainer.wait_for("Published", version=0)


def test_the_same_bits_again_are_not_published(shared: Swarm, trainer: Process, model: Model) -> None:
    seen = len(trainer.events)
    model.write(shared.watch / "again-2")
    trainer.wait_for("Note", seen, message=lambda m: "the same bits" in m)
    assert len(trainer.find("Published")) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: (9).to_bytes(8, "little") + b'{"a": 1}}' + data[17:],
        lambda data: data.replace(b'"BF16"', b'"BAD!"', 1),
        lambda data: data + b"more",
    ],
    ids=["cut", "empty", "huge header", "odd header", "unknown type", "too long"],
)
def test_a_broken_file_is_reported_in_one_line_and_the_next_checkpoint_is_published(
    shared: Swarm, trainer: Process, model: Model, damage: object, request: pytest.FixtureRequest
) -> None:
    assert callable(damage)
    name = f"broken-{request.node.callspec.id.replace(' ', '-')}"
    contents = model.step().contents()
    first = next(name for name in contents if name.endswith(".safetensors"))
    seen = len(trainer.events)
    write_files(shared.watch / name, contents | {first: damage(contents[first])})
    trainer.wait_for("Trouble", seen, message=lambda m: name in m and "\n" not in m)
    published = len(trainer.find("Published"))
    write_files(shared.watch / name, contents)
    trainer.wait_for("Published", seen)
    assert len(trainer.find("Published")) == published + 1


def test_a_rename_may_be_published_at_the_first_look(shared: Swarm, trainer: Process, model: Model) -> None:
    first = digest_of(model.step().contents(), shared.watch / "renamed-3", shared, trainer)
    second = digest_of(model.step().contents(), shared.watch / "renamed-4", shared, trainer)
    assert first != second


def test_a_link_to_the_latest_is_not_another_checkpoint(shared: Swarm, trainer: Process, model: Model) -> None:
    (shared.watch / "latest").symlink_to("renamed-4")
    digest_of(model.step().contents(), shared.watch / "renamed-5", shared, trainer)
    assert not trainer.find("Note", message=lambda m: m.startswith("latest"))


def test_restarted_it_goes_on_with_the_run_and_publishes_nothing_twice(
    shared: Swarm, trainer: Process, model: Model, tmp_path: Path
) -> None:
    run = json.loads((shared.place / "store" / "run.json").read_text())
    last = trainer.find("Published")[-1]["version"]
    assert trainer.stop() == 0
    again = shared.trainer(settle=0)
    model.step().write(shared.watch / "after-restart")
    # An anchor of the last version that the stop interrupted may be made first.
    assert again.published()["version"] == last + 1
    assert all(event["version"] >= last for event in again.find("Published"))
    assert not again.find("Note", message=lambda m: "same bits" in m)
    resumed = json.loads((shared.place / "store" / "run.json").read_text())
    assert (resumed["run"], resumed["node"]) == (run["run"], run["node"])
    assert resumed["epoch"] > run["epoch"]
    again.stop()


def test_with_a_marker_nothing_counts_before_it(swarm: Swarm) -> None:
    trainer = swarm.trainer(marker=MARKER)
    model = Model(rows=64)
    write_files(swarm.watch / "b", model.contents())
    swarm.publish(Model(seed=1, rows=64), None)  # no marker either
    marked = model.step().contents() | {MARKER: b""}
    write_files(swarm.watch / "a", {name: data for name, data in marked.items() if name != MARKER})
    write_files(swarm.watch / "a", {MARKER: b""})
    trainer.wait_for("Published", version=0)
    actor = swarm.actor("actor", until=0)
    assert actor.exit_code() == 0
    assert swarm.current("actor") == {name: hashlib.sha256(data).hexdigest() for name, data in marked.items()}
    assert len(trainer.find("Published")) == 1


def test_a_checkpoint_that_is_replaced_in_place_is_published(swarm: Swarm) -> None:
    trainer = swarm.trainer(settle=SETTLE)
    model = Model(rows=64)
    versions = []
    for _ in range(3):
        seen = len(trainer.events)
        for name, data in model.step().contents().items():  # file by file, each by a rename
            (swarm.watch / name).parent.mkdir(exist_ok=True)
            (swarm.watch / f".{Path(name).name}").write_bytes(data)
            (swarm.watch / f".{Path(name).name}").replace(swarm.watch / name)
        versions.append(trainer.wait_for("Published", seen)["version"])
    actor = swarm.actor("actor", until=versions[-1])
    assert actor.exit_code() == 0
    assert swarm.current("actor") == {name: hashlib.sha256(data).hexdigest() for name, data in model.contents().items()}
