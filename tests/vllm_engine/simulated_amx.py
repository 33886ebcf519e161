"""A processor with AMX, as far as vLLM asks, on one without it (or with it).

vLLM's packing operators for AMX have portable kernels, so what they pack is really computed with here; only attention,
whose AMX kernel would end the process, goes on to see the processor as it is.
"""

from __future__ import annotations


def simulate_amx() -> None:
    """From now on vLLM in this process finds AMX."""
    import torch
    from vllm.v1.attention.backends import cpu_attn

    real = torch.cpu._is_amx_tile_supported
    choose = cpu_attn._get_attn_isa

    def as_it_is(*args: object, **options: object) -> str:
        torch.cpu._is_amx_tile_supported = real
        try:
            return str(choose(*args, **options))
        finally:
            torch.cpu._is_amx_tile_supported = lambda: True

    torch.cpu._is_amx_tile_supported = lambda: True
    cpu_attn._get_attn_isa = as_it_is
