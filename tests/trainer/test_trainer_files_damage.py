"""A trainer's files are damaged or lost: the run goes on with the rest, or the error names a remedy in one line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from file_damages import FILE_DAMAGES
from trainer_parts import RUN, Arrays, StoreWithBuilder

from p2psync.errors import StoreError
from p2psync.store.packs import Store
from p2psync.trainer.run_state import RunState, load_run, save_run

damaged = pytest.mark.parametrize("damage", FILE_DAMAGES.values(), ids=FILE_DAMAGES)


@pytest.fixture
def trainer(tmp_path: Path) -> StoreWithBuilder:
    return StoreWithBuilder(tmp_path)


@damaged
def test_a_damaged_run_file_takes_the_run_of_the_newest_version(
    trainer: StoreWithBuilder, damage: Callable[[Path], None]
) -> None:
    trainer.builder.make(Arrays(a=1000))
    path = trainer.root / "run.json"
    save_run(path, RunState(RUN, 3, "0" * 32))
    damage(path)
    told: list[str] = []
    found = load_run(path, trainer.store, told.append)
    assert (found.run, found.epoch) == (RUN, 1), "the epoch is that of the version; later ones are known to the hub"
    assert len(told) == 1
    assert "\n" not in told[0]
    save_run(path, found)
    assert load_run(path, trainer.store, told.append) == found
    assert len(told) == 1


def test_an_empty_store_begins_a_run_without_a_warning(tmp_path: Path) -> None:
    with Store(tmp_path / "packs") as store:
        told: list[str] = []
        assert load_run(tmp_path / "run.json", store, told.append).epoch == 0
        assert told == []


@damaged
@pytest.mark.parametrize("name", ["state", "bits"])
def test_a_snapshot_damaged_at_rest_is_rebuilt_from_the_store(
    trainer: StoreWithBuilder, name: str, damage: Callable[[Path], None]
) -> None:
    source = Arrays(a=40_000, b=300)
    for _ in range(3):
        trainer.builder.make(source.step())
    trainer.builder.close()
    damage(next((trainer.root / "snapshot").glob(f"{name}*")))
    trainer.again()
    trainer.holds(source, 2)
    trainer.builder.make(source.step())
    trainer.holds(source, 3)


@pytest.mark.parametrize("then", ["make", "make_anchor"])
@pytest.mark.parametrize("damage", ["the bits cut", "the bits gone", "all of it gone"])
def test_a_snapshot_damaged_while_the_trainer_runs_is_rebuilt(
    trainer: StoreWithBuilder, damage: str, then: str
) -> None:
    source = Arrays(a=40_000, b=300)
    for _ in range(2):
        trainer.builder.make(source.step())
    bits = next((trainer.root / "snapshot").glob("bits-*"))
    if damage == "the bits cut":
        os.truncate(bits, 4096)
    elif damage == "the bits gone":
        bits.unlink()
    else:
        shutil.rmtree(trainer.root / "snapshot")
    if then == "make_anchor":
        trainer.builder.make_anchor()
        trainer.holds(source, 1)
    trainer.builder.make(source.step())
    trainer.again()
    assert trainer.builder.position is not None
    trainer.holds(source, trainer.builder.position.version)


def test_a_snapshot_that_is_cut_whenever_a_version_is_made_publishes_nothing(trainer: StoreWithBuilder) -> None:
    source = Arrays(a=40_000, b=300, c=7)
    trainer.builder.make(source.step())

    class Cutting(Arrays):
        """Cuts the snapshot each time that its last tensor is read."""

        def units(self, wanted: object) -> np.ndarray:
            if wanted == self.specs[-1]:
                os.truncate(next((trainer.root / "snapshot").glob("bits-*")), 0)
            return super().units(wanted)  # type: ignore[arg-type]

    cutting = Cutting(a=40_000, b=300, c=7).step().step()
    with pytest.raises(StoreError, match="and again after it was rebuilt"):
        trainer.builder.make(cutting)
    assert [pack.manifest.version for pack in trainer.store.packs()] == [0]
    trainer.builder.make(source.step())
    trainer.holds(source, 1)
    trainer.again()
    trainer.holds(source, 1)


@pytest.mark.parametrize("what", ["a directory in it", "a file", "a link to nothing"])
def test_damaged_delta_records_do_not_prevent_a_start(trainer: StoreWithBuilder, what: str) -> None:
    source = Arrays(a=40_000)
    trainer.builder.make(source.step())
    steps = trainer.root / "steps"
    if what == "a directory in it":
        (steps / "x").mkdir()
        (steps / ("0" * 64) / "y").mkdir(parents=True)
    else:
        shutil.rmtree(steps)
        steps.write_text("x") if what == "a file" else steps.symlink_to("nowhere")
    trainer.again()
    trainer.builder.make(source.step(), profile="tight")
    trainer.holds(source, 1)
    assert [path.name for path in steps.iterdir()] == [
        pack.path.name for pack in trainer.store.packs() if pack.manifest.base == 0
    ]
