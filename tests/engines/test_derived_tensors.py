"""A tensor that a forward pass can reach is constant, mapped, or a copy that commits make again; else it is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from p2psync.engines.vllm.derived_tensors import DerivedTensors, record_construction
from p2psync.engines.vllm.object_graph import ObjectGraph
from p2psync.errors import EngineError


class Attention:
    """Stands for vLLM's implementations: a plain object that holds a parameter of its layer."""

    __slots__ = ("__dict__", "packed")

    def __init__(self, sinks: torch.Tensor) -> None:
        self.sinks = sinks
        self.scale = 0.125
        self.packed: object = None


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(8, 8).bfloat16(), requires_grad=False)
        self.sinks = torch.nn.Parameter(torch.empty(8).bfloat16(), requires_grad=False)
        self.register_buffer("rotary", torch.arange(16.0).cos(), persistent=False)
        self.register_buffer("filled_later", torch.zeros(4))
        self.impl = Attention(self.sinks)
        self.kv_cache: Any = []
        self.compute: Callable[..., object] = torch.nn.functional.linear


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])


@pytest.fixture
def model() -> Model:
    """Constructed and loaded."""
    made = Model()
    record_construction(made)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return made


def derived(model: Model) -> DerivedTensors:
    return DerivedTensors(model, [tensor.detach() for layer in model.layers for tensor in (layer.weight, layer.sinks)])


def pack(layer: Any) -> torch.Tensor:
    return layer.weight.detach().t().contiguous()


def in_closure(layer: Any) -> None:
    packed = pack(layer)
    layer.compute = lambda x: x @ packed


def in_default(layer: Any) -> None:
    kept = pack(layer)

    def compute(x: torch.Tensor, packed: torch.Tensor = kept) -> torch.Tensor:
        return x @ packed

    layer.compute = compute


PLACES: dict[str, Callable[[Any], None]] = {
    "a closure": in_closure,
    "a default": in_default,
    "a partial function": lambda layer: setattr(layer, "compute", functools.partial(torch.matmul, other=pack(layer))),
    "a bound method": lambda layer: setattr(layer, "compute", pack(layer).matmul),
    "an attribute of an implementation": lambda layer: setattr(layer.impl, "extra", pack(layer)),
    "a slot": lambda layer: setattr(layer.impl, "packed", pack(layer)),
    "a list in a dict of a nested object": lambda layer: setattr(
        layer, "quant_method", SimpleNamespace(tables={"w": [pack(layer)]})
    ),
    "an attribute of a parameter": lambda layer: setattr(layer.weight, "packed", pack(layer)),
    "another parameter": lambda layer: layer.register_parameter("copy", torch.nn.Parameter(pack(layer), False)),
    "another buffer": lambda layer: layer.register_buffer("copy", pack(layer)),
    "a constant's memory": lambda layer: layer.filled_later.copy_(layer.sinks[:4]),
    "a number": lambda layer: setattr(layer.impl, "scale", float(layer.sinks[0])),
    "an integer tensor, as a native handle": lambda layer: setattr(layer, "handle", torch.tensor(123456)),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_copy_made_in_loading_is_refused_wherever_it_is_kept(model: Model, place: str) -> None:
    PLACES[place](model.layers[1])
    with pytest.raises(EngineError, match=r"layers\.1\..* was made by the engine after loading"):
        derived(model)


@pytest.mark.parametrize("place", PLACES)
def test_a_copy_made_by_a_forward_pass_is_refused_before_the_next_commit(model: Model, place: str) -> None:
    found = derived(model)
    found.check(reread=True)
    PLACES[place](model.layers[1])
    for _ in range(2):
        with pytest.raises(EngineError, match=r"layers\.1\..* by the engine since it was loaded"):
            found.check(reread=True)


@pytest.mark.parametrize("late", [False, True])
def test_a_converted_parameter_in_its_place_is_made_again_with_each_commit(model: Model, late: bool) -> None:
    def convert() -> None:
        for layer in model.layers:
            layer.impl.sinks = layer.impl.sinks.to(torch.float32)

    if not late:
        convert()
    found = derived(model)
    if late:
        convert()
        found.check()
    assert found.copies == [".layers.0.impl.sinks", ".layers.1.impl.sinks"]
    assert found.is_intact()
    with torch.no_grad():
        model.layers[1].sinks.add_(1.0)
    assert not found.is_intact()
    found.refresh()
    assert found.is_intact()
    assert torch.equal(model.layers[1].impl.sinks, model.layers[1].sinks.float())


def test_constants_caches_and_views_are_not_copies(model: Model) -> None:
    model.layers[0].rotary = model.layers[0].rotary.to(torch.bfloat16)
    model.layers[0].rows = model.layers[0].weight.detach().t()
    found = derived(model)
    assert found.copies == []
    model.layers[1].rotary = model.layers[1].rotary.to(torch.float16)
    model.layers[1].kv_cache = torch.randn(4, 4)
    model.layers[1].impl.rows = model.layers[1].weight.detach()[2:]
    model.layers[1].impl.keys = model.layers[1].kv_cache[1:]
    model.layers[1].impl.empty = torch.empty(0)
    model.layers[1].impl.scale_again = 0.125
    found.check(reread=True)


def test_a_model_without_a_record_of_its_construction_is_refused() -> None:
    with pytest.raises(EngineError, match="not watched"):
        derived(Model())


def test_unchanged_objects_are_not_searched_again(model: Model) -> None:
    graph = ObjectGraph(model)
    assert graph.new_leaves() == []
    model.layers[0].impl.extra = torch.ones(1)
    assert [leaf.path for leaf in graph.new_leaves() if isinstance(leaf.value, torch.Tensor)][
        -1
    ] == ".layers.0.impl.extra"
    assert graph.new_leaves() == []
