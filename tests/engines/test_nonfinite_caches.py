"""Non-finite weights are counted as they come and go, and non-finite values that they left in a cache are cleared."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from fused_parts import Served, specs_of

from p2psync.delta.tensors import TensorKind, TensorSpec
from p2psync.engines.vllm.nonfinite_caches import clear_nonfinite, count_nonfinite
from p2psync.engines.vllm.rank_writer import Edit

NAN, INFINITE = 0x7FC1, 0xFF80


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("dtype", "nonfinite", "finite"),
    [
        ("BF16", [0x7F80, 0xFF80, 0x7F81, 0xFFFF], [0x7F7F, 0x8000, 0x0001]),
        ("F16", [0x7C00, 0xFC00, 0x7C01, 0xFFFF], [0x7BFF, 0x8000, 0x0001]),
        ("F32", [0x7F800000, 0xFF800001], [0x7F7FFFFF, 0x80000000]),
        ("I16", [], [0xFFFF, 0x7FFF]),
    ],
)
def test_only_infinities_and_nan_count_as_nonfinite(dtype: str, nonfinite: list[int], finite: list[int]) -> None:
    spec = TensorSpec(TensorKind.TENSOR, "w", dtype, (len(nonfinite) + len(finite),))
    assert count_nonfinite(spec, np.array(nonfinite + finite, spec.unit)) == len(nonfinite)


def test_a_rank_writer_counts_nonfinite_units_through_writes_and_their_undoing(served: Served) -> None:
    writer, tensors = served.writer, specs_of(served.version)
    number = next(n for n, spec in enumerate(tensors) if spec.name == "norm")
    sound = served.version[tensors[number]]
    nonfinite = sound.copy()
    nonfinite[[0, 3]] = NAN, INFINITE
    where = np.array([0, 3], np.uint32)
    assert writer.nonfinite == 0
    writer.prepare([Edit(number, 0, sound.size, where, sound[where], nonfinite[where])])
    assert writer.nonfinite == 0, "it is not live yet"
    writer.write()
    assert writer.nonfinite == 2
    writer.undo()
    assert writer.nonfinite == 0
    writer.write()
    writer.prepare([Edit(number, 0, sound.size, where[:1], nonfinite[where[:1]], sound[where[:1]])])
    writer.write()
    assert writer.nonfinite == 1, "one is left"


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (torch.bfloat16, "auto"),
        (torch.float32, "auto"),
        (torch.float8_e4m3fn, "fp8"),
        (torch.float8_e5m2, "fp8_e5m2"),
    ],
)
def test_only_nonfinite_values_of_a_cache_are_cleared(kind: torch.dtype, dtype: str) -> None:
    values = torch.tensor([[1.0, float("nan"), -0.5], [float("nan"), 2.0, 0.25]])
    cache = values.to(kind)
    stored = cache.view(torch.uint8) if dtype != "auto" else cache
    assert clear_nonfinite([stored, [stored], None], dtype) == 2, "each memory is looked at once"
    assert cache.float().tolist() == [[1.0, 0.0, -0.5], [0.0, 2.0, 0.25]]


def test_a_cache_of_one_byte_floats_is_searched_by_its_format() -> None:
    cache = torch.tensor([1.0, float("nan")]).to(torch.float8_e5m2)
    assert clear_nonfinite([cache], "auto") == 1
    assert cache.float().tolist() == [1.0, 0.0]


def test_layers_of_several_kinds_in_the_same_memory_are_all_searched() -> None:
    memory = torch.zeros(4, 8, dtype=torch.bfloat16)
    memory[3, 7] = float("nan")
    assert clear_nonfinite([memory[:2], memory], "auto") == 1
    assert memory.float().abs().sum() == 0


def test_a_cache_of_unknown_bytes_is_left_alone() -> None:
    cache = torch.full((4, 8), 0xFF, dtype=torch.uint8)
    assert clear_nonfinite([cache], "fp8_ds_mla") == 0
    assert bool((cache == 0xFF).all())
