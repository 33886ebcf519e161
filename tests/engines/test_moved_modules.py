"""A module whose tensors move is followed; one that becomes another is refused; nothing is written elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_parts import Run, commit_path, put_all
from module_kinds import Extra, Tied
from module_parts import Policy, anchor, bits, stepped, version_of, weights
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import parametrizations, parametrize

from p2psync.engines.module.engine import ModuleEngine
from p2psync.engines.module.table import LiveTable
from p2psync.errors import EngineError, ModuleError


def committed_engine(module: nn.Module) -> tuple[Run, ModuleEngine, list[Any]]:
    """A module at version 0, and a delta to version 1."""
    run, versions = Run(), [version_of(module)]
    versions.append(stepped(versions[0], 1))
    run.delta_of(0, 1, *versions)
    engine = ModuleEngine(module)
    commit_path(run, engine, anchor(run, 0, versions[0]), shuffle=1)
    return run, engine, versions


def test_data_that_is_assigned_is_followed_and_a_commit_into_the_old_memory_is_refused() -> None:
    module = Policy(1)
    run, engine, versions = committed_engine(module)
    module.big.data = module.big.data.clone()
    stage = engine.stage([run.steps[0, 1]])
    put_all(run, stage, [run.steps[0, 1]])
    old = module.big.data
    module.big.data = old.clone()
    with pytest.raises(EngineError, match="big was replaced or moved while a version was staged"):
        stage.commit()
    assert weights(versions[0]).items() <= bits(module).items() and engine.position is not None
    assert engine.position.version == 0 and engine.scrub()
    commit_path(run, engine, run.steps[0, 1], shuffle=1)
    assert weights(versions[1]).items() <= bits(module).items()
    module.big.data = module.big.data.clone()
    with pytest.raises(EngineError, match="replaced or moved"):
        engine.roll_back()
    assert engine.scrub()


def test_a_scrub_reads_the_current_tensors_of_the_module() -> None:
    module = Policy(1)
    _, engine, _ = committed_engine(module)
    spec = next(spec for spec in engine.table() if spec.name == "big")
    module.load_state_dict(module.state_dict(), assign=True)
    assert engine.scrub()
    module.big = nn.Parameter(module.big.data + 1)
    assert engine.units(spec).tobytes() == module.big.data.view(torch.int16).numpy().tobytes()
    assert not engine.scrub()


def reinterpret(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.view(torch.int32)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda module: setattr(module.two, "weight", nn.Parameter(torch.ones(4, 4))), "two.weight"),
        (lambda module: module.half(), "F16|F32"),
        (lambda module: reinterpret(module.requires_grad_(False).three), "I32|F32"),
        (lambda module: module.register_buffer("more", torch.ones(2)), "more"),
        (lambda module: module.one.register_parameter("bias", nn.Parameter(torch.ones(4))), "one.bias"),
        (lambda module: module.add_module("new", nn.Linear(2, 2)), "new.bias"),
    ],
    ids=["tie broken", "dtype", "same bits, another dtype", "buffer", "bias", "module"],
)
def test_a_module_of_other_tensors_than_at_first_is_refused(change: Callable[[Any], object], line: str) -> None:
    module = Tied()
    table = LiveTable(module)
    assert table() is table()
    change(module)
    with pytest.raises(ModuleError, match=f"no longer those it had at first .*({line})"):
        table()


def test_memory_that_a_module_no_longer_uses_is_freed() -> None:
    module = nn.Linear(4, 4)
    table = LiveTable(module)
    storage = StorageWeakRef(module.weight.untyped_storage())
    module.weight.data = module.weight.data.clone()
    table()
    assert storage.expired()


def test_cached_parametrizations_are_computed_again_after_a_commit() -> None:
    trained, module = (parametrizations.weight_norm(nn.Linear(4, 4)) for _ in range(2))
    run, x = Run(), torch.randn(3, 4)
    with parametrize.cached():
        assert not torch.equal(module(x), trained(x))
        commit_path(run, ModuleEngine(module), anchor(run, 0, version_of(trained)), shuffle=1)
        assert torch.equal(module(x), trained(x))


class Inexact(Extra):
    """Rounds its input."""

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.scale = (state.float() + 0.5).round().bfloat16()


class Growing(Extra):
    """Changes the size of its extra state."""

    def grow(self) -> None:
        self.scale = torch.randn(5).bfloat16()


def test_extra_state_that_is_not_kept_exactly_is_refused() -> None:
    with pytest.raises(ModuleError, match="set_extra_state does not keep the bits"):
        ModuleEngine(Inexact())
    module = Growing()
    _, engine, _ = committed_engine(module)
    module.grow()
    with pytest.raises(ModuleError, match=r"no longer those it had at first \(_extra_state"):
        engine.scrub()


def test_a_failed_write_of_extra_state_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(Extra(), Extra())
    run, engine, versions = committed_engine(module)
    kept = module[1].set_extra_state
    calls = iter([True])

    def fails_once(state: torch.Tensor) -> None:
        if next(calls, False):
            raise RuntimeError("no")
        kept(state)

    monkeypatch.setattr(module[1], "set_extra_state", fails_once)
    with pytest.raises(EngineError, match="are as they were"):
        commit_path(run, engine, run.steps[0, 1], shuffle=1)
    assert weights(versions[0]) == weights(version_of(module)) and engine.scrub()
