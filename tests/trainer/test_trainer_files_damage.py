"""What befalls a trainer's files: the run goes on, from what is there, or it says in one line what to do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from trainer_parts import RUN, Arrays, Bench

from p2psync.errors import StoreError
from p2psync.store.packs import Store
from p2psync.trainer.run_state import RunState, load_run, save_run


def into_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def into_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def into_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "emptied": lambda path: os.truncate(path, 0),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "grown": lambda path: os.truncate(path, path.stat().st_size + 5000),
    "nonsense": lambda path: path.write_bytes(b"\xff\x00\xe2" * 9),
    "a directory": into_directory,
    "a fifo": into_fifo,
    "a link to nothing": into_link,
}
damaged = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@damaged
def test_a_damaged_run_file_takes_the_run_of_the_newest_version(bench: Bench, damage: Callable[[Path], object]) -> None:
    bench.builder.make(Arrays(a=1000))
    path = bench.place / "run.json"
    save_run(path, RunState(RUN, 3, "0" * 32))
    damage(path)
    told: list[str] = []
    found = load_run(path, bench.store, told.append)
    assert (found.run, found.epoch) == (RUN, 1), "the epoch is that of the version; later ones are known to the hub"
    assert len(told) == 1
    assert "\n" not in told[0]
    save_run(path, found)
    assert load_run(path, bench.store, told.append) == found
    assert len(told) == 1


def test_an_empty_store_begins_a_run_without_a_warning(tmp_path: Path) -> None:
    with Store(tmp_path / "packs") as store:
        told: list[str] = []
        assert load_run(tmp_path / "run.json", store, told.append).epoch == 0
        assert told == []


@damaged
@pytest.mark.parametrize("name", ["state", "bits"])
def test_a_snapshot_damaged_at_rest_is_rebuilt_from_the_store(
    bench: Bench, name: str, damage: Callable[[Path], object]
) -> None:
    source = Arrays(a=40_000, b=300)
    for _ in range(3):
        bench.builder.make(source.step())
    bench.builder.close()
    damage(next((bench.place / "snapshot").glob(f"{name}*")))
    bench.again()
    bench.holds(source, 2)
    bench.builder.make(source.step())
    bench.holds(source, 3)


@pytest.mark.parametrize("then", ["make", "make_anchor"])
@pytest.mark.parametrize("damage", ["the bits cut", "the bits gone", "all of it gone"])
def test_a_snapshot_damaged_while_the_trainer_runs_is_rebuilt(bench: Bench, damage: str, then: str) -> None:
    source = Arrays(a=40_000, b=300)
    for _ in range(2):
        bench.builder.make(source.step())
    bits = next((bench.place / "snapshot").glob("bits-*"))
    if damage == "the bits cut":
        os.truncate(bits, 4096)
    elif damage == "the bits gone":
        bits.unlink()
    else:
        shutil.rmtree(bench.place / "snapshot")
    if then == "make_anchor":
        bench.builder.make_anchor()
        bench.holds(source, 1)
    bench.builder.make(source.step())
    bench.again()
    assert bench.builder.position is not None
    bench.holds(source, bench.builder.position.version)


def test_a_snapshot_that_is_cut_whenever_a_version_is_made_publishes_nothing(bench: Bench) -> None:
    source = Arrays(a=40_000, b=300, c=7)
    bench.builder.make(source.step())

    class Cutting(Arrays):
        """Cuts the snapshot each time that its last tensor is read."""

        def units(self, wanted: object) -> np.ndarray:
            if wanted == self.specs[-1]:
                os.truncate(next((bench.place / "snapshot").glob("bits-*")), 0)
            return super().units(wanted)  # type: ignore[arg-type]

    cutting = Cutting(a=40_000, b=300, c=7).step().step()
    with pytest.raises(StoreError, match="and again after it was made anew"):
        bench.builder.make(cutting)
    assert [pack.manifest.version for pack in bench.store.packs()] == [0]
    bench.builder.make(source.step())
    bench.holds(source, 1)
    bench.again()
    bench.holds(source, 1)


@pytest.mark.parametrize("what", ["a directory in it", "a file", "a link to nothing"])
def test_damaged_delta_records_do_not_prevent_a_start(bench: Bench, what: str) -> None:
    source = Arrays(a=40_000)
    bench.builder.make(source.step())
    steps = bench.place / "steps"
    if what == "a directory in it":
        (steps / "x").mkdir()
        (steps / ("0" * 64) / "y").mkdir(parents=True)
    else:
        shutil.rmtree(steps)
        steps.write_text("x") if what == "a file" else steps.symlink_to("nowhere")
    bench.again()
    bench.builder.make(source.step(), profile="tight")
    bench.holds(source, 1)
    assert [path.name for path in steps.iterdir()] == [
        pack.path.name for pack in bench.store.packs() if pack.manifest.base == 0
    ]
