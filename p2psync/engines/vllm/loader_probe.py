"""Learns the live map from a model's own loader, by loading tensors whose units encode where they come from.

Theory of operation. Every unit of a group of checkpoint tensors gets a number. The digits of the numbers, as wide as a
unit, are loaded in place of the weights, lowest digit first. After the first pass a live unit holds the lowest digit of
the unit that the loader copied there. A second pass loads that digit with all bits inverted. Then a copied unit has
inverted bits; a unit that the loader does not write, or fills with a constant, is unchanged; any other unit was
computed, and such a loader is refused. Further passes load the higher digits. This needs no knowledge of architectures.

A loader may be called for a part of the tensors at a time, as vLLM's own updates do. So the memory besides the model is
one copy of its live bits, to restore them, and some groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from p2psync.delta.digest import unit_witness
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.engines.module.live_tensors import host_units, torch_dtype
from p2psync.engines.vllm.live_map import LiveMap, build_live_map
from p2psync.engines.vllm.strided_runs import (
    StridedPiece,
    drop_overwritten,
    find_runs,
    group_runs,
    live_rows,
    probe_digits,
    scaled,
    tensor_rows,
)
from p2psync.errors import EngineError

#: Units that are probed at a time; a larger tensor is a group by itself.
GROUP_UNITS = 1 << 25

_ADVICE = "load the model without quantisation, and in the checkpoint's dtype"

#: Conversions that keep all bits and add constant ones: a little-endian F32 of a BF16 is 16 zero bits and its bits.
WIDENED = {(torch.bfloat16, torch.float32)}

#: A model's loader: takes named tensors and returns the names of the parameters that it wrote, or None.
LoadWeights = Callable[[Iterable[tuple[str, torch.Tensor]]], Iterable[str] | None]


def learn_live_map(
    load: LoadWeights,
    parameters: Mapping[str, torch.Tensor],
    tensors: Sequence[TensorSpec],
    weights: Callable[[TensorSpec], Units],
    *,
    group_units: int = GROUP_UNITS,
) -> LiveMap:
    """Learns where `load` puts each of `tensors` in `parameters`, and restores the parameters' bits.

    parameters: everything that the loader may write, contiguous, by the names that it returns; of parameters that share
    memory, one. tensors: TENSOR specs, sorted. weights: returns their bits, which the parameters hold now. group_units:
    units that are probed at a time. Raises `EngineError` where the loader does anything but copy units (cast, scale,
    compute), where it writes a parameter that it does not name, and where a live unit does not hold the mapped bits.
    """
    kept = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    found: dict[str, list[tuple[int, StridedPiece]]] = {name: [] for name in parameters}
    try:
        for group in _groups(tensors, group_units):
            for name, pieces in _learn_group(load, parameters, tensors, group):
                found[name] = _merge_pieces(name, found[name], pieces)
        constant = _check_untouched(parameters, kept, found, tensors)
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(kept[name])
    for name, parameter in parameters.items():
        if not np.array_equal(host_units(parameter), host_units(kept[name])):
            raise EngineError(f"{name} cannot be put back as it was before the loader was asked where weights go")
    live = build_live_map(found, tensors, constant)
    _check_bits(live, parameters, weights)
    return live


def _groups(tensors: Sequence[TensorSpec], most: int) -> Iterator[list[int]]:
    """Yields consecutive tensors of one width, by number, of about `most` units together."""
    group: list[int] = []
    units = 0
    for number, spec in enumerate(tensors):
        if group and (units + spec.count > most or tensors[group[0]].width != spec.width):
            yield group
            group, units = [], 0
        group.append(number)
        units += spec.count
    if group:
        yield group


def _learn_group(
    load: LoadWeights, parameters: Mapping[str, torch.Tensor], tensors: Sequence[TensorSpec], group: Sequence[int]
) -> Iterator[tuple[str, list[tuple[int, StridedPiece]]]]:
    specs = [tensors[number] for number in group]
    firsts = np.cumsum([0, *(spec.count + 1 for spec in specs)])
    passes = max(1, -(-int(firsts[-1]).bit_length() // (8 * specs[0].width)))
    names = _load_digit(load, specs, firsts, 0, inverted=False)
    touched = list(parameters) if names is None else [name for name in parameters if name in names]
    lowest = {name: units_of_width(parameters[name], specs[0]).copy() for name in touched}
    if _load_digit(load, specs, firsts, 0, inverted=True) != names:
        raise EngineError("the model's loader does not write the same parameters each time")
    inverted = {name: units_of_width(parameters[name], specs[0]).copy() for name in touched}
    higher = {name: np.empty((passes - 1, units.size), units.dtype) for name, units in lowest.items()}
    for digit in range(1, passes):
        _load_digit(load, specs, firsts, digit, inverted=False)
        for name in touched:
            higher[name][digit - 1] = units_of_width(parameters[name], specs[0])
    for name in touched:
        try:
            runs = find_runs(lowest.pop(name), inverted.pop(name), higher.pop(name))
            pieces = group_runs(runs, firsts)
        except ValueError as error:
            raise EngineError(f"{name}: {error}: {_ADVICE}") from None
        _check_pieces(name, parameters[name], pieces, specs)
        yield name, [(group[tensor], piece) for tensor, piece in pieces]


def _load_digit(
    load: LoadWeights, specs: Sequence[TensorSpec], firsts: NDArray[np.int64], digit: int, *, inverted: bool
) -> set[str] | None:
    """Loads one digit of all numbers of a group; returns the names of the written parameters."""

    def probes() -> Iterator[tuple[str, torch.Tensor]]:
        for spec, first in zip(specs, firsts.tolist(), strict=False):
            yield (
                spec.name,
                units_to_tensor(
                    spec, probe_digits(first, spec.count, digit, unit_witness(spec.unit), inverted=inverted)
                ),
            )

    with torch.no_grad():
        try:
            names = load(probes())
        except EngineError:
            raise
        except Exception as error:  # whatever a model's loader raises
            why = str(error) or f"{type(error).__name__}, as it takes no weights in the form they have here"
            raise EngineError(f"the model's loader cannot be asked where weights go: {why}") from error
    return None if names is None else set(names)


def units_to_tensor(spec: TensorSpec, units: Units) -> torch.Tensor:
    """Returns a tensor of the spec's dtype and shape over these bits, without a copy."""
    return torch.from_numpy(units.view(f"<i{spec.width}")).view(torch_dtype(spec)).reshape(spec.shape)


