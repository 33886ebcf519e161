"""Kinds of architectures in real vLLM: exact after each commit, or refused with the reason, with AMX and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from architectures import QUICK, save
from matrix import commits_parted_head, follow_packed, run_alone, try_architecture

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("name", QUICK)
def test_a_kind_of_architecture_is_exact_after_each_commit(name: str) -> None:
    assert try_architecture(name, amx=False) == ("exact", "")


@pytest.mark.parametrize("name", ["mixtral"])
def test_nothing_is_packed_on_a_processor_with_amx(name: str) -> None:
    assert try_architecture(name, amx=True, versions=1) == ("exact", "")


@pytest.mark.parametrize("what", ["output matrix", "experts", "every matrix"])
def test_weights_packed_in_spite_of_the_switch_are_refused_by_name(tmp_path: Path, what: str) -> None:
    assert run_alone(save, "mixtral", tmp_path / "0") is None
    failure = run_alone(follow_packed, tmp_path / "0", what)
    assert failure is not None and failure.startswith("EngineError: ")
    expected = {
        "output matrix": "lm_head.cpu_linear.packed_weight was made by the engine after loading",
        "experts": "--moe-backend triton",
        "every matrix": "weight was packed for this processor's kernels after it was loaded",
    }
    assert expected[what] in failure


def test_a_version_in_which_a_tied_output_matrix_differs_from_its_embedding_is_refused(tmp_path: Path) -> None:
    assert run_alone(save, "llama, tied, but with an equal output matrix", tmp_path / "0") is None
    assert run_alone(commits_parted_head, tmp_path / "0") is None
