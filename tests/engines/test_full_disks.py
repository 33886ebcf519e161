"""A full disk is found before anything is changed, and never costs the live version."""

from __future__ import annotations

from pathlib import Path

import pytest
from disk_parts import needs_root, small_disk
from engine_parts import Files, Run, Weights, commit_path, put_all, tensor, tree, write_files

from p2psync.engines.directory.engine import DirectoryEngine
from p2psync.errors import EngineError

pytestmark = [pytest.mark.root, needs_root]

W: Weights = {"a": tensor(1, "BF16", 300_000)}
BASE: Files = {"m.safetensors": W, "config.json": b"{}"}
STEPPED: Files = {
    "m.safetensors": {"a": ("BF16", (300_000,), bytes([W["a"][2][0] ^ 1]) + W["a"][2][1:])},
    "config.json": b"[]",
}
GROWN: Files = {"m.safetensors": {**W, "b": tensor(2, "F32", 300_000)}, "config.json": b"{}"}


def test_an_anchor_that_does_not_fit_makes_nothing(tmp_path: Path) -> None:
    run = Run()
    step = run.anchor(0, write_files(tmp_path / "v", BASE))
    with small_disk(tmp_path / "disk", 1 << 19) as disk, DirectoryEngine(disk / "dir", run.reader) as engine:
        with pytest.raises(EngineError, match=r"disk/dir.*: \d+ bytes are missing") as caught:
            engine.stage([step])
        assert "\n" not in str(caught.value)
        assert engine.position is None
        assert not (disk / "dir" / "current").exists()


def test_a_step_without_space_for_the_second_slot_leaves_the_live_version(tmp_path: Path) -> None:
    run = Run()
    made = [write_files(tmp_path / str(i), files) for i, files in enumerate((BASE, STEPPED))]
    with small_disk(tmp_path / "disk", 1 << 20) as disk, DirectoryEngine(disk / "dir", run.reader) as engine:
        commit_path(run, engine, run.anchor(0, made[0]))
        before = tree(disk)
        step = run.delta(0, 1, made[0], made[1])
        for _ in range(2):
            with pytest.raises(EngineError, match="bytes are missing"):
                engine.stage([step])
            assert {k: v for k, v in tree(disk).items() if "state" not in k} == {
                k: v for k, v in before.items() if "state" not in k
            }


def test_a_layout_without_space_leaves_the_live_version_and_succeeds_with_space(tmp_path: Path) -> None:
    run = Run()
    made = [write_files(tmp_path / str(i), files) for i, files in enumerate((BASE, GROWN))]
    with small_disk(tmp_path / "disk", 4 << 20) as disk, DirectoryEngine(disk / "dir", run.reader) as engine:
        commit_path(run, engine, run.anchor(0, made[0]))
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(2 << 20))
        step = run.delta(0, 1, made[0], made[1])
        with pytest.raises(EngineError, match="bytes are missing"):
            put_all(run, engine.stage([step]), [step])
        assert tree((disk / "dir" / "current").resolve()) == tree(made[0])
        assert engine.scrub()
        ballast.unlink()
        commit_path(run, engine, step)
        assert tree((disk / "dir" / "current").resolve()) == tree(made[1])


def test_a_step_in_place_needs_no_space(tmp_path: Path) -> None:
    run = Run()
    made = [write_files(tmp_path / str(i), files) for i, files in enumerate((BASE, STEPPED))]
    with small_disk(tmp_path / "disk", 2 << 20) as disk, DirectoryEngine(disk / "dir", run.reader) as engine:
        commit_path(run, engine, run.anchor(0, made[0]))
        commit_path(run, engine, run.delta(0, 1, made[0], made[1]))
        with (disk / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError, match="No space"):
            while True:
                ballast.write(bytes(4096))
        (disk / "dir" / ".p2psync" / "state.json").stat()
        # Only the state file itself, written beside the old one, wants a page.
        with (disk / "ballast").open("r+b") as ballast:
            ballast.truncate((disk / "ballast").stat().st_size - 3 * 4096)
        commit_path(run, engine, run.delta(1, 2, made[1], made[0]))
        assert tree((disk / "dir" / "current").resolve()) == tree(made[0])
