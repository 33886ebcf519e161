"""Damage to the files of a directory engine is noticed cheaply; the engine falls back and repairs it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_parts import commit_path, position, put_all, tree
from file_damages import FILE_DAMAGES, foreign_files_untouched
from test_directory import current, published

from p2psync.engines.directory.engine import DirectoryEngine
from p2psync.errors import EngineError, FormatError

FILE = "model-1.safetensors"
Damage = Callable[[Path], None]


def into_copy(path: Path) -> None:
    """Replaces it by a link to a foreign file of the same bits, which must not be written."""
    copy = foreign_copy(path.parents[3])
    shutil.copyfile(path, copy)
    path.unlink()
    path.symlink_to(copy)


def foreign_copy(root: Path) -> Path:
    """The foreign file that `into_copy` leads to, for the directory at `root`."""
    return root.with_name("copy")


def in_file(damage: Damage) -> Damage:
    return lambda slot: damage(slot / FILE)


DAMAGES: dict[str, Damage] = {
    **{f"{name} a file": in_file(damage) for name, damage in FILE_DAMAGES.items()},
    "a link to a copy for a file": in_file(into_copy),
    "a file for a directory": lambda slot: (shutil.rmtree(slot / "sub"), (slot / "sub").write_text("x"))[-1] and None,
    "somebody's file": lambda slot: (slot / "notes.txt").write_text("somebody's") and None,
    "the slot gone": shutil.rmtree,
    "a file for the slot": lambda slot: (shutil.rmtree(slot), slot.write_text("x"))[-1] and None,
    "a link for the slot": lambda slot: (shutil.rmtree(slot), slot.symlink_to("nowhere"))[-1],
}


class Bench:
    """Three versions published, and a directory that is at the second, with the first in its other slot."""

    def __init__(self, place: Path) -> None:
        self.run, self.made = published(place, 3)
        self.root = place / "dir"
        self.engine = DirectoryEngine(self.root, self.run.reader)
        commit_path(self.run, self.engine, self.run.steps[None, 0])
        commit_path(self.run, self.engine, self.run.steps[0, 1])

    @property
    def live(self) -> Path:
        return (self.root / "current").resolve()

    @property
    def second(self) -> Path:
        return next(slot for slot in self.live.parent.iterdir() if slot != self.live)

    def reopen(self) -> None:
        self.engine.close()
        self.engine = DirectoryEngine(self.root, self.run.reader)

    def goes_on(self, version: int) -> None:
        """Brings the engine to the last version from `version`, -1: from nothing."""
        if version < 0:
            self.run.anchor(0, self.made[0])
            commit_path(self.run, self.engine, self.run.steps[None, 0])
            version = 0
        commit_path(self.run, self.engine, *(self.run.steps[v, v + 1] for v in range(version, 2)))
        assert current(self.root) == tree(self.made[2])
        assert self.engine.scrub()


@pytest.fixture
def bench(ram_path: Path) -> Bench:
    return Bench(ram_path)


@pytest.mark.parametrize("when", ["while it runs", "at rest"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_to_the_live_slot_makes_the_version_before_live(bench: Bench, damage: Damage, when: str) -> None:
    before = (bench.live / FILE).read_bytes()
    damage(bench.live)
    if when == "at rest":
        bench.reopen()
    (line,) = bench.engine.inspect()
    assert line.startswith("version 1 is damaged here (")
    assert line.endswith("): version 0 is live until it is repaired")
    assert "\n" not in line
    assert bench.engine.position == position(bench.run.steps[None, 0])
    assert current(bench.root) == tree(bench.made[0])
    assert bench.engine.inspect() == []
    bench.goes_on(0)
    copy = foreign_copy(bench.root)
    assert not copy.exists() or copy.read_bytes() == before
    assert foreign_files_untouched(bench.root)


@pytest.mark.parametrize("when", ["while it runs", "at rest"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_to_both_slots_leaves_nothing_live_and_no_link(bench: Bench, damage: Damage, when: str) -> None:
    second = bench.second
    damage(bench.live)
    damage(second)
    if when == "at rest":
        bench.reopen()
    (line,) = bench.engine.inspect()
    assert line.endswith("): nothing is live until it is repaired")
    assert bench.engine.position is None
    assert not os.path.lexists(bench.root / "current")
    bench.goes_on(-1)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_to_the_second_slot_is_not_carried_into_the_next_version(bench: Bench, damage: Damage) -> None:
    damage(bench.second)
    assert bench.engine.inspect() == []
    bench.goes_on(1)


def test_a_live_slot_that_was_touched_and_is_right_stays_live(bench: Bench) -> None:
    for name in (FILE, "config.json"):
        path = bench.live / name
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    assert bench.engine.inspect() == []
    assert bench.engine.position == position(bench.run.steps[0, 1])
    bench.goes_on(1)


def test_a_stage_on_a_live_slot_that_is_damaged_is_refused_and_the_version_before_is_live(bench: Bench) -> None:
    os.truncate(bench.live / FILE, 5000)
    with pytest.raises(EngineError, match="version 0 is live until"):
        bench.engine.stage([bench.run.steps[1, 2]])
    bench.goes_on(0)


def test_intact_tensors_of_a_damaged_version_are_not_fetched_again(bench: Bench) -> None:
    for slot in (bench.live, bench.second):
        os.truncate(slot / "sub" / "model-2.safetensors", 100)
    bench.engine.inspect()
    anchor = bench.run.anchor(1, bench.made[1])
    assert 0 < commit_path(bench.run, bench.engine, anchor) < anchor.manifest.chunks
    assert current(bench.root) == tree(bench.made[1])


@pytest.mark.parametrize("elsewhere", [None, "nowhere", ".p2psync/slots/a"])
def test_a_missing_or_wrong_link_is_made_again(bench: Bench, elsewhere: str | None) -> None:
    (bench.root / "current").unlink()
    if elsewhere is not None:
        (bench.root / "current").symlink_to(elsewhere)
    (line,) = bench.engine.inspect()
    assert "current was removed or led elsewhere: made again" in line
    assert current(bench.root) == tree(bench.made[1])
    assert bench.engine.inspect() == []


def test_a_foreign_directory_at_the_links_path_is_reported_once_and_left_alone(bench: Bench) -> None:
    (bench.root / "current").unlink()
    (bench.root / "current").mkdir()
    (line,) = bench.engine.inspect()
    assert "move it away" in line
    assert bench.engine.inspect() == []
    assert (bench.root / "current").is_dir()
    (bench.root / "current").rmdir()
    (line,) = bench.engine.inspect()
    assert "made again" in line


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"boot":3}', bytes(100), None])
def test_a_damaged_state_is_reported_and_the_weights_can_be_adopted(bench: Bench, content: bytes | None) -> None:
    state = bench.root / ".p2psync" / "state.json"
    state.unlink()
    if content is None:
        state.mkdir()
    else:
        state.write_bytes(content)
    bench.reopen()
    (line,) = bench.engine.inspect()
    assert "state.json.damaged" in line
    assert bench.engine.position is None
    live = position(bench.run.steps[0, 1])
    assert bench.engine.unidentified_digest() == live.digest.hex()
    assert bench.engine.adopt(live)
    assert bench.engine.unidentified_digest() == ""
    bench.goes_on(1)


def test_one_flipped_bit_of_the_state_is_noticed(bench: Bench) -> None:
    state = bench.root / ".p2psync" / "state.json"
    whole = state.read_bytes()
    for at in range(len(whole)):
        state.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        bench.reopen()
        assert bench.engine.position is None
    state.write_bytes(whole)
    bench.reopen()
    assert bench.engine.position == position(bench.run.steps[0, 1])


@pytest.mark.parametrize("to", [0, 4096, 100_000])
def test_a_file_truncated_while_it_is_changed_neither_ends_the_process_nor_goes_live(ram_path: Path, to: int) -> None:
    run, made = published(ram_path, 3)
    for block in range(1, 12, 2):
        root = ram_path / f"cut at {block}"
        left = 0

        def cut(name: str, slot: Path = root / ".p2psync" / "slots" / "a") -> None:
            nonlocal left
            left -= name == "block"
            if name == "block" and left == 0:
                os.truncate(slot / FILE, to)

        with DirectoryEngine(root, run.reader, hook=cut) as engine:
            commit_path(run, engine, run.steps[None, 0])
            commit_path(run, engine, run.steps[0, 1])
            left = block
            try:
                commit_path(run, engine, run.steps[1, 2])
            except (EngineError, FormatError):
                assert engine.position == position(run.steps[0, 1])
                commit_path(run, engine, run.steps[1, 2])
            assert engine.scrub()
        assert current(root) == tree(made[2])


def test_a_file_truncated_while_it_is_read_reads_as_zeros_and_fails_its_digest(bench: Bench) -> None:
    live = bench.engine.live
    assert live is not None
    arrays = [live.units(spec) for spec in live.specs if spec.name == "big"]
    os.truncate(bench.live / FILE, 4096)
    assert not arrays[0][-1000:].any(), "what is gone reads as zeros"
    assert not bench.engine.scrub()
    assert bench.engine.position == position(bench.run.steps[None, 0])


def test_a_stage_continues_where_the_live_slot_was_touched_and_is_right(bench: Bench) -> None:
    stage = bench.engine.stage([bench.run.steps[1, 2]])
    path = bench.live / "config.json"
    path.write_bytes(path.read_bytes())
    (bench.live / ".cache").mkdir()
    assert bench.engine.inspect() == []
    put_all(bench.run, stage, [bench.run.steps[1, 2]])
    stage.commit()
    assert current(bench.root) == tree(bench.made[2])


def test_a_stage_that_wrote_nothing_yet_has_the_damaged_version_in_the_other_slot(bench: Bench) -> None:
    bench.engine.stage([bench.run.steps[1, 2]])
    os.truncate(bench.live / FILE, 5000)
    (line,) = bench.engine.inspect()
    assert line.endswith("version 1 is live until it is repaired")
    assert bench.engine.position == position(bench.run.steps[0, 1])
    assert current(bench.root) == tree(bench.made[1])
    bench.goes_on(1)
