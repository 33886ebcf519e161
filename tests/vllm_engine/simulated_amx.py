"""A processor with AMX, as far as vLLM asks, on one without it (or with it).

vLLM's operators that pack matrices for AMX have portable kernels, so the packed matrices are really used here. Two
kernels would end the process where AMX is missing: attention goes on to see the processor as it is, and the grouped
experts pack and compute by their portable kernel, which packs, too, in another layout.
"""

from __future__ import annotations


def simulate_amx() -> None:
    """Makes vLLM in this process find AMX from now on."""
    import torch
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import X86CPUUnquantizedExperts
    from vllm.v1.attention.backends import cpu_attn

    real = torch.cpu._is_amx_tile_supported
    if real():  # there is AMX, or it was simulated already
        return
    choose = cpu_attn._get_attn_isa

    def as_it_is(*args: object, **options: object) -> str:
        torch.cpu._is_amx_tile_supported = real
        try:
            return str(choose(*args, **options))
        finally:
            torch.cpu._is_amx_tile_supported = _yes

    torch.cpu._is_amx_tile_supported = _yes
    cpu_attn._get_attn_isa = as_it_is
    X86CPUUnquantizedExperts.isa = "vec"


def hide_amx() -> None:
    """Makes vLLM in this process find no AMX from now on."""
    import torch

    torch.cpu._is_amx_tile_supported = lambda: False


def _yes() -> bool:
    return True
