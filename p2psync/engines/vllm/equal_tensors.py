"""Tensors that a model's loader leaves out because others are equal to them, such as a tied output matrix.

vLLM ties an output matrix to the embedding if it is equal when it is loaded. Loaded anew with a version in which the
two differ, the model would be another one. So such a version is refused: a copy must stay a copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.tensors import TensorSpec, Units
from p2psync.engines.vllm.rank_writer import Edit
from p2psync.errors import EngineError


def find_equal_tensors(
    left_out: Iterable[TensorSpec], weights: Mapping[TensorSpec, Units]
) -> dict[TensorSpec, TensorSpec]:
    """For each tensor that is left out, one that is not and has the same shape and bits, where there is one."""
    lonely = {spec: _digest(weights[spec]) for spec in left_out}
    shapes = {(spec.dtype, spec.shape) for spec in lonely}
    held = {
        (spec.dtype, spec.shape, _digest(units)): spec
        for spec, units in weights.items()
        if spec not in lonely and (spec.dtype, spec.shape) in shapes
    }
    pairs = {spec: held.get((spec.dtype, spec.shape, digest)) for spec, digest in lonely.items()}
    return {spec: twin for spec, twin in pairs.items() if twin is not None}


def check_still_equal(
    equal_tensors: Mapping[TensorSpec, TensorSpec], numbers: Mapping[TensorSpec, int], edits: Sequence[Edit]
) -> None:
    """Raises `EngineError` if edits of equal tensors would make them differ. numbers: by which edits name tensors."""
    for spec, twin in equal_tensors.items():
        here, there = (_changes(edits, numbers[one]) for one in (spec, twin))
        if not all(np.array_equal(a, b) for a, b in zip(here, there, strict=True)):
            raise EngineError(
                f"{spec.name} is no longer equal to {twin.name}, with which this engine has tied it: restart the "
                "engine from a checkpoint in which they differ"
            )


def _changes(edits: Sequence[Edit], tensor: int) -> tuple[NDArray[np.int64], Units]:
    """Where a tensor's units change, rising, and their new bits."""
    places, units = [np.empty(0, np.int64)], []
    for edit in sorted((edit for edit in edits if edit.tensor == tensor), key=lambda edit: edit.start):
        changed = np.flatnonzero(edit.old != edit.new)
        offsets = changed if edit.positions is None else edit.positions[changed].astype(np.int64)
        places.append(edit.start + offsets)
        units.append(edit.new[changed])
    return np.concatenate(places), np.concatenate(units) if units else np.empty(0, np.uint8)


def _digest(units: Units) -> bytes:
    return hashlib.blake2b(units.tobytes(), digest_size=16).digest()
