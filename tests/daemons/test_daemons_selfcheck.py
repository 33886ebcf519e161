"""Real daemons over damage at the trainer: a flipped snapshot, rot at the only holder, a store from a backup."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from checkpoint_parts import Model
from daemon_parts import Swarm


def spoil(path: Path, places: int = 8) -> None:
    """Flip a bit in some bytes of a file, which other processes may have open."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        for k in range(places):
            at = (2 * k + 1) * size // (2 * places)
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 4]))


def test_a_snapshot_that_is_damaged_under_a_running_trainer_costs_a_line(swarm: Swarm) -> None:
    trainer, model = swarm.trainer(), Model(rows=256)
    swarm.publish(model, trainer)
    actor = swarm.actor("one")
    swarm.converged(actor, "one", 0)
    (bits,) = (swarm.place / "store" / "snapshot").glob("bits-*")
    spoil(bits)
    for _ in range(2):
        version = swarm.publish(model.step(), trainer)
        swarm.converged(actor, "one", version)
    told = trainer.find("Trouble")
    assert len(told) == 1 and "the snapshot is damaged in block 0 of" in told[0]["message"], told
    assert not actor.find("Trouble")


@pytest.mark.parametrize("hashed", [False, True])
def test_a_joiner_gets_past_a_chunk_that_rotted_at_its_only_holder(swarm: Swarm, hashed: bool) -> None:
    """Whether or not the trainer hashed the chunk before it rotted."""
    trainer, model = swarm.trainer(), Model(rows=256)
    swarm.publish(model, trainer)
    if hashed:
        first = swarm.actor("first")
        swarm.converged(first, "first", 0)
        first.kill()
    (payload,) = (swarm.place / "store" / "packs").glob("*/payload")
    spoil(payload, 64)
    joiner = swarm.actor("joiner")
    swarm.converged(joiner, "joiner", 0)
    assert trainer.find("Trouble", message=lambda m: "has a damaged chunk that nobody else has" in m)
    assert len(joiner.find("PeerBanned")) <= 1


def test_actors_follow_a_trainer_from_an_older_backup_from_its_first_version_on(swarm: Swarm) -> None:
    trainer, model = swarm.trainer(), Model(rows=64)
    swarm.publish(model, trainer)
    swarm.publish(model.step(), trainer)
    assert trainer.stop() == 0
    shutil.copytree(swarm.place / "store", swarm.place / "backup")
    trainer = swarm.trainer()
    actor = swarm.actor("one")
    for _ in range(3):
        version = swarm.publish(model.step(), trainer)
    swarm.converged(actor, "one", version)
    assert version == 4
    trainer.kill()
    shutil.rmtree(swarm.place / "store")
    shutil.copytree(swarm.place / "backup", swarm.place / "store")
    (swarm.place / "store" / "watched.json").unlink(missing_ok=True)
    for old in swarm.watch.iterdir():
        shutil.rmtree(old)
    trainer = swarm.trainer()
    seen = len(actor.events)
    version = swarm.publish(model.step(), trainer)
    assert version == 2
    swarm.converged(actor, "one", 2, seen)
    assert actor.find("Note", message=lambda m: "the trainer went back: version 4 of epoch" in m)
