"""A chunk is always decoded against the bits of its own base, as profiles that code given the old weight need it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from engine_parts import Files, Run, commit_path, put_all, write_files
from module_parts import Policy, stepped, version_of
from test_directory_layouts import BASE, LAYOUTS
from test_module import start

from p2psync.delta.block import Block
from p2psync.delta.container import iter_chunk
from p2psync.delta.tensors import TableRow, TensorSpec, Units
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.directory.engine import DirectoryEngine
from p2psync.engines.module.engine import ModuleEngine

Bits = dict[TensorSpec, Units]


class Witness:
    """Stands in for `iter_chunk`, and compares the bases that it is given with the version the chunk starts from."""

    def __init__(self, run: Run) -> None:
        self.run = run
        #: The bits before each step, by the step's table and the chunk's bytes.
        self.before: dict[tuple[Sequence[TableRow], bytes], Bits] = {}
        self.compared = 0

    def step(self, base: int | None, version: int, before: Bits) -> None:
        for data in self.run.data(self.run.steps[base, version]):
            self.before[self.run.steps[base, version].manifest.rows(), data] = before

    def decode(
        self, data: bytes, rows: Sequence[TableRow], block_units: int, base: Callable[[int], Units]
    ) -> Iterator[Block]:
        for block in iter_chunk(data, rows, block_units, base):
            spec = rows[block.row].spec
            truth = self.before[rows, bytes(data)].get(spec, np.zeros(spec.count, spec.unit))
            given = base(block.row)
            assert given.shape == truth.shape
            window = slice(block.start, block.start + block.count)
            assert given[window].tobytes() == truth[window].tobytes(), f"block {block.start} of {spec.name}"
            self.compared += 1
            yield block


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Witness:
    made = Witness(Run())
    for module in ("directory.in_place_apply", "module.staging"):
        monkeypatch.setattr(f"p2psync.engines.{module}.iter_chunk", made.decode)
    return made


def _bits(path: Path) -> Bits:
    with Checkpoint.open(path) as checkpoint:
        return {spec: checkpoint.units(spec).copy() for spec in checkpoint.specs}


@pytest.mark.parametrize("seed", range(3))
def test_a_directory_gives_each_chunk_its_own_base(tmp_path: Path, witness: Witness, seed: int) -> None:
    names = ["values only", "order changed", "two shards", "tensor added", "shape changed", "file grown", "base"]
    stages: list[Files] = [BASE, *(LAYOUTS[name] for name in names)]
    made = [write_files(tmp_path / str(i), files) for i, files in enumerate(stages)]
    run = witness.run
    path = [run.anchor(0, made[0])]
    witness.step(None, 0, {})
    for version, (old, new) in enumerate(itertools.pairwise(made), 1):
        path.append(run.delta(version - 1, version, old, new))
        witness.step(version - 1, version, _bits(old))
    with DirectoryEngine(tmp_path / "one", run.reader) as engine:
        for step in path:  # the second slot catches up by decoding again
            commit_path(run, engine, step, shuffle=seed)
        assert engine.scrub()
    with DirectoryEngine(tmp_path / "chain", run.reader) as engine:
        commit_path(run, engine, *path, shuffle=seed)
        assert engine.scrub()
    assert witness.compared > 50


@pytest.mark.parametrize("seed", range(3))
def test_a_module_gives_each_chunk_its_own_base(witness: Witness, seed: int) -> None:
    run, module = witness.run, Policy(1)
    versions = [version_of(module)]
    for number in range(1, 4):
        versions.append(stepped(versions[-1], number, share=0.2))
        run.delta_of(number - 1, number, versions[-2], versions[-1])
        witness.step(number - 1, number, versions[-2])
    path = [run.steps[v, v + 1] for v in range(3)]
    engine = ModuleEngine(module, position=start(0, versions[0]))
    commit_path(run, engine, path[0], shuffle=seed)
    commit_path(run, engine, *path[1:], shuffle=seed)
    assert engine.scrub()
    engine = ModuleEngine(Policy(1), position=start(0, versions[0]))
    stage = engine.stage(path)
    put_all(run, stage, path, shuffle=seed)
    stage.commit()
    assert engine.scrub()
    assert witness.compared > 50
