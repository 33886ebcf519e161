"""A process killed at any moment leaves a live version that is bit-exact, and a directory from which the next goes on.

The child kills itself before each change that it makes to the file system, and at each block that it writes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from crash_parts import run_in_child
from engine_parts import Files, Run, Weights, commit_path, perturb, position, tensor, tree, write_files

from p2psync.engines.directory.engine import DirectoryEngine

W: Weights = {"a": tensor(1, "BF16", 3000), "b": tensor(2, "F32", 300), "c": tensor(3, "I8", 5)}
BASE: Files = {"m.safetensors": W, "config.json": b"{}"}
NEXT: Files = {"m.safetensors": perturb(W, 1), "config.json": b"[]"}
OTHER: Files = {"m.safetensors": {"b": W["b"]}, "x/n.safetensors": {"a": W["a"], "d": tensor(4, "F16", 50)}}

Action = Callable[[Path, Callable[[str], None]], None]


class Scene:
    """Three versions; the third has another layout."""

    def __init__(self, tmp_path: Path) -> None:
        self.run = Run()
        self.made = [write_files(tmp_path / f"v{i}", files) for i, files in enumerate((BASE, NEXT, OTHER))]
        self.trees = [tree(path) for path in self.made]
        self.anchor = self.run.anchor(0, self.made[0])
        self.small = self.run.delta(0, 1, self.made[0], self.made[1])
        self.large = self.run.delta(1, 2, self.made[1], self.made[2])
        self.path = [self.anchor, self.small, self.large]

    def engine(self, root: Path, event: Callable[[str], None] | None = None) -> DirectoryEngine:
        return DirectoryEngine(root, self.run.reader, hook=event, prefill=None)

    def check(self, root: Path, allowed: set[int | None]) -> None:
        """Checks that exactly one of the allowed versions is live, and that later versions can be committed."""
        link = root / "current"
        seen = self.trees.index(tree(link.resolve())) if link.is_symlink() else None
        assert seen in allowed
        with self.engine(root) as engine:
            found = engine.position
            version = None if found is None else found.version
            assert version in allowed
            if version is not None:
                assert found == position(self.path[version])
                assert tree(link.resolve()) == self.trees[version]
            rest = self.path[0 if version is None else version + 1 :]
            for step in rest:
                commit_path(self.run, engine, step)
            assert tree(link.resolve()) == self.trees[2]
            assert engine.scrub()


def _first(scene: Scene) -> Action:
    def act(root: Path, event: Callable[[str], None]) -> None:
        with scene.engine(root, event) as engine:
            commit_path(scene.run, engine, scene.anchor)

    return act


def _in_place(scene: Scene) -> Action:
    def act(root: Path, event: Callable[[str], None]) -> None:
        with scene.engine(root, event) as engine:
            commit_path(scene.run, engine, scene.small)

    return act


def _twice(scene: Scene) -> Action:
    """The second step catches up by applying the first one again, and lays the files out again."""

    def act(root: Path, event: Callable[[str], None]) -> None:
        with scene.engine(root, event) as engine:
            commit_path(scene.run, engine, scene.small)
            commit_path(scene.run, engine, scene.large)

    return act


def _chain_then_back(scene: Scene) -> Action:
    def act(root: Path, event: Callable[[str], None]) -> None:
        with scene.engine(root, event) as engine:
            commit_path(scene.run, engine, scene.small, scene.large)
            engine.roll_back()

    return act


def _adopt(scene: Scene) -> Action:
    def act(root: Path, event: Callable[[str], None]) -> None:
        with DirectoryEngine(root, scene.run.reader, prefill=scene.made[0], hook=event) as engine:
            assert engine.adopt(position(scene.anchor))

    return act


CASES: dict[str, tuple[Callable[[Scene], Action], bool, set[int | None]]] = {
    "the first anchor": (_first, False, {None, 0}),
    "a step in place": (_in_place, True, {0, 1}),
    "two steps": (_twice, True, {0, 1, 2}),
    "a chain and its roll-back": (_chain_then_back, True, {0, 2}),
    "an adoption": (_adopt, False, {None, 0}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_kill_at_any_point_leaves_a_live_version(case: str, ram_path: Path) -> None:
    make, begun, allowed = CASES[case]
    scene = Scene(ram_path)
    action = make(scene)
    before = ram_path / "before"
    if begun:
        with scene.engine(before) as engine:
            commit_path(scene.run, engine, scene.anchor)

    def run_once(limit: int | None) -> int | None:
        root = ram_path / "dir"
        shutil.rmtree(root, ignore_errors=True)
        if begun:
            shutil.copytree(before, root, symlinks=True)
        return run_in_child(lambda event: action(root, event), limit)

    killed = 0
    while run_once(killed) is None:
        scene.check(ram_path / "dir", allowed)
        killed += 1
    assert killed > 15


def test_a_kill_during_the_repair_of_a_killed_step_leaves_a_live_version(ram_path: Path) -> None:
    scene = Scene(ram_path)
    action = _in_place(scene)
    for limit in range(4, 60, 5):
        root = ram_path / str(limit)
        with scene.engine(root) as engine:
            commit_path(scene.run, engine, scene.anchor)
        for again in (limit, limit + 3, limit + 1):
            run_in_child(lambda event, root=root: _try(action, root, event), again)  # type: ignore[misc]
        scene.check(root, {0, 1})


def _try(action: Action, root: Path, event: Callable[[str], None]) -> None:
    """The step, unless an earlier try completed it."""
    with DirectoryEngine(root, lambda manifest, chunk: None) as engine:
        done = engine.position is not None and engine.position.version > 0
    if not done:
        action(root, event)
