"""Files of a running actor are damaged: it says so in one line, falls back or fetches again, and is right."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from checkpoint_parts import Model
from daemon_parts import Swarm

Damage = Callable[[Path], None]


def remove_the_slot(into: Path) -> None:
    shutil.rmtree((into / "current").resolve())


def cut_a_file(into: Path) -> None:
    os.truncate(weights(into), 4096)


def flip_a_bit(into: Path) -> None:
    path = weights(into)
    data = bytearray(path.read_bytes())
    data[-1001] ^= 4
    path.write_bytes(data)


def put_a_directory_in_its_place(into: Path) -> None:
    path = weights(into)
    path.unlink()
    path.mkdir()


def weights(into: Path) -> Path:
    return next((into / "current").resolve().glob("*.safetensors"))


def test_any_damage_to_a_live_version_is_reported_within_seconds_and_repaired(swarm: Swarm) -> None:
    """Until the repair the version before is live; with one version published, none is."""
    trainer = swarm.trainer()
    model = Model(rows=128)
    actor = swarm.actor("actor", scrub=0)
    damages: list[Damage] = [remove_the_slot, cut_a_file, flip_a_bit, put_a_directory_in_its_place]
    for published, damage in enumerate([remove_the_slot, *damages], start=1):
        if published <= 2:
            newest = swarm.publish(model.step(), trainer)
            swarm.converged(actor, "actor", newest)
        seen = len(actor.events)
        damage(swarm.place / "actor")
        told = actor.wait_for("Trouble", seen, message=lambda m: "is damaged here" in m)
        assert "\n" not in told["message"]
        assert ("nothing is live" in told["message"]) == (published == 1)
        swarm.converged(actor, "actor", newest, seen)
    link = swarm.place / "actor" / "current"
    for elsewhere in (None, "nowhere"):
        seen = len(actor.events)
        link.unlink()
        if elsewhere is not None:
            link.symlink_to(elsewhere)
        actor.wait_for("Trouble", seen, message=lambda m: "made again" in m)
        assert swarm.current("actor") == swarm.sums[newest]
    swarm.converged(actor, "actor", swarm.publish(model.step(), trainer))
    assert "Traceback" not in actor.stderr


def test_a_pack_that_is_cut_while_peers_ask_for_it_ends_nothing(swarm: Swarm) -> None:
    trainer = swarm.trainer()
    version = swarm.publish(Model(rows=2048), trainer)
    first = swarm.actor("first")
    swarm.converged(first, "first", version)
    for payload in (swarm.place / "first").glob(".p2psync/swarm/packs/*/payload"):
        os.truncate(payload, 5000)
    second = swarm.actor("second")
    swarm.converged(second, "second", version)
    swarm.converged(first, "first", swarm.publish(Model(rows=2048).step(), trainer))
    assert first.process.poll() is None
    assert "Traceback" not in first.stderr
