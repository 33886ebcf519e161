"""A module of any kind, in any wrapper, computes with the live weights."""

from __future__ import annotations

import pytest
import torch
from engine_parts import Run, commit_path
from hypothesis import given, settings
from hypothesis import strategies as st
from module_kinds import KINDS, WRAPPERS, stack
from module_parts import Version, anchor, stepped, version_of
from torch import nn

from p2psync.delta.tensors import TensorKind
from p2psync.engines.module.engine import ModuleEngine, module_rows

ROWS = torch.linspace(-1, 1, 12).view(3, 4)


def small_step(version: Version, seed: int) -> Version:
    """A step that changes low bits alone, so that outputs stay finite."""
    after = stepped(version, seed, share=0.3)
    return {
        spec: units if spec.kind != TensorKind.TENSOR else version[spec] ^ (units & 0x7).astype(units.dtype)
        for spec, units in after.items()
    }


def outputs(module: nn.Module) -> torch.Tensor:
    """Returns the outputs of the module itself; a wrapper's would be the same, after a compilation."""
    with torch.no_grad():
        return module(ROWS)


@settings(max_examples=10)
@given(
    st.lists(
        st.tuples(*[st.sampled_from(sorted(names)) for names in (KINDS, WRAPPERS, WRAPPERS)]), min_size=1, max_size=4
    ),
    st.sampled_from(sorted(WRAPPERS)),
    st.sampled_from(sorted(WRAPPERS)),
)
def test_a_module_computes_with_the_weights_of_another_in_any_wrapper(
    parts: list[tuple[str, str, str]], outer: str, other_outer: str
) -> None:
    kinds = [kind for kind, _, _ in parts]
    trained, bare = stack(kinds, [one for _, one, _ in parts], outer, seed=1)
    module, mirror = stack(kinds, [other for _, _, other in parts], other_outer, seed=2)
    versions, run = [version_of(trained)], Run()
    engine = ModuleEngine(module)
    assert not torch.equal(outputs(bare), outputs(mirror))

    commit_path(run, engine, anchor(run, 0, versions[0]), shuffle=1)
    before = outputs(bare)
    assert (
        torch.equal(
            before,
            outputs(mirror),
        )
        or not before.isfinite().all()
    )
    assert engine.scrub()

    after = small_step(versions[0], 3)
    commit_path(run, engine, run.delta_of(0, 1, versions[0], after), shuffle=2)
    own = ModuleEngine(trained)
    commit_path(run, own, anchor(run, 1, after), shuffle=3)
    assert torch.equal(outputs(bare), outputs(mirror))
    assert version_of(module).keys() == after.keys()
    assert all(version_of(module)[spec].tobytes() == units.tobytes() for spec, units in after.items())

    engine.roll_back()
    assert torch.equal(before, outputs(mirror))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_has_the_names_of_its_own_state_dict(kind: str) -> None:
    torch.manual_seed(1)
    module = KINDS[kind]()
    assert {spec.name for spec in module_rows(module)} <= set(module.state_dict())


def test_a_compiled_module_computes_with_the_live_weights() -> None:
    trained, module = nn.Linear(4, 4), torch.compile(nn.Linear(4, 4), backend="eager")
    module(ROWS)
    run = Run()
    commit_path(run, ModuleEngine(module), anchor(run, 0, version_of(trained)), shuffle=1)
    assert torch.equal(module(ROWS), trained(ROWS))
