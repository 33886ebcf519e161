"""Decides which tensors can be published: those whose one plain storage holds all that the module computes with.

A version is bits in a storage. A tensor whose value lies partly elsewhere (quantization state, other ranks, a disk), or
whose storage is missing, is refused with the reason and a remedy.
"""

from __future__ import annotations

import sys
from functools import lru_cache

import torch
from torch import nn

from p2psync.engines.module.storage_views import StorageView

#: Cached class names: a model has some tens of classes.
_CLASSES_KEPT = 1024
_FSDP1 = (
    "FSDP1 keeps its parameters in flat shards: use FSDP2 (torch.distributed.fsdp.fully_shard) with FsdpPublisher, or "
    "gather them into an unsharded copy and give that"
)
_FSDP2 = "the module is sharded: publish it with trainer.fsdp.publisher.FsdpPublisher; a subscriber needs it unsharded"
_UNQUANTIZED = "give the module as it was before it was quantized"


def class_names(thing: object) -> frozenset[str]:
    """Returns the names of an object's class and bases, which tell classes of libraries without an import."""
    return _names_of(type(thing).__mro__)


@lru_cache(maxsize=_CLASSES_KEPT)
def _names_of(bases: tuple[type, ...]) -> frozenset[str]:
    return frozenset(base.__name__ for base in bases)


def module_refusal(module: nn.Module, *, dtensors: bool = False) -> str:
    """Returns why a module of this class cannot be read, "" if it can. dtensors: whether FSDP2 is supported."""
    names = class_names(module)
    if "FullyShardedDataParallel" in names or "_fsdp_wrapped_module" in module._modules:
        return _FSDP1
    if "FSDPModule" in names and not dtensors:
        return _FSDP2
    if "PipelineModule" in names and getattr(module, "num_stages", 0) != 1:
        return "DeepSpeed's pipeline holds the layers of one stage: gather all into one module and give that"
    if "GeminiDDP" in names:
        return "ColossalAI's Gemini keeps its parameters in chunks: gather them into an unsharded copy and give that"
    if "OptimizedModule" in names and getattr(sys.modules.get("torch._inductor.config"), "freezing", False):
        return (
            "torch._inductor.config.freezing compiles the weights into code, which no later version reaches: turn it "
            "off"
        )
    return ""


def tensor_refusal(tensor: torch.Tensor, owner: nn.Module | None = None) -> str:
    """Returns why a tensor cannot be published and what to do about it, "" if it can.

    owner: the module that has registered it.
    """
    return _placeholder(tensor) or _partition(tensor, owner) or _quantized(tensor) or _layout(tensor, owner)


def storage_view(tensor: torch.Tensor) -> StorageView | None:
    """Returns where a plain tensor's bits lie; None if it is empty."""
    if not tensor.numel():
        return None
    return StorageView(tensor.data_ptr(), tensor.element_size(), tuple(tensor.shape), tuple(tensor.stride()))


def _placeholder(tensor: torch.Tensor) -> str:
    """Refuses parameters whose values other ranks hold."""
    if hasattr(tensor, "ds_id") or hasattr(tensor, "ds_shape"):
        return (
            "DeepSpeed ZeRO-3 keeps a placeholder here: gather the parameters (deepspeed.zero.GatheredParameters) into "
            "an unsharded copy of the module and give that, or train with stage 2"
        )
    names = class_names(tensor)
    if "FlatParameter" in names or hasattr(tensor, "_is_flat_param") or hasattr(tensor, "_fsdp_flattened"):
        return _FSDP1
    return _FSDP2 if "DTensor" in names else ""


def _partition(tensor: torch.Tensor, owner: nn.Module | None) -> str:
    """Refuses parts of tensor- or expert-parallel parameters, as in Megatron: other ranks hold the rest."""
    whole = _is_whole(owner)
    if whole is False or (whole is None and getattr(tensor, "tensor_model_parallel", False)):
        return (
            "a part of a tensor-parallel parameter, of which other ranks hold the rest: give a module of tensor "
            "parallel size 1, or gather the parts into an unsharded copy"
        )
    if getattr(tensor, "allreduce", True) is False and getattr(tensor, "group_name", "") != "ep_size_1":
        return (
            "an expert of a module whose other experts other ranks hold (allreduce is False): give a module of expert "
            "parallel size 1, or gather the experts into an unsharded copy"
        )
    return ""


def _is_whole(owner: nn.Module | None) -> bool | None:
    """Returns whether a module's partition sizes equal its whole sizes; None if it has no partition."""
    parts = [name for name in vars(owner) if name.endswith("_per_partition")] if owner is not None else []
    sizes = [(getattr(owner, part), getattr(owner, part.removesuffix("_per_partition"), None)) for part in parts]
    return all(part == whole for part, whole in sizes) if sizes else None


def _quantized(tensor: torch.Tensor) -> str:
    kind = type(tensor)
    if kind.__module__.split(".")[0] == "bitsandbytes" or hasattr(tensor, "quant_state") or hasattr(tensor, "SCB"):
        return f"bitsandbytes keeps a part of its value outside of it ({kind.__name__}): {_UNQUANTIZED}"
    if tensor.is_quantized:
        return f"a quantized tensor of {tensor.dtype} has scales outside of its bits: {_UNQUANTIZED}"
    return ""


def _layout(tensor: torch.Tensor, owner: nn.Module | None) -> str:
    """Refuses tensors that are not plain strided memory."""
    if nn.parameter.is_lazy(tensor):
        return "a lazy parameter without a shape yet: run one forward pass first"
    if tensor.is_meta:
        offloaded = owner is not None and hasattr(owner, "_hf_hook")
        return (
            "accelerate has offloaded it and left a meta tensor: load the model without offloading, or call "
            "accelerate.hooks.remove_hook_from_submodules"
            if offloaded
            else "a meta tensor has no bits: materialize the module first (to_empty, from_pretrained)"
        )
    if tensor.is_nested:
        return "a nested tensor: register its values and offsets as tensors of their own"
    if not _is_plain(type(tensor)):
        name = type(tensor).__name__
        return f"a {name} computes by its own rules, and not with one storage alone: give a module of plain tensors"
    if tensor.layout != torch.strided:
        return f"a {tensor.layout} tensor: register its values and indices as tensors of their own, or its dense form"
    if tensor.is_conj() or tensor.is_neg():
        how = "resolve_conj" if tensor.is_conj() else "resolve_neg"
        return f"a lazy view, whose bits are not its value: replace it with .{how}().clone()"
    return _memory(tensor)


def _memory(tensor: torch.Tensor) -> str:
    view = storage_view(tensor)
    if view is None:
        return ""
    if view.repeats():
        return "an expanded or overlapping view, whose elements share memory: replace it with .clone()"
    storage = tensor.untyped_storage()
    if not view.start or view.stop > storage.data_ptr() + storage.nbytes():
        return "its storage was freed: load its values before"
    return ""


def _is_plain(kind: type[torch.Tensor]) -> bool:
    """Returns whether a class of tensors computes as `torch.Tensor` does."""
    plain = (torch.Tensor.__torch_function__.__func__, nn.Parameter.__torch_function__)  # type: ignore[attr-defined]
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    return function in plain and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
