"""Computes the digest of a tensor on its device by a Triton kernel, as `delta.digest.digest_units` does on a CPU.

Each program mixes one tile and writes three sums of 64 bits: the low half of the mix in two parts, so that no carry is
lost, and the high half. It reads each unit once; 64-bit multiplications limit its rate (80 instructions a unit for
sm_90).
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
import triton
import triton.language as tl

from p2psync.delta.digest import MODULUS, tensor_key
from p2psync.delta.tensors import TensorSpec

TILE = 4096
#: Units summed by one launch: the sums of tiles then fit into 64 bits.
_SPAN = 1 << 30
_WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def sum_tiles(units, count, start, key, sums, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums the mix over one tile of `count` units; the first unit has index `start`. key: two numbers, low first."""
    lane = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = lane < count
    raw = tl.load(units + lane, mask=live, other=0)
    width: tl.constexpr = units.dtype.element_ty.primitive_bitwidth
    bits = raw.to(tl.uint64)
    if width < 64:
        bits = bits & ((1 << width) - 1)
    index = (start + lane).to(tl.uint64)
    low = tl.load(key).to(tl.uint64) + index * 0x9E3779B97F4A7C15 + bits * 0x9E3779B1
    low = (low ^ (low >> 27)) * 0x3C79AC492BA7B653
    low = (low ^ (low >> 33)) * 0x1C69B3F74AC4AE35
    low = low ^ (low >> 27)
    high = tl.load(key + 1).to(tl.uint64) + index * 0xD1B54A32D192ED03 + bits * 0x85EBCA77
    high = (high ^ (high >> 30)) * 0xBF58476D1CE4E5B9
    high = (high ^ (high >> 27)) * 0x94D049BB133111EB
    high = high ^ (high >> 31)
    nothing = tl.zeros([TILE], tl.uint64)
    out = sums + tl.program_id(0).to(tl.int64) * 3
    tl.store(out, tl.sum(tl.where(live, low & 0xFFFFFFFF, nothing), 0).to(tl.int64, bitcast=True))
    tl.store(out + 1, tl.sum(tl.where(live, low >> 32, nothing), 0).to(tl.int64, bitcast=True))
    tl.store(out + 2, tl.sum(tl.where(live, high, nothing), 0).to(tl.int64, bitcast=True))


def digest_tensor(spec: TensorSpec, bits: torch.Tensor) -> int:
    """Returns the digest of a flat tensor of integers (`SIGNED`), mod 2^128. Waits for the device once."""
    key = torch.from_numpy(tensor_key(spec).view(np.int64).copy()).to(bits.device)
    total = 0
    for start in range(0, bits.numel(), _SPAN):
        part = bits[start : start + _SPAN]
        tiles = -(-part.numel() // TILE)
        sums = torch.empty(tiles, 3, dtype=torch.int64, device=bits.device)
        with torch.cuda.device(bits.device) if bits.is_cuda else nullcontext():
            sum_tiles[(tiles,)](part, part.numel(), start, key, sums, TILE=TILE, num_warps=_WARPS)
        low, middle, high = sums.cpu().numpy().view(np.uint64).sum(axis=0, dtype=np.uint64).tolist()
        total += low + (middle << 32) + (high << 64)
    return total % MODULUS
