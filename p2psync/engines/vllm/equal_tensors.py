"""Tensors that a model's loader leaves out because they equal others, such as a tied output matrix.

vLLM ties an output matrix to the embedding if the two are equal when it loads the model. A model loaded from a version
in which they differ would compute with both, which this engine cannot. So it refuses such a version.
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
    """Returns, for each tensor that is left out, a loaded one with the same shape and bits, where there is one."""
    left_out_digests = {spec: _digest(weights[spec]) for spec in left_out}
    shapes = {(spec.dtype, spec.shape) for spec in left_out_digests}
    held = {
        (spec.dtype, spec.shape, _digest(units)): spec
        for spec, units in weights.items()
        if spec not in left_out_digests and (spec.dtype, spec.shape) in shapes
    }
    pairs = {spec: held.get((spec.dtype, spec.shape, digest)) for spec, digest in left_out_digests.items()}
    return {spec: equal for spec, equal in pairs.items() if equal is not None}


def check_still_equal(
    equal_tensors: Mapping[TensorSpec, TensorSpec], numbers: Mapping[TensorSpec, int], edits: Sequence[Edit]
) -> None:
    """Raises `EngineError` if the edits would make equal tensors differ. numbers: of the tensors in `edits`."""
    for spec, equal in equal_tensors.items():
        here, there = (_changes(edits, numbers[one]) for one in (spec, equal))
        if not all(np.array_equal(a, b) for a, b in zip(here, there, strict=True)):
            raise EngineError(
                f"{spec.name} is no longer equal to {equal.name}, with which this engine has tied it: restart the "
                "engine from a checkpoint in which they differ"
            )


def _changes(edits: Sequence[Edit], tensor: int) -> tuple[NDArray[np.int64], Units]:
    """Returns the indices of a tensor's units that change, rising, and their new bits."""
    indices, units = [np.empty(0, np.int64)], []
    for edit in sorted((edit for edit in edits if edit.tensor == tensor), key=lambda edit: edit.start):
        changed = np.flatnonzero(edit.old != edit.new)
        offsets = changed if edit.positions is None else edit.positions[changed].astype(np.int64)
        indices.append(edit.start + offsets)
        units.append(edit.new[changed])
    return np.concatenate(indices), np.concatenate(units) if units else np.empty(0, np.uint8)


def _digest(units: Units) -> bytes:
    return hashlib.blake2b(units.tobytes(), digest_size=16).digest()
