"""The live map is learned from a loader alone, changes no bit, and is refused where a loader does more than copy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fused_parts import (
    Checkpointed,
    Fused,
    Weights,
    learned,
    load,
    parameters,
    same_bits,
    specs_of,
)
from module_parts import version_of

from p2psync.engines.vllm.live_map import check_whole, decode, encode
from p2psync.engines.vllm.loader_probe import learn_live_map, units_to_tensor
from p2psync.engines.vllm.rank_writer import Edit, RankWriter
from p2psync.errors import EngineError


def loaded(rank: int = 0, size: int = 1) -> tuple[Checkpointed, Fused]:
    trained, model = Checkpointed(), Fused(rank, size)
    load(model, trained)
    return trained, model


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("group_units", [1, 3000, 1 << 25])
def test_every_live_unit_is_known_on_every_rank_and_none_is_changed(size: int, group_units: int) -> None:
    maps = []
    for rank in range(size):
        trained, model = loaded(rank, size)
        before = {name: tensor.clone() for name, tensor in parameters(model).items()}
        version = version_of(trained)
        live = learned(model, version, group_units)
        for name, tensor in parameters(model).items():
            assert same_bits(tensor, before[name])
        assert decode(encode(live)) == live
        writer, found = RankWriter(live, list(parameters(model).values())), parameters(model)
        assert writer.is_intact()
        assert sum(len(held) for held in live.held) <= 2 * len(live.tensors)
        known = sum(h.piece.units for held in live.held for h in held)
        assert known + live.constant == sum(t.numel() for n, t in found.items() if n != "table")
        maps.append(live)
    assert [spec.name for spec in check_whole(maps)] == ["head"]


def test_a_tensor_that_is_loaded_only_in_part_is_refused() -> None:
    trained, model = loaded(0, 2)
    live = learned(model, version_of(trained))
    with pytest.raises(EngineError, match="leaves out"):
        check_whole([live])


def refused(match: str, model: Fused, trained: torch.nn.Module) -> None:
    version = version_of(trained)
    before = {name: tensor.clone() for name, tensor in parameters(model).items()}
    with pytest.raises(EngineError, match=match):
        learn_live_map(model.load_weights, parameters(model), specs_of(version), version.__getitem__)
    assert all(same_bits(tensor, before[name]) for name, tensor in parameters(model).items())


class Scaling(Fused):
    def load_one(self, name: str, tensor: torch.Tensor) -> str:
        return super().load_one(name, tensor * 2 if name == "gate" else tensor)


class Silent(Fused):
    def load_weights(self, weights: Weights) -> set[str]:
        return super().load_weights(weights) - {"norm"}


class Shuffling(Fused):
    def load_one(self, name: str, tensor: torch.Tensor) -> str:
        if name == "down":
            self.down.view(-1)[torch.randperm(tensor.numel(), generator=torch.Generator().manual_seed(1))] = (
                tensor.reshape(-1)
            )
            return name
        return super().load_one(name, tensor)


class Failing(Fused):
    def load_one(self, name: str, tensor: torch.Tensor) -> str:
        if name == "v":
            raise AssertionError
        return super().load_one(name, tensor)


class Constant(Fused):
    def load_one(self, name: str, tensor: torch.Tensor) -> str:
        name = super().load_one(name, tensor)
        self.embed[-1] = 3.0
        return name


def test_loaders_that_do_more_than_copy_are_refused_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Checkpointed()
    for kind, match in (
        (Scaling, "gate_up: .*not copied"),
        (Silent, "norm: .*from no tensor"),
        (Failing, "cannot be asked where weights go: AssertionError"),
        (Constant, "embed: .*from no tensor"),
    ):
        model = Fused()
        load(model, trained)
        model.__class__ = kind
        refused(match, model, trained)
    monkeypatch.setattr("p2psync.engines.vllm.strided_runs.MAX_PIECES", 100)
    model = Shuffling()
    load(model, trained)
    refused("down: .*one by one", model, trained)


def test_another_dtype_than_the_checkpoints_is_refused() -> None:
    trained, model = loaded()
    trained.norm = torch.nn.Parameter(trained.norm.detach().float())
    refused("norm", model, trained)
    trained, model = loaded()
    trained.norm = torch.nn.Parameter(trained.norm.detach().half())
    refused("norm", model, trained)


def test_weights_that_are_not_the_checkpoints_are_refused() -> None:
    trained, model = loaded()
    model.qkv.view(torch.int16)[3, 3] ^= 1
    refused("is not in qkv", model, trained)


@pytest.mark.parametrize("group_units", [1, 1 << 25])
def test_a_parameter_that_widens_the_checkpoints_bits_is_written_as_its_loader_would(group_units: int) -> None:
    trained, model = Checkpointed(), Fused()
    model.norm = torch.nn.Parameter(torch.zeros(model.norm.shape), requires_grad=False)
    model.o = torch.nn.Parameter(torch.zeros(model.o.shape), requires_grad=False)
    load(model, trained)
    version = version_of(trained)
    writer = RankWriter(learned(model, version, group_units), list(parameters(model).values()))
    nonfinite = torch.tensor([0x7FC1, -1, 0x7F81, -0x80, 1, -0x8000], dtype=torch.int16).view(torch.bfloat16)
    edits = []
    for number, spec in enumerate(writer.tensors):
        if spec.name in ("norm", "o"):
            new = version[spec].copy()
            new[::5] = np.resize(nonfinite.view(torch.int16).numpy().view(np.uint16), new[::5].size)
            where = np.flatnonzero(new != version[spec]).astype(np.uint32)
            edits.append(Edit(number, 0, spec.count, where, version[spec][where], new[where]))
            getattr(trained, spec.name).data.copy_(units_to_tensor(spec, new))
    writer.prepare(edits)
    writer.write()
    fresh = Fused()
    fresh.norm, fresh.o = (torch.nn.Parameter(torch.zeros_like(p), requires_grad=False) for p in (model.norm, model.o))
    load(fresh, trained)
    assert all(same_bits(tensor, parameters(fresh)[name]) for name, tensor in parameters(model).items())
    assert writer.is_intact()
    assert writer.nonfinite > 0
    writer.undo()
    writer.discard()
    assert writer.is_intact()
    assert writer.nonfinite == 0
    for number, spec in enumerate(writer.tensors):
        if spec.name != "head":
            units = np.zeros(spec.count, spec.unit)
            writer.gather_into(number, units)
            assert np.array_equal(units, version[spec])


class Tied(Fused):
    """Its output matrix lies in the memory of its embedding, and the loader loads both."""

    def load_one(self, name: str, tensor: torch.Tensor) -> str:
        return super().load_one("embed" if name == "head" else name, tensor)


@pytest.mark.parametrize("group_units", [1, 1 << 25])
def test_one_of_two_tensors_loaded_to_the_same_units_is_left_out(group_units: int) -> None:
    trained, model = loaded()
    with torch.no_grad():
        trained.head.copy_(trained.embed)
    model.__class__ = Tied
    version = version_of(trained)
    live = learn_live_map(
        model.load_weights, parameters(model), specs_of(version), version.__getitem__, group_units=group_units
    )
    assert [spec.name for spec in check_whole([live])] == ["embed"]
    assert RankWriter(live, list(parameters(model).values())).is_intact()


def test_a_loader_that_names_nothing_is_probed_in_all_parameters() -> None:
    trained, model = loaded()
    version = version_of(trained)

    def quiet(weights: Weights) -> None:
        model.load_weights(weights)

    live = learn_live_map(quiet, parameters(model), specs_of(version), version.__getitem__)
    assert live == learned(model, version)
    assert np.count_nonzero([bool(held) for held in live.held]) == len(live.tensors) - 1
