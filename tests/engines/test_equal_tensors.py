"""A version in which a left-out tensor no longer equals its loaded one is refused, whatever its blocks."""

from __future__ import annotations

import numpy as np
import pytest
from engine_parts import Run, commit_path
from fused_parts import Checkpointed, Served, specs_of
from hypothesis import given
from hypothesis import strategies as st
from module_parts import Version, stepped
from test_module import start

from p2psync.delta.tensors import TensorKind, TensorSpec
from p2psync.engines.vllm.equal_tensors import check_still_equal, find_equal_tensors
from p2psync.engines.vllm.rank_writer import Edit
from p2psync.errors import EngineError

SPECS = [TensorSpec(kind=TensorKind.TENSOR, name=name, dtype="BF16", shape=(60,)) for name in ("head", "rows")]


def edits(tensor: int, old: np.ndarray, new: np.ndarray, cuts: list[int], *, sparse: bool) -> list[Edit]:
    """A change of a whole tensor, in blocks that end at `cuts`."""
    found = []
    for start_, end in zip([0, *cuts], [*cuts, old.size], strict=True):
        before, after = old[start_:end], new[start_:end]
        where = np.flatnonzero(before != after).astype(np.uint32) if sparse else None
        taken = where if where is not None else slice(None)
        found.append(Edit(tensor, start_, end - start_, where, before[taken], after[taken]))
    return found[::-1]


@given(
    st.lists(st.integers(0, 59), max_size=8),
    st.lists(st.integers(0, 59), max_size=8),
    st.tuples(*[st.lists(st.integers(1, 59), max_size=3, unique=True).map(sorted)] * 2),
    st.tuples(st.booleans(), st.booleans()),
)
def test_equal_tensors_stay_equal_or_the_version_is_refused(
    here: list[int], there: list[int], cuts: tuple[list[int], list[int]], sparse: tuple[bool, bool]
) -> None:
    old = np.arange(60, dtype=np.uint16)
    new = [old.copy(), old.copy()]
    new[0][here] += 3
    new[1][there] += 3
    both = [e for k in range(2) for e in edits(k, old, new[k], cuts[k], sparse=sparse[k])]
    numbers = {spec: number for number, spec in enumerate(SPECS)}
    if np.array_equal(*new):
        check_still_equal({SPECS[0]: SPECS[1]}, numbers, both)
    else:
        with pytest.raises(EngineError, match="head is no longer equal to rows"):
            check_still_equal({SPECS[0]: SPECS[1]}, numbers, both)


def tied() -> tuple[Served, Version]:
    """A served model whose left-out output matrix equals its embedding."""
    trained = Checkpointed()
    trained.head.data.copy_(trained.embed.data)
    served = Served(trained)
    left_out = [spec for spec in specs_of(served.version) if spec.name == "head"]
    served.engine._equal_tensors = find_equal_tensors(left_out, served.version)
    assert [(a.name, b.name) for a, b in served.engine._equal_tensors.items()] == [("head", "embed")]
    assert served.engine.adopt(start(0, served.version))
    return served, served.version


def test_a_version_in_which_a_tied_matrix_differs_from_its_embedding_is_refused() -> None:
    served, version = tied()
    try:
        by_name = {spec.name: spec for spec in specs_of(version)}
        run, together = Run(), stepped(version, 1, 0.05)
        together[by_name["head"]] = together[by_name["embed"]].copy()
        apart = {spec: units.copy() for spec, units in together.items()}
        apart[by_name["head"]][7] ^= 1
        run.delta_of(0, 1, version, together)
        run.delta_of(1, 2, together, apart)
        commit_path(run, served.engine, run.steps[0, 1])
        with pytest.raises(EngineError, match="no longer equal to embed"):
            commit_path(run, served.engine, run.steps[1, 2])
        assert served.holds(together)
        assert served.engine.position == start(1, together)
        assert not served.refused
    finally:
        served.close()


def test_a_left_out_tensor_that_equals_none_has_no_equal_tensor() -> None:
    served = Served()
    try:
        assert (
            find_equal_tensors([spec for spec in specs_of(served.version) if spec.name == "head"], served.version) == {}
        )
    finally:
        served.close()
