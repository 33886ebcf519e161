"""Weights that are not finite are counted as they come and go, and what they left in a cache is forgotten."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from fused_parts import Served, specs_of

from p2psync.delta.tensors import Kind, TensorSpec
from p2psync.engines.vllm.nonfinite_caches import count_wild, forget_wild
from p2psync.engines.vllm.rank_writer import Edit

NAN, INFINITE = 0x7FC1, 0xFF80


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("dtype", "wild", "finite"),
    [
        ("BF16", [0x7F80, 0xFF80, 0x7F81, 0xFFFF], [0x7F7F, 0x8000, 0x0001]),
        ("F16", [0x7C00, 0xFC00, 0x7C01, 0xFFFF], [0x7BFF, 0x8000, 0x0001]),
        ("F32", [0x7F800000, 0xFF800001], [0x7F7FFFFF, 0x80000000]),
        ("I16", [], [0xFFFF, 0x7FFF]),
    ],
)
def test_infinities_and_nan_are_wild_and_nothing_else(dtype: str, wild: list[int], finite: list[int]) -> None:
    spec = TensorSpec(Kind.TENSOR, "w", dtype, (len(wild) + len(finite),))
    assert count_wild(spec, np.array(wild + finite, spec.unit)) == len(wild)


def test_a_hand_counts_what_is_wild_through_writes_and_their_undoing(served: Served) -> None:
    hand, tensors = served.hand, specs_of(served.version)
    number = next(n for n, spec in enumerate(tensors) if spec.name == "norm")
    sound = served.version[tensors[number]]
    wild = sound.copy()
    wild[[0, 3]] = NAN, INFINITE
    where = np.array([0, 3], np.uint32)
    assert hand.wild == 0
    hand.prepare([Edit(number, 0, sound.size, where, sound[where], wild[where])])
    assert hand.wild == 0, "it is not live yet"
    hand.write()
    assert hand.wild == 2
    hand.undo()
    assert hand.wild == 0
    hand.write()
    hand.prepare([Edit(number, 0, sound.size, where[:1], wild[where[:1]], sound[where[:1]])])
    hand.write()
    assert hand.wild == 1, "one is left"


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (torch.bfloat16, "auto"),
        (torch.float32, "auto"),
        (torch.float8_e4m3fn, "fp8"),
        (torch.float8_e5m2, "fp8_e5m2"),
    ],
)
def test_of_a_cache_only_what_is_wild_is_forgotten(kind: torch.dtype, dtype: str) -> None:
    values = torch.tensor([[1.0, float("nan"), -0.5], [float("nan"), 2.0, 0.25]])
    cache = values.to(kind)
    stored = cache.view(torch.uint8) if dtype != "auto" else cache
    assert forget_wild([stored, [stored], None], dtype) == 2, "each memory is looked at once"
    assert cache.float().tolist() == [[1.0, 0.0, -0.5], [0.0, 2.0, 0.25]]


def test_a_cache_of_a_float_of_one_byte_is_searched_as_what_it_is() -> None:
    cache = torch.tensor([1.0, float("nan")]).to(torch.float8_e5m2)
    assert forget_wild([cache], "auto") == 1
    assert cache.float().tolist() == [1.0, 0.0]


def test_layers_of_several_kinds_in_the_same_memory_are_all_searched() -> None:
    memory = torch.zeros(4, 8, dtype=torch.bfloat16)
    memory[3, 7] = float("nan")
    assert forget_wild([memory[:2], memory], "auto") == 1
    assert memory.float().abs().sum() == 0


def test_a_cache_of_unknown_bytes_is_left_alone() -> None:
    cache = torch.full((4, 8), 0xFF, dtype=torch.uint8)
    assert forget_wild([cache], "fp8_ds_mla") == 0
    assert bool((cache == 0xFF).all())
