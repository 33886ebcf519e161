"""Full disks and rotten bits: the live version stays live and right, the daemon goes on, and recovers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkpoint_parts import Model
from daemon_parts import Swarm

Mount = Callable[[Path, int], Path]


@pytest.fixture
def small_disk() -> Iterator[Mount]:
    """Mounts a file system of so many MiB."""
    mounted: list[Path] = []

    def mount(place: Path, mebibytes: int) -> Path:
        place.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", place], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.decode().strip()}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", place], check=True)


def fill(place: Path) -> Path:
    """A file that takes all the space there is."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(b"x" * 65536)
            except OSError:
                break
    free = os.statvfs(place)
    assert free.f_bavail * free.f_frsize < 1 << 16
    return ballast


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_at_the_trainer_delays_a_version(swarm: Swarm, small_disk: Mount) -> None:
    disk = small_disk(swarm.place / "store", 16)
    trainer = swarm.trainer()
    model = Model(rows=128)
    actor = swarm.actor("actor")
    swarm.converged(actor, "actor", swarm.publish(model, trainer))
    ballast = fill(disk)
    seen = len(trainer.events)
    files = model.step().write(swarm.watch / "while-full")
    trainer.wait_for("Trouble", seen, message=lambda m: "while-full is not published yet" in m)
    assert not trainer.find("Published", version=1)
    ballast.unlink()
    trainer.wait_for("Published", seen, version=1)
    swarm.sums[1] = files
    swarm.converged(actor, "actor", 1)
    model.files["more.bin"] = b"y" * 100_000  # a layout that changes needs a second snapshot
    ballast = fill(disk)
    files = model.write(swarm.watch / "again")
    trainer.wait_for("Trouble", seen, message=lambda m: "again is not published yet" in m)
    ballast.unlink()
    trainer.wait_for("Published", seen, version=2)
    swarm.sums[2] = files
    swarm.converged(actor, "actor", 2)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_at_an_actor_leaves_its_live_version_alone(swarm: Swarm, small_disk: Mount) -> None:
    disk = small_disk(swarm.place / "actor", 16)
    trainer = swarm.trainer()
    model = Model(rows=128)
    actor = swarm.actor("actor")
    swarm.converged(actor, "actor", swarm.publish(model, trainer))
    ballast = fill(disk)
    seen = len(actor.events)
    version = swarm.publish(model.step(), trainer)
    actor.wait_for("Trouble", seen)
    assert swarm.current("actor") == swarm.sums[0]
    ballast.unlink()
    swarm.converged(actor, "actor", version, seen)


def test_a_bit_that_rots_in_a_live_slot_is_found_and_mended(swarm: Swarm) -> None:
    trainer = swarm.trainer()
    model = Model(rows=128)
    actor = swarm.actor("actor", scrub=100)
    swarm.converged(actor, "actor", swarm.publish(model, trainer))
    for _ in range(2):
        seen = len(actor.events)
        flip_a_bit(next((swarm.place / "actor" / "current").glob("*.safetensors")))
        actor.wait_for("Trouble", seen, message=lambda m: "damaged here" in m)
        swarm.converged(actor, "actor", max(swarm.sums), seen)
    for _ in range(3):  # the slot that was damaged is used again, and is right
        swarm.converged(actor, "actor", swarm.publish(model.step(), trainer))


def flip_a_bit(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1001, 2)
        byte = file.read(1)[0]
        file.seek(-1001, 2)
        file.write(bytes([byte ^ 4]))
