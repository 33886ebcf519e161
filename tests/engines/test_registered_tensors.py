"""Probing a loader leaves the model's parameters the same objects."""

from __future__ import annotations

import pytest
import torch
from fused_parts import Checkpointed, Fused, load, same_bits, specs_of
from module_parts import version_of

from p2psync.engines.vllm.live_map import check_whole
from p2psync.engines.vllm.loader_probe import learn_live_map
from p2psync.engines.vllm.registered_tensors import RegisteredTensors
from p2psync.errors import EngineError


class Registering(Fused):
    """Registers a new parameter for a tensor each time it is loaded, as vLLM's Transformers backend does for biases."""

    def load_one(self, name: str, tensor: torch.Tensor) -> str:
        if name == "q_bias":
            self.q_bias = torch.nn.Parameter(tensor.clone(), requires_grad=False)
            return name
        return super().load_one(name, tensor)


class Growing(Registering):
    def load_one(self, name: str, tensor: torch.Tensor) -> str:
        if name == "norm":
            self.register_parameter(f"norm_{sum(1 for _ in self.parameters())}", torch.nn.Parameter(tensor.clone()))
        return super().load_one(name, tensor)


class Resizing(Fused):
    def load_one(self, name: str, tensor: torch.Tensor) -> str:
        if name == "norm":
            self.norm = torch.nn.Parameter(tensor.float(), requires_grad=False)
            return name
        return super().load_one(name, tensor)


def loaded(kind: type[Fused]) -> tuple[Checkpointed, Fused]:
    trained, model = Checkpointed(), kind()
    load(model, trained)
    return trained, model


def test_a_loader_that_registers_new_parameters_is_redirected_to_the_old_ones() -> None:
    trained, model = loaded(Registering)
    before = [(name, tensor, tensor.data_ptr(), tensor.clone()) for name, tensor in model.named_parameters()]
    version, registered = version_of(trained), RegisteredTensors(model)
    live = learn_live_map(registered.load, registered.distinct_tensors(), specs_of(version), version.__getitem__)
    registered.check_untouched()
    assert [spec.name for spec in check_whole([live])] == ["head"], "the bias is known, and not left out"
    for (name, tensor, place, bits), (other, now) in zip(before, model.named_parameters(), strict=True):
        assert (name, place) == (other, now.data_ptr())
        assert now is tensor
        assert same_bits(now, bits)


def test_a_loader_that_leaves_other_parameters_behind_is_refused() -> None:
    trained, model = loaded(Fused)
    model.__class__ = Growing
    version, registered = version_of(trained), RegisteredTensors(model)
    learn_live_map(registered.load, registered.distinct_tensors(), specs_of(version), version.__getitem__)
    with pytest.raises(EngineError, match=r"norm_.* was registered again"):
        registered.check_untouched()
    trained, model = loaded(Fused)
    model.__class__ = Resizing
    with pytest.raises(EngineError, match=r"norm: .*puts another parameter"):
        learn_live_map(
            RegisteredTensors(model).load,
            RegisteredTensors(model).distinct_tensors(),
            specs_of(version),
            version.__getitem__,
        )


def test_a_parameter_in_another_place_is_found() -> None:
    _, model = loaded(Fused)
    registered = RegisteredTensors(model)
    model.norm.data = model.norm.data.clone()
    with pytest.raises(EngineError, match="norm is not what it was"):
        registered.check_untouched()


def test_strided_parameters_are_refused_but_for_views_of_whole_ones() -> None:
    _, model = loaded(Fused)
    model.turned = torch.nn.Parameter(model.down.detach().t(), requires_grad=False)
    assert "turned" not in RegisteredTensors(model).distinct_tensors()
    model.turned = torch.nn.Parameter(torch.zeros(48, 32).bfloat16().t(), requires_grad=False)
    with pytest.raises(EngineError, match="turned is strided"):
        RegisteredTensors(model)
