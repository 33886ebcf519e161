"""Clears infinities and NaNs that a version with non-finite weights left in vLLM's key-value cache.

Infinite or NaN weights produce such keys and values, and they stay in the cache: a freed block is overwritten later,
but attention also reads the slots of a block that no token has filled yet, with weight 0, and 0 times NaN is NaN. So a
finite version after a non-finite one would still answer with NaN, though its weights are exact. The rank writers count
non-finite weights, during generation; the cache is read only after a version that had some.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from p2psync.delta.tensors import TensorSpec, Units

logger = logging.getLogger(__name__)
#: Masks of the exponent bits, which are all set in an infinity or NaN.
_EXPONENT_MASKS = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000, "F64": 0x7FF0000000000000}
#: Dtypes of the one-byte formats that vLLM stores as plain bytes.
_BYTES = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
#: Units that are searched at a time, so that no copy of a whole cache is made.
_SEARCH_UNITS = 1 << 24


def count_nonfinite(spec: TensorSpec, units: Units) -> int:
    """Returns how many of a tensor's units are infinite or NaN; 0 for a dtype that has neither."""
    if (ones := _EXPONENT_MASKS.get(spec.dtype)) is None:
        return 0
    mask = units.dtype.type(ones)
    return int(np.count_nonzero((units & mask) == mask))


def clear_nonfinite(caches: Iterable[object], dtype: str) -> int:
    """Sets infinite and NaN values in caches to 0, and returns how many there were.

    caches: tensors, or lists of them. dtype: as vLLM names the dtype of a cache. Finite values stay, for the requests
    that run.
    """
    found = 0
    for cache in _tensors(caches):
        kind = cache.dtype if cache.is_floating_point() else _BYTES.get(dtype)
        if kind is None:
            logger.warning("p2psync: a cache of %s (%s) cannot be searched for NaN", cache.dtype, dtype)
            continue
        longest = max(range(cache.dim()), key=cache.shape.__getitem__)
        rows = max(1, _SEARCH_UNITS * cache.shape[longest] // cache.numel())
        for part in torch.split(cache, rows, dim=longest):
            nonfinite = ~torch.isfinite(part.view(kind).float())
            found += int(nonfinite.sum())
            # One-byte float formats do not support masks.
            (part.view(torch.uint8) if part.itemsize == 1 else part).masked_fill_(nonfinite, 0)
    return found


def _tensors(caches: Iterable[object]) -> Iterator[torch.Tensor]:
    """Yields each tensor once. Layers of several kinds may share memory, under other shapes."""
    seen: set[object] = set()
    for cache in caches:
        for tensor in cache if isinstance(cache, (list, tuple)) else [cache]:
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                view = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
                if view not in seen:
                    seen.add(view)
                    yield tensor
