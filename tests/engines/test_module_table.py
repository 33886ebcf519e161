"""Rows of a module are the storage that it computes with; anything else is refused by name, with a remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from engine_parts import Run, commit_path
from module_kinds import Extra, Tied
from module_parts import anchor, version_of
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.two_tensor import TwoTensor

from p2psync.engines.module.engine import ModuleEngine
from p2psync.engines.module.misfit import describe_misfit
from p2psync.engines.module.table import LiveTable, module_rows, module_table
from p2psync.errors import ModuleError


def names_of(module: nn.Module, **options: Any) -> list[str]:
    return [spec.name for spec in module_rows(module, **options)]


def holding(tensor: torch.Tensor) -> nn.Module:
    """A module with one buffer."""
    module = nn.Module()
    module.register_buffer("held", tensor)
    return module


# ---- refusals --------------------------------------------------------------------------------------------------------


class Copies(nn.Linear):
    """Overrides state_dict, and hands out copies."""

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in super().state_dict(*args, **options).items()}


class Hides(nn.Linear):
    """Overrides state_dict, and leaves a parameter out."""

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        state = super().state_dict(*args, **options)
        return {name: tensor for name, tensor in state.items() if not name.endswith("bias")}


class Fails(nn.Linear):
    """Overrides state_dict with one that no parent can call."""

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {}


class Dictionary(Extra):
    """Its extra state is no tensor."""

    def get_extra_state(self) -> Any:
        return {"scale": self.scale}


class Unsettable(nn.Linear):
    """Its extra state can be read only."""

    def get_extra_state(self) -> torch.Tensor:
        return torch.ones(3)


class OwnRules(torch.Tensor):
    """Computes something else than a tensor of its bits."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(2, 2))
    copy = {"0.weight": torch.zeros(2, 2)}
    module.register_state_dict_post_hook(lambda module, state, prefix, metadata: state.update(copy))
    return module


def marked(**marks: object) -> nn.Module:
    """A layer whose weight has attributes by which a library marks its transformations."""
    module = nn.Linear(4, 2)
    for name, value in marks.items():
        setattr(module.weight, name, value)
    return module


def zero_3() -> nn.Module:
    module = nn.Linear(4, 2)
    for parameter in module.parameters():
        parameter.ds_id, parameter.ds_shape = 0, parameter.shape  # type: ignore[attr-defined]
        parameter.data = torch.empty(0)
    return module


def offloaded() -> nn.Module:
    module = nn.Linear(2, 2, device="meta")
    module._hf_hook = object()  # type: ignore[assignment]
    return module


def partly_shared() -> nn.Module:
    base, module = torch.randn(6), nn.Module()
    module.one, module.two = nn.Parameter(base[:4]), nn.Parameter(base[2:])
    return module


