"""Tensors and files that are added, removed, reshaped or moved: always right, and in place where the layout allows."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from engine_parts import (
    Files,
    Run,
    Weights,
    commit_path,
    header_of,
    perturb,
    position,
    put_all,
    safetensors,
    tensor,
    tree,
    write_files,
)
from msgspec import structs

from p2psync.delta.tensors import DTYPE_BITS, TableRow, TensorKind, TensorSpec
from p2psync.engines.base import PathStep
from p2psync.engines.directory.engine import DirectoryEngine
from p2psync.errors import EngineError, FormatError
from p2psync.protocol.manifest import pack_table

W: Weights = {"a": tensor(1, "BF16", 80_000), "b": tensor(2, "F32", 300), "c": tensor(3, "I8", 5)}
BASE: Files = {"m.safetensors": W, "config.json": b'{"a": 1}', "tok/vocab.txt": b"x" * 9000}

LAYOUTS: dict[str, Files] = {
    "base": BASE,
    "values only": {**BASE, "m.safetensors": perturb(W, 1)},
    "tensor added": {**BASE, "m.safetensors": {**W, "d": tensor(4, "BF16", 70_000)}},
    "zeros added": {**BASE, "m.safetensors": {**W, "z": ("F32", (90_000,), bytes(360_000))}},
    "tensor removed": {**BASE, "m.safetensors": {"a": W["a"], "c": W["c"]}},
    "shape changed": {**BASE, "m.safetensors": {**W, "b": tensor(5, "F32", 30, 11)}},
    "dtype changed": {**BASE, "m.safetensors": {**W, "b": ("I32", (300,), W["b"][2])}},
    "order changed": {**BASE, "m.safetensors": {"c": W["c"], "b": W["b"], "a": W["a"]}},
    "two shards": {**BASE, "m.safetensors": {"a": W["a"]}, "n.safetensors": {"b": W["b"], "c": W["c"]}},
    "doubled names": {**BASE, "x/n.safetensors": {"a": W["c"], "b": W["b"]}},
    "metadata": {**BASE, "m.safetensors": safetensors(W, note="some new metadata")},
    "metadata of the same size": {**BASE, "m.safetensors": safetensors(W, note="some old metadata")},
    "unaligned": {**BASE, "m.safetensors": safetensors({"c": W["c"], "a": W["a"], "b": W["b"]}, pad=1)},
    "file grown": {**BASE, "config.json": b'{"a": 1, "b": 22}'},
    "file same size": {**BASE, "config.json": b'{"a": 2}'},
    "file emptied": {**BASE, "config.json": b""},
    "file becomes directory": {"m.safetensors": W, "config.json/inner": b"{}", "tok": b"was a directory"},
    "nothing but a file": {"README.md": b"all gone"},
    "empty weights": {**BASE, "m.safetensors": {}},
}


@pytest.mark.parametrize("seed", range(6))
def test_any_layout_follows_any_other(tmp_path: Path, seed: int) -> None:
    made = {name: write_files(tmp_path / f"in{i}", files) for i, (name, files) in enumerate(LAYOUTS.items())}
    names = list(LAYOUTS)
    walk = ["base"] + [names[(seed * 7 + 1 + i * (2 * seed + 1)) % len(names)] for i in range(8)]
    run = Run()
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.anchor(0, made["base"]), shuffle=seed)
        for version, (old, new) in enumerate(itertools.pairwise(walk), 1):
            commit_path(run, engine, run.delta(version - 1, version, made[old], made[new]), shuffle=seed)
            assert tree((tmp_path / "dir" / "current").resolve()) == tree(made[new]), f"{old} → {new}"
            assert engine.scrub()


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_is_reached_and_left_within_a_chain(tmp_path: Path, name: str) -> None:
    made = [write_files(tmp_path / f"in{i}", files) for i, files in enumerate((BASE, LAYOUTS[name], BASE))]
    run = Run()
    path = [run.anchor(0, made[0]), run.delta(0, 1, made[0], made[1]), run.delta(1, 2, made[1], made[2])]
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, *path[:2], shuffle=1)
        assert tree((tmp_path / "dir" / "current").resolve()) == tree(made[1])
        commit_path(run, engine, path[2], shuffle=2)
        assert engine.roll_back() == position(path[1])
        assert tree((tmp_path / "dir" / "current").resolve()) == tree(made[1])
    with DirectoryEngine(tmp_path / "other", run.reader) as engine:
        commit_path(run, engine, *path, shuffle=3)
        assert tree((tmp_path / "other" / "current").resolve()) == tree(made[2])


def test_files_whose_layout_is_unchanged_are_changed_in_place(tmp_path: Path) -> None:
    other: Weights = {"big": tensor(9, "BF16", 100_000)}
    made = [
        write_files(tmp_path / "0", {**BASE, "big.safetensors": other}),
        write_files(tmp_path / "1", {**LAYOUTS["two shards"], "big.safetensors": perturb(other, 1)}),
    ]
    run = Run()
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.anchor(0, made[0]))
        commit_path(run, engine, run.delta(0, 1, made[0], made[0]))
        slot = tmp_path / "dir" / ".p2psync" / "slots" / "a"
        before = {name: (slot / name).stat().st_ino for name in ("big.safetensors", "tok/vocab.txt", "m.safetensors")}
        commit_path(run, engine, run.delta(1, 2, made[0], made[1]))
        assert tree(slot) == tree(made[1])
        after = {name: (slot / name).stat().st_ino for name in before}
        assert [name for name in before if before[name] == after[name]] == ["big.safetensors", "tok/vocab.txt"]


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_every_dtype_is_followed_bit_for_bit(tmp_path: Path, dtype: str) -> None:
    weights: Weights = {"w": tensor(1, dtype, 64, 1100), "s": tensor(2, dtype, 8), "n": tensor(3, dtype, 0)}
    run = Run()
    made = []
    for version in range(3):
        made.append(write_files(tmp_path / str(version), {"m.safetensors": weights}))
        weights = perturb(weights, version)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.anchor(0, made[0]))
        for version in (1, 2):
            commit_path(run, engine, run.delta(version - 1, version, made[version - 1], made[version]))
            assert tree((tmp_path / "dir" / "current").resolve()) == tree(made[version])


HOSTILE_ROWS = {
    "a way out": [(TensorKind.FILE, "../../../evil", b"x")],
    "an absolute path": [(TensorKind.FILE, "/tmp/evil", b"x")],
    "a hidden file": [(TensorKind.FILE, ".p2psync/x", b"x")],
    "a header that is no safetensors": [(TensorKind.HEADER, "m.bin", header_of({}))],
    "weights without header": [(TensorKind.FILE, "m.safetensors", b"x")],
    "a broken header": [(TensorKind.HEADER, "m.safetensors", b"\xff" * 20)],
    "a header of tensors that are not there": [(TensorKind.HEADER, "m.safetensors", header_of(W))],
    "a file over a directory": [(TensorKind.FILE, "a", b"x"), (TensorKind.FILE, "a/b", b"y")],
}


@pytest.mark.parametrize("rows", HOSTILE_ROWS.values(), ids=HOSTILE_ROWS.keys())
def test_a_hostile_manifest_writes_nothing_outside_and_leaves_the_live_version(
    tmp_path: Path, rows: list[tuple[TensorKind, str, bytes]]
) -> None:
    run, good = Run(), write_files(tmp_path / "good", BASE)
    first = run.anchor(0, good)
    units = {
        TensorSpec(int(kind), name, "U8", (len(data),)): np.frombuffer(data, np.uint8) for kind, name, data in rows
    }
    evil = run._publish(None, 1, [TableRow(spec, False, True) for spec in sorted(units)], {}, units)
    outside = tree(tmp_path)
    with DirectoryEngine(tmp_path / "box" / "dir", run.reader) as engine:
        commit_path(run, engine, first)
        with pytest.raises(FormatError):
            put_all(run, engine.stage([evil]), [evil])
        assert tree((tmp_path / "box" / "dir" / "current").resolve()) == tree(good)
        commit_path(run, engine, run.delta(0, 1, good, good))
    assert {k: v for k, v in tree(tmp_path).items() if not k.startswith("box/")} == outside
    assert not Path("/tmp/evil").exists()


@pytest.mark.parametrize(("kind", "name"), [(TensorKind.FILE, "big.txt"), (TensorKind.HEADER, "m.safetensors")])
def test_rows_that_claim_a_huge_file_are_refused_before_anything_is_allocated(
    tmp_path: Path, kind: TensorKind, name: str
) -> None:
    run, good = Run(), write_files(tmp_path / "good", BASE)
    step = _with_rows(run.anchor(0, good), [TableRow(TensorSpec(int(kind), name, "U8", (1 << 50,)), False, True)])
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine, pytest.raises(FormatError, match="over the limit"):
        engine.stage([step])
    assert not (tmp_path / "dir").exists()


def test_rows_that_claim_a_huge_tensor_do_not_fit_the_disk(tmp_path: Path) -> None:
    run, good = Run(), write_files(tmp_path / "good", BASE)
    first = run.anchor(0, good)
    huge = TensorSpec(2, "huge", "BF16", (1 << 49,))
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, first)
        rows = [TableRow(row.spec, True, True) for row in first.manifest.rows()] + [TableRow(huge, False, True)]
        with pytest.raises(EngineError, match="bytes are missing"):
            engine.stage([_with_rows(run.delta(0, 1, good, good), sorted(rows, key=lambda row: row.spec))])
        assert tree((tmp_path / "dir" / "current").resolve()) == tree(good)


def _with_rows(step: PathStep, rows: list[TableRow]) -> PathStep:
    return PathStep(step.id, structs.replace(step.manifest, table=pack_table(rows)))