def _merge_pieces(
    name: str, before: Sequence[tuple[int, StridedPiece]], pieces: list[tuple[int, StridedPiece]]
) -> list[tuple[int, StridedPiece]]:
    """Returns the pieces of a parameter after another group was loaded.

    Pieces of tied tensors may cover the same units: the one that was loaded last stays.
    """
    if not before or not pieces:
        return [*before, *pieces]
    try:
        return drop_overwritten(before, pieces)
    except ValueError as error:
        raise EngineError(f"{name}: {error}") from None


def units_of_width(parameter: torch.Tensor, spec: TensorSpec | None) -> Units:
    """Returns a parameter's bits in units of a tensor's width, if that is narrower; else (and for None) in its own."""
    units = host_units(parameter)
    return units.view(spec.unit) if spec is not None and units.itemsize > spec.width else units


def _check_pieces(
    name: str, parameter: torch.Tensor, pieces: Sequence[tuple[int, StridedPiece]], specs: Sequence[TensorSpec]
) -> None:
    for tensor, piece in pieces:
        if tensor >= len(specs) or piece.start < 0 or piece.end > specs[tensor].count:
            raise EngineError(
                f"{name}: the model's loader computes it from the checkpoint, and does not copy: {_ADVICE}"
            )
        kind = torch_dtype(specs[tensor])
        if kind != parameter.dtype and (kind, parameter.dtype) not in WIDENED:
            raise EngineError(
                f"{name}: {specs[tensor].name} is {specs[tensor].dtype} in the checkpoint and {parameter.dtype} in the "
                f"model: {_ADVICE}"
            )


def _check_untouched(
    parameters: Mapping[str, torch.Tensor],
    kept: Mapping[str, torch.Tensor],
    found: Mapping[str, list[tuple[int, StridedPiece]]],
    tensors: Sequence[TensorSpec],
) -> int:
    """Counts live units that no tensor determines, in mapped parameters. Raises `EngineError` if one has changed."""
    constant = 0
    for name, parameter in parameters.items():
        narrowest = min((tensors[tensor] for tensor, _ in found[name]), key=lambda spec: spec.width, default=None)
        now, before = (units_of_width(tensor, narrowest) for tensor in (parameter, kept[name]))
        free = np.ones(now.size, np.bool_)
        for tensor, piece in found[name]:
            scale = tensors[tensor].width // narrowest.width if narrowest is not None else 1
            live_rows(scaled(piece, scale), free)[:] = False
        now, before = now[free], before[free]
        if not np.array_equal(now, before):
            raise EngineError(f"{name}: the model's loader writes units there that come from no tensor")
        constant += now.size if found[name] else 0
    return constant


def _check_bits(live: LiveMap, parameters: Mapping[str, torch.Tensor], weights: Callable[[TensorSpec], Units]) -> None:
    """Raises `EngineError` unless every mapped live unit holds the checkpoint's bits."""
    for spec, held in zip(live.tensors, live.held, strict=True):
        if not held:
            continue
        units = weights(spec)
        for one in held:
            bits = units_of_width(parameters[live.parameters[one.parameter]], spec)
            here, there = tensor_rows(one.piece, units), live_rows(one.piece, bits)
            if not np.array_equal(here, there):
                raise EngineError(
                    f"{spec.name} is not in {live.parameters[one.parameter]} as it is in the checkpoint: the model was "
                    "loaded from other files, or its weights were packed or changed after loading (experts may be by "
                    "their kernel: start vLLM with --moe-backend triton)"
                )