def freed() -> nn.Module:
    module = nn.Linear(2, 2)
    module.weight.untyped_storage().resize_(0)
    return module


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2, 2), torch.zeros(3, 2)], layout=torch.jagged)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "hook that copies": (hooked, "0.weight: state_dict() hands out a copy"),
    "override that copies": (lambda: Copies(2, 2), "weight: state_dict() hands out a copy"),
    "override that hides": (lambda: Hides(2, 2), "bias: the module computes with it, but its state_dict() leaves"),
    "override that fails": (lambda: nn.Sequential(Fails(2, 2)), "state_dict() fails (TypeError: Fails.state_dict()"),
    "no module": (lambda: torch.ones(2), "Tensor: give a torch.nn.Module"),  # type: ignore[return-value]
    "dictionary": (Dictionary, "_extra_state: its state_dict holds a dict"),
    "unsettable": (lambda: Unsettable(2, 2), "_extra_state: extra state that cannot be written: give Unsettable"),
    "expanded": (lambda: holding(torch.randn(1).expand(4)), "held: an expanded or overlapping view"),
    "unfolded": (lambda: holding(torch.randn(7).unfold(0, 4, 1)), "held: an expanded or overlapping view"),
    "partly shared": (partly_shared, "two and one share a part of their memory"),
    "conjugate": (lambda: holding(torch.randn(4, dtype=torch.complex64).conj()), "replace it with .resolve_conj()"),
    "negative": (lambda: holding(torch.randn(4, dtype=torch.complex64).conj().imag), "replace it with .resolve_neg()"),
    "coo": (lambda: holding(torch.eye(4).to_sparse()), "held: a torch.sparse_coo tensor"),
    "csr": (lambda: holding(torch.eye(4).to_sparse_csr()), "held: a torch.sparse_csr tensor"),
    "bsr": (lambda: holding(torch.eye(4).to_sparse_bsr((2, 2))), "held: a torch.sparse_bsr tensor"),
    "jagged": (lambda: holding(jagged()), "held: a nested tensor"),
    "quantized": (
        lambda: holding(torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)),
        "held: a quantized tensor of torch.quint8",
    ),
    "two storages": (lambda: holding(TwoTensor(torch.ones(2), torch.ones(2))), "held: a TwoTensor computes by its own"),
    "own rules": (lambda: holding(torch.ones(2).as_subclass(OwnRules)), "held: a OwnRules computes by its own"),
    "complex128": (lambda: holding(torch.ones(2, dtype=torch.complex128)), "held: safetensors has no torch.complex128"),
    "fp4": (
        lambda: holding(torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)),
        "held: safetensors has no torch.float4_e2m1fn_x2",
    ),
    "int4": (lambda: holding(torch.empty(4, dtype=torch.uint4)), "held: safetensors has no torch.uint4"),
    "meta": (lambda: nn.Linear(2, 2, device="meta"), "weight: a meta tensor has no bits: materialize"),
    "offloaded": (offloaded, "weight: accelerate has offloaded it"),
    "lazy": (lambda: nn.LazyLinear(2), "weight: a lazy parameter without a shape yet: run one forward pass"),
    "freed": (freed, "weight: its storage was freed"),
    "zero-3": (zero_3, "weight: DeepSpeed ZeRO-3 keeps a placeholder here: gather"),
    "flat": (lambda: marked(_is_flat_param=True), "weight: FSDP1 keeps its parameters in flat shards: use FSDP2"),
    "tensor-parallel": (lambda: marked(tensor_model_parallel=True, partition_dim=0), "a part of a tensor-parallel"),
    "expert-parallel": (lambda: marked(allreduce=False), "weight: an expert of a module whose other experts"),
    "4 bit": (lambda: marked(quant_state=object()), "weight: bitsandbytes keeps a part of its value outside"),
    "empty": (nn.ReLU, "the module has no parameters or buffers"),
    "frozen": (lambda: torch.jit.freeze(torch.jit.script(nn.Linear(2, 2).eval())), "has no parameters or buffers"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
def test_unpublishable_modules_are_refused_in_one_line_that_names_the_tensor(kind: str) -> None:
    make, line = REFUSED[kind]
    with pytest.raises(ModuleError, match=re.escape(line)) as caught:
        LiveTable(make())
    assert "\n" not in str(caught.value)


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_sharded_modules_are_refused_and_replicated_ones_are_looked_through(one_rank: None) -> None:
    def layers() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    plain = names_of(layers())
    assert names_of(DistributedDataParallel(layers())) == plain
    assert names_of(torch.compile(DistributedDataParallel(torch.compile(layers())))) == plain
    for orig in (False, True):
        whole = FullyShardedDataParallel(layers(), device_id=torch.device("cpu"), use_orig_params=orig)
        inside = nn.Sequential(FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu")))
        for module in (whole, inside):
            with pytest.raises(ModuleError, match="FSDP1 keeps its parameters in flat shards"):
                module_table(module)
    with pytest.raises(ModuleError, match=r"publish it with trainer\.fsdp\.publisher.FsdpPublisher"):
        module_table(fully_shard(layers()))


def test_a_tensor_parallel_parameter_whose_partition_is_the_whole_is_published() -> None:
    for module in (marked(tensor_model_parallel=True), marked()):
        module.output_size = module.output_size_per_partition = 2  # type: ignore[assignment]
        assert names_of(module) == ["bias", "weight"]
        module.output_size = 4  # type: ignore[assignment]
        with pytest.raises(ModuleError, match="a part of a tensor-parallel parameter"):
            module_table(module)
    assert names_of(marked(allreduce=False, group_name="ep_size_1")) == ["bias", "weight"]


class PipelineModule(nn.Sequential):
    """Stands for DeepSpeed's class."""


class GeminiDDP(nn.Sequential):
    """Stands for ColossalAI's class."""


def test_modules_that_hold_a_part_of_the_layers_are_refused() -> None:
    with pytest.raises(ModuleError, match="PipelineModule: DeepSpeed's pipeline holds the layers of one stage"):
        module_table(PipelineModule(nn.Linear(2, 2)))
    with pytest.raises(ModuleError, match="GeminiDDP: ColossalAI's Gemini keeps its parameters in chunks"):
        module_table(GeminiDDP(nn.Linear(2, 2)))


def test_weights_compiled_into_code_are_refused() -> None:
    module = torch.compile(nn.Linear(2, 2))
    import torch._inductor.config as inductor  # it imports Triton, which test_triton_kernels must do first

    with inductor.patch(freezing=True), pytest.raises(ModuleError, match=r"torch\._inductor\.config\.freezing"):
        module_table(module)
    assert module_table(module)


def test_memory_that_is_mapped_for_reading_is_refused_by_an_engine(tmp_path: Path) -> None:
    np.zeros(4096, np.float32).tofile(tmp_path / "bits")
    for mode in ("c", "r"):
        with pytest.warns(UserWarning) if mode == "r" else pytest.MonkeyPatch.context():
            module = holding(torch.from_numpy(np.memmap(tmp_path / "bits", np.float32, mode)))
        if mode == "c":
            ModuleEngine(module)
        else:
            with pytest.raises(ModuleError, match="held: its memory is mapped for reading only"):
                ModuleEngine(module)


# ---- names -----------------------------------------------------------------------------------------------------------


def test_names_are_mapped_by_a_mapping_or_a_function_and_none_leaves_out() -> None:
    module = nn.Sequential(nn.Linear(2, 2), Hides(2, 2))
    assert names_of(module, names={"0.weight": "up", "1.bias": None}) == ["0.bias", "1.weight", "up"]
    assert names_of(module, names=lambda key: None if key == "1.bias" else f"model.{key}") == [
        "model.0.bias", "model.0.weight", "model.1.weight",
    ]  # fmt: skip
    wrapped = torch.compile(module)
    assert names_of(wrapped, names={"0.weight": "up", "1.bias": None}) == ["0.bias", "1.weight", "up"]
    assert names_of(wrapped, names={"_orig_mod.0.weight": "up", "_orig_mod.1.bias": None}) == [
        "0.bias",
        "1.weight",
        "up",
    ]
    assert names_of(Dictionary(), names={"_extra_state": None}) == ["weight"]


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ({"wieght": "w"}, "names: the module has no 'wieght'; its state_dict begins bias, weight"),
        ({"weight": 3}, "names: 'weight' is mapped to 3"),
        ({"weight": ""}, "names: 'weight' is mapped to ''"),
        (lambda key: "same", "two tensors of the module are named 'same' (weight and bias)"),
        (lambda key: None, "the module has no parameters or buffers"),
    ],
)
def test_invalid_names_are_refused(names: Any, line: str) -> None:
    with pytest.raises(ModuleError, match=re.escape(line)):
        module_table(nn.Linear(2, 2), names)


