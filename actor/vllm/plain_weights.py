"""Keeps a model's weights unpacked, in engines whose weights are written while they serve.

On CPUs vLLM packs matrices for its kernels (oneDNN, AMX, ZenDNN, grouped experts, causal convolutions), and then
empties the parameters or computes with the packed copy. A commit writes parameters, so the model must not compute with
a copy. This module changes engines that use this backend; others in the same process stay as they are.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

NAME = "p2psync"


def uses_backend(vllm_config: Any) -> bool:
    """Returns whether this engine's configuration names the backend."""
    transfer = getattr(vllm_config, "weight_transfer_config", None)
    return transfer is not None and transfer.backend == NAME


def is_loading_for_backend() -> bool:
    """Returns whether the model that this thread builds or loads now belongs to an engine that uses the backend."""
    from vllm.config import get_current_vllm_config_or_none

    return uses_backend(get_current_vllm_config_or_none())


def keep_plain_weights() -> None:
    """Switches packing off. Again: no effect."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers import utils
    from vllm.model_executor.layers.fused_moe.oracle import unquantized

    if not hasattr(utils.dispatch_cpu_unquantized_gemm, "__wrapped__"):
        utils.dispatch_cpu_unquantized_gemm = _plain_gemm(utils.dispatch_cpu_unquantized_gemm)
        unquantized.backend_to_kernel_cls = _plain_experts(unquantized.backend_to_kernel_cls)


def _plain_gemm(packing: Any) -> Any:
    @functools.wraps(packing)
    def dispatch(layer: Any, remove_weight: bool) -> None:
        if not is_loading_for_backend():
            packing(layer, remove_weight)
            return
        if layer.weight.ndim != 2 and _has_native_convolution():
            # This kernel needs packed weights. The engine finds them later, and refuses the model.
            packing(layer, remove_weight)
            return
        layer.cpu_linear = torch.nn.functional.linear

    return dispatch


def _has_native_convolution() -> bool:
    """Returns whether vLLM's convolutions read packed weights (see its `gdn_attention`)."""
    from vllm.platforms import CpuArchEnum, current_platform

    arm = current_platform.get_cpu_architecture() == CpuArchEnum.ARM
    return torch.cpu._is_amx_tile_supported() or (arm and bool(torch.cpu.get_capabilities().get("bf16", False)))


def _plain_experts(kernels: Any) -> Any:
    @functools.wraps(kernels)
    def choose(backend: Any) -> list[Any]:
        found: list[Any] = kernels(backend)
        return [_plain(kind) for kind in found] if backend.name == "CPU" and is_loading_for_backend() else found

    return choose


@functools.cache
def _plain(kind: Any) -> Any:
    """Returns a class of experts whose weights stay plain: it packs the experts of a batch for that batch."""
    from vllm._custom_ops import cpu_fused_moe, cpu_prepack_moe_weight

    class PlainExperts(kind):  # type: ignore[misc]  # vLLM is Any where it is not installed
        def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
            self._pad_moe_intermediate(layer)

        def apply(
            self,
            output: torch.Tensor,
            hidden_states: torch.Tensor,
            w1: torch.Tensor,
            w2: torch.Tensor,
            topk_weights: torch.Tensor,
            topk_ids: torch.Tensor,
            activation: Any,
            global_num_experts: int,
            expert_map: torch.Tensor | None,
            a1q_scale: torch.Tensor | None,
            a2_scale: torch.Tensor | None,
            workspace13: torch.Tensor,
            workspace2: torch.Tensor,
            expert_tokens_meta: Any,
            apply_router_weight_on_input: bool,
        ) -> None:
            biases = [self.w1_bias, self.w2_bias]
            if expert_map is None:
                taken, indices = torch.unique(topk_ids, return_inverse=True)
                topk_ids, w1, w2 = indices.to(topk_ids.dtype), w1[taken], w2[taken]
                biases = [None if bias is None else bias[taken] for bias in biases]
            cpu_fused_moe(
                output,
                hidden_states,
                cpu_prepack_moe_weight(w1, self.isa),
                cpu_prepack_moe_weight(w2, self.isa),
                *biases,
                topk_weights,
                topk_ids,
                activation.value,
                self.isa,
                apply_router_weight_on_input,
            )

    PlainExperts.__name__ = f"Plain{kind.__name__}"
    return PlainExperts
