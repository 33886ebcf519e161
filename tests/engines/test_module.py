"""A live module follows every version bit for bit, in one short pause, and can always be undone."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_parts import Run, commit_path, digest_of, position, put_all
from module_parts import DTYPES, Policy, Version, anchor, bits, stepped, version_of, weights
from safetensors import safe_open

from p2psync.delta.tensors import TensorKind
from p2psync.engines.base import Position
from p2psync.engines.directory.engine import DirectoryEngine
from p2psync.engines.module.engine import ModuleEngine, host_units, module_rows, module_specs
from p2psync.engines.module.live_tensors import live_tensor
from p2psync.errors import BaseMismatchError, DigestMismatchError, EngineError


def start(number: int, version: Version) -> Position:
    return Position(run="0" * 31 + "1", epoch=1, version=number, digest=digest_of(version))


def chain(count: int) -> tuple[Policy, Run, list[Version]]:
    """A module at version 0, and deltas to each later version."""
    module, run = Policy(1), Run()
    versions = [version_of(module)]
    for number in range(1, count):
        versions.append(stepped(versions[-1], number))
        run.delta_of(number - 1, number, versions[-2], versions[-1])
    return module, run, versions


def test_the_rows_of_a_module_are_its_state_dict_with_tied_weights_once() -> None:
    module = Policy(1)
    specs = module_specs(module)
    names = [spec.name for spec in specs]
    assert names == sorted(set(module.state_dict()) - {"head.weight"})
    assert {spec.dtype for spec in specs} >= {"BF16", "F8_E4M3", "F8_E5M2", "BOOL", "C64", "U64"}
    for spec, tensor in module_rows(module).items():
        assert host_units(module_rows(module)[spec]).tobytes() == bits(module)[spec.name]
        assert (spec.shape, spec.nbytes) == (tuple(tensor.shape), tensor.numel() * tensor.element_size())


def test_names_of_a_module_can_be_mapped_to_those_of_a_checkpoint() -> None:
    module, names = Policy(1), {"big": "model.big"}
    spec = next(spec for spec in module_specs(module, names) if spec.name == "model.big")
    assert host_units(module_rows(module, names)[spec]).tobytes() == bits(module)["big"]
    with pytest.raises(EngineError, match="two tensors of the module are named 'scalar'"):
        module_specs(module, {"big": "scalar"})


def test_unpublishable_tensors_are_refused_by_name() -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(2, 2)
    with pytest.raises(EngineError, match="weight: a meta tensor has no bits"):
        module_specs(module)


def test_a_delta_is_scattered_into_the_live_weights() -> None:
    module, run, versions = chain(4)
    engine = ModuleEngine(module, position=start(0, versions[0]))
    storage = module.embed.weight.data_ptr()
    for number in (1, 2, 3):
        commit_path(run, engine, run.steps[number - 1, number], shuffle=number)
        found = bits(module)
        assert {name: found[name] for name in weights(versions[number])} == weights(versions[number])
        assert engine.position == start(number, versions[number])
        assert engine.scrub()
    assert module.embed.weight.data_ptr() == module.head.weight.data_ptr() == storage


@pytest.mark.parametrize("seed", range(3))
def test_a_chain_is_composed_and_written_once(seed: int) -> None:
    module, run, versions = chain(5)
    engine = ModuleEngine(module, position=start(0, versions[0]))
    path = [run.steps[v, v + 1] for v in range(4)]
    commit_path(run, engine, *path, shuffle=seed)
    assert weights(versions[4]).items() <= bits(module).items()
    assert engine.scrub()
    assert engine.roll_back() == start(0, versions[0])
    assert weights(versions[0]).items() <= bits(module).items()


def test_a_chain_that_returns_to_its_start_changes_nothing() -> None:
    module, run, versions = chain(2)
    run.delta_of(1, 2, versions[1], versions[0])
    engine = ModuleEngine(module, position=start(0, versions[0]))
    stage = engine.stage([run.steps[0, 1], run.steps[1, 2]])
    put_all(run, stage, [run.steps[0, 1], run.steps[1, 2]])
    commit = stage.commit()
    assert (commit.changed, commit.position.version) == (0, 2)
    assert weights(versions[0]).items() <= bits(module).items()


def test_an_anchor_is_staged_without_the_tensors_that_are_live_already() -> None:
    module, run = Policy(1), Run()
    other = version_of(Policy(2), **{"config.json": b"{}"})
    engine = ModuleEngine(module)
    before = bits(module)
    step = anchor(run, 5, other)
    commit_path(run, engine, step, shuffle=1)
    assert weights(other).items() <= bits(module).items()
    assert engine.position == position(step)
    assert [s.name for s in engine.table() if s.kind != TensorKind.TENSOR] == ["model.safetensors", "config.json"]
    assert engine.scrub()
    assert list(engine.stage([anchor(run, 5, other)]).wanted(0)) == []
    later = dict(other)
    spec = next(spec for spec in later if spec.name == "scalar")
    later[spec] = later[spec] ^ 1
    step = anchor(run, 6, later)
    after = stepped(later, 3)
    assert commit_path(run, engine, step, run.delta_of(6, 7, later, after), shuffle=2) < step.manifest.chunks
    assert weights(after).items() <= bits(module).items()
    assert engine.scrub()
    assert engine.roll_back() == position(run.steps[None, 5])
    assert weights(other).items() <= bits(module).items()
    assert before != bits(module)


def test_files_besides_the_weights_change_without_touching_the_module() -> None:
    module, run = Policy(1), Run()
    versions = [
        version_of(module, **files)
        for files in ({}, {"a.json": b"1", "b.json": b"22"}, {"a.json": b"3", "b.json": b"4444"}, {"b.json": b"4444"})
    ]
    steps = [run.delta_of(i, i + 1, a, b) for i, (a, b) in enumerate(itertools.pairwise(versions))]
    for paths in ([[step] for step in steps], [steps], [steps[:2], steps[2:]]):
        engine = ModuleEngine(module, position=start(0, versions[0]))
        for path in paths:
            commit_path(run, engine, *path, shuffle=1)
        assert {s: engine.units(s).tobytes() for s in engine.table()} == {
            s: u.tobytes() for s, u in versions[3].items()
        }
        assert engine.scrub()


def test_a_strided_tensor_goes_through_index_operations_as_a_device_tensor_does() -> None:
    for dtype in DTYPES:
        raw = torch.randint(0, 2 if dtype == torch.bool else 256, (9, 8, 16), dtype=torch.uint8).view(dtype)
        strided, plain = raw.clone().transpose(0, 1)[1:], raw.transpose(0, 1)[1:].contiguous()
        a, b = live_tensor(strided), live_tensor(plain)
        assert type(a) is not type(b)
        assert a.units().tobytes() == b.units().tobytes()
        count = plain.numel()
        where = np.array([0, 1, 5, count - 8], np.uint32)
        for start_, positions in ((3, where), (0, None), (7, None)):
            n = count - start_
            old = a.gather(start_, n, positions)
            assert old.tobytes() == b.gather(start_, n, positions).tobytes()
            new = old ^ 1
            for tensor in (a, b):
                tensor.prepare(start_, n, positions, new)()
                assert tensor.gather(start_, n, positions).tobytes() == new.tobytes()
            assert a.units().tobytes() == b.units().tobytes()


def test_a_wrong_base_is_caught_before_the_pause_and_nothing_is_written() -> None:
    module, run, versions = chain(2)

    @contextmanager
    def never() -> Iterator[None]:
        raise AssertionError("the readers were stopped")
        yield

    engine = ModuleEngine(module, position=start(0, versions[0]), pause=never)
    spec = next(spec for spec in versions[0] if spec.name == "scalar")
    host_units(module_rows(module)[spec])[0] ^= 4
    before = bits(module)
    stage = engine.stage([run.steps[0, 1]])
    put_all(run, stage, [run.steps[0, 1]])
    with pytest.raises(DigestMismatchError, match="nothing was made live"):
        stage.commit()
    assert bits(module) == before
    assert engine.position == start(0, versions[0])
    assert not engine.scrub()


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("kind", ["delta", "anchor"])
def test_a_failure_in_the_middle_of_the_pause_is_undone_exactly(
    monkeypatch: pytest.MonkeyPatch, kind: str, threads: int
) -> None:
    module, run, versions = chain(2)
    anchor(run, 1, versions[1])
    engine = ModuleEngine(module, position=start(0, versions[0]), threads=threads)
    monkeypatch.setattr("p2psync.engines.module.writer._MIN_PARALLEL_WRITES", 1)
    before = bits(module)
    path = [run.steps[(0, 1) if kind == "delta" else (None, 1)]]
    stage = engine.stage(path)
    put_all(run, stage, path)
    _fail_at(monkeypatch, engine, 7)
    with pytest.raises(EngineError, match="are as they were: the device fell off"):
        stage.commit()
    monkeypatch.undo()
    assert bits(module) == before
    assert engine.position == start(0, versions[0])
    assert not engine.lock.locked()
    stage.commit()
    assert weights(versions[1]).items() <= bits(module).items()


def _fail_at(monkeypatch: pytest.MonkeyPatch, engine: ModuleEngine, number: int) -> None:
    """Makes write number `number` of the next commit fail."""
    count = itertools.count()
    for tensor in engine._tensors.values():
        prepare = tensor.prepare

        def failing(*args: object, prepare: Callable[..., Callable[[], None]] = prepare) -> Callable[[], None]:
            write = prepare(*args)
            if next(count) != number:
                return write

            def fail() -> None:
                raise RuntimeError("the device fell off")

            return fail

        monkeypatch.setattr(tensor, "prepare", failing)


def test_rolling_back_restores_every_bit_once() -> None:
    module, run, versions = chain(2)
    engine = ModuleEngine(module, position=start(0, versions[0]))
    before = bits(module)
    with pytest.raises(EngineError, match="nothing to undo"):
        engine.roll_back()
    commit_path(run, engine, run.steps[0, 1])
    assert engine.roll_back() == start(0, versions[0])
    assert bits(module) == before
    with pytest.raises(EngineError, match="nothing to undo"):
        engine.roll_back()
    commit_path(run, engine, run.steps[0, 1])
    assert engine.scrub()


def test_the_commit_waits_for_the_lock_and_changes_weights_and_position_together() -> None:
    module, run, versions = chain(2)
    engine = ModuleEngine(module, position=start(0, versions[0]))
    stage = engine.stage([run.steps[0, 1]])
    put_all(run, stage, [run.steps[0, 1]])
    before = bits(module)
    commit = threading.Thread(target=stage.commit)
    with engine.lock:
        commit.start()
        assert bits(module) == before
        assert engine.position == start(0, versions[0])
    commit.join()
    assert engine.position == start(1, versions[1])


def test_a_given_pause_is_used_instead_of_the_lock() -> None:
    module, run, versions = chain(2)
    seen: list[str] = []

    @contextmanager
    def pause() -> Iterator[None]:
        seen.append("stop")
        yield
        seen.append("go")

    engine = ModuleEngine(module, position=start(0, versions[0]), pause=pause)
    with engine.lock:
        commit_path(run, engine, run.steps[0, 1])
    assert seen == ["stop", "go"]


def test_adopting_checks_the_digest_of_the_weights() -> None:
    module, run, versions = chain(2)
    engine = ModuleEngine(module)
    assert not engine.adopt(start(1, versions[1]))
    assert engine.position is None
    assert engine.adopt(start(0, versions[0]))
    commit_path(run, engine, run.steps[0, 1])
    assert engine.scrub()


def test_a_module_of_another_architecture_is_named() -> None:
    module, run, versions = chain(2)
    step = anchor(run, 0, versions[0])
    engine = ModuleEngine(torch.nn.Linear(2, 2))
    with pytest.raises(EngineError, match=r"does not fit the module: it has .* load the same architecture"):
        engine.stage([step])
    with pytest.raises(BaseMismatchError, match="nothing is live"):
        ModuleEngine(module).stage([run.steps[0, 1]])


def test_an_actor_that_keeps_a_directory_gets_a_file_that_the_library_loads(tmp_path: Path) -> None:
    _, run, versions = chain(2)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, anchor(run, 0, versions[0]))
        commit_path(run, engine, run.steps[0, 1])
    with safe_open(tmp_path / "dir" / "current" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        for spec, units in versions[1].items():
            if spec.kind == TensorKind.TENSOR:
                loaded = file.get_tensor(spec.name)
                assert tuple(loaded.shape) == spec.shape
                assert loaded.reshape(-1).view(torch.uint8).numpy().tobytes() == units.tobytes()