def test_tied_tensors_are_one_row_and_every_key_knows_which() -> None:
    table = module_table(Tied())
    assert [spec.name for spec in table.entries] == ["three"] or [s.name for s in table.entries] == ["one.weight"]
    assert set(table.names) == {"one.weight", "two.weight", "three"} and len(set(table.names.values())) == 1


def test_a_misfit_lists_some_names_of_both_sides_and_a_remedy() -> None:
    one, two = (list(module_rows(nn.Sequential(*(nn.Linear(n, n) for _ in range(3))))) for n in (2, 3))
    assert describe_misfit(one, two) == (
        "'0.bias' is (F32, [2]) in it, and (F32, [3]) in the module (and 5 more): load the same architecture and dtypes"
    )
    other = list(module_rows(nn.ModuleDict({"head": nn.Linear(2, 2)})))
    line = describe_misfit(one, other)
    assert line.startswith(
        "it has '0.bias' (F32, [2]), '0.weight' (F32, [2, 2]), '1.bias' (F32, [2]) and 3 more, which"
    )
    assert "the module has 'head.bias' (F32, [2]), 'head.weight' (F32, [2, 2]), which it has not" in line
    assert line.endswith(", or map state_dict keys to the published names with names=")
    adapters = [*one, *module_rows(nn.ModuleDict({"0": nn.ModuleDict({"lora_A": nn.Linear(2, 1)})}))]
    assert "or merge adapters into their base before publishing" in describe_misfit(adapters, one)


