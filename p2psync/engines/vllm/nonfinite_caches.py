"""What a version that was not a number left behind.

Weights that are infinite or NaN make keys and values that are, and vLLM's cache keeps them: a block that was freed is
written over, but attention also reads the slots of a block that no token has filled yet, with weight 0, and 0 times NaN
is NaN. So a sound version after a wild one would go on to answer with NaN, though its weights are exact. Whoever writes
weights counts those that are not finite, which costs little beside generation; only when such a version is left is the
cache read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from p2psync.delta.tensors import TensorSpec, Units

logger = logging.getLogger(__name__)
#: Exponents of which all bits are set.
_ALL_ONES = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000, "F64": 0x7FF0000000000000}
#: How formats of a byte, in which vLLM keeps keys and values as bare bytes, are to be read.
_BYTES = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
#: Units that are looked at at once, so that no copy of a cache is made.
_AT_ONCE = 1 << 24


def count_nonfinite(spec: TensorSpec, units: Units) -> int:
    """How many of a tensor's units are infinite or NaN; 0 for a dtype without such."""
    if (ones := _ALL_ONES.get(spec.dtype)) is None:
        return 0
    mask = units.dtype.type(ones)
    return int(np.count_nonzero((units & mask) == mask))


def clear_nonfinite(caches: Iterable[object], dtype: str) -> int:
    """Set to 0 what is infinite or NaN in caches (tensors, or lists of them); `dtype` as vLLM names that of a cache.

    Finite values stay: running requests may go on with theirs. Returns how many values were set.
    """
    found = 0
    for cache in _tensors(caches):
        kind = cache.dtype if cache.is_floating_point() else _BYTES.get(dtype)
        if kind is None:
            logger.warning("p2psync: a cache of %s (%s) cannot be searched for NaN", cache.dtype, dtype)
            continue
        longest = max(range(cache.dim()), key=cache.shape.__getitem__)
        rows = max(1, _AT_ONCE * cache.shape[longest] // cache.numel())
        for part in torch.split(cache, rows, dim=longest):
            nonfinite = ~torch.isfinite(part.view(kind).float())
            found += int(nonfinite.sum())
            # Formats of a byte know no masks.
            (part.view(torch.uint8) if part.itemsize == 1 else part).masked_fill_(nonfinite, 0)
    return found


def _tensors(caches: Iterable[object]) -> Iterator[torch.Tensor]:
    """Each once. Caches of several kinds of layers may lie in the same memory, as other shapes."""
    seen: set[object] = set()
    for cache in caches:
        for tensor in cache if isinstance(cache, (list, tuple)) else [cache]:
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                view = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
                if view not in seen:
                    seen.add(view)
                    yield tensor