# ---- PEFT, known by the names of its classes -------------------------------------------------------------------------


class BaseTunerLayer:
    """Stands for PEFT's class."""


class LoraLinear(nn.Module, BaseTunerLayer):
    """Stands for PEFT's class: adapters of a base layer, unless they are merged into it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.merged = base, False
        self.lora_A = nn.ModuleDict({"default": nn.Linear(4, 1, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(1, 4, bias=False)})

    def merge(self) -> None:
        with torch.no_grad():
            self.base_layer.weight += self.lora_B["default"].weight @ self.lora_A["default"].weight
        self.merged = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        base = self.base_layer(x)
        return base if self.merged else base + self.lora_B["default"](self.lora_A["default"](x))


class ModulesToSaveWrapper(nn.Module):
    """Stands for PEFT's class: a copy that is trained in the place of a module."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original_module, self.active_adapters = original, ["default"]
        self.modules_to_save = nn.ModuleDict({"default": nn.Linear(4, 4)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.modules_to_save["default"](x)


class BaseTuner(nn.Module):
    """Stands for PEFT's class."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class PeftModel(nn.Module):
    """Stands for PEFT's class."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = BaseTuner(model)


def peft() -> tuple[PeftModel, LoraLinear]:
    lora = LoraLinear(nn.Linear(4, 4))
    return PeftModel(nn.Sequential(lora, ModulesToSaveWrapper(nn.Linear(4, 4)))), lora


def test_adapters_are_published_under_the_inner_names_until_they_are_merged() -> None:
    model, lora = peft()
    inner = names_of(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    adapters = ["0.lora_A.default.weight", "0.lora_B.default.weight"]
    assert names_of(model) == sorted([*inner, *adapters])
    assert {k: v.data_ptr() for k, v in ((s.name, t) for s, t in module_rows(model).items())}["1.weight"] == (
        model.base_model.model[1].modules_to_save["default"].weight.data_ptr()
    )
    table = LiveTable(model)
    lora.merge()
    assert names_of(model) == inner
    with pytest.raises(ModuleError, match="no longer those it had at first"):
        table()


def test_merged_adapters_reach_a_module_without_adapters() -> None:
    model, lora = peft()
    lora.merge()
    plain, run, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), Run(), torch.randn(3, 4)
    commit_path(run, ModuleEngine(plain), anchor(run, 0, version_of(model)), shuffle=1)
    assert torch.equal(plain(x), model.base_model.model(x))
