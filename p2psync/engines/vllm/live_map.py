"""The live map: where every unit of every checkpoint tensor lies in the live parameters of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2psync.delta.tensors import TensorSpec
from p2psync.engines.vllm.strided_runs import BlockPart, StridedPiece, count_missing, intersect
from p2psync.errors import EngineError


class PlacedPiece(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a tensor, and the number of the parameter in which it lies."""

    parameter: int
    piece: StridedPiece


class LiveMap(msgspec.Struct, frozen=True):
    """The places of a checkpoint's tensors on one rank.

    tensors: the checkpoint's tensors, sorted. held: for each of them its pieces on this rank. parameters: the names of
    the parameters, by number. constant: number of live units that come from no tensor, such as padding.
    """

    tensors: list[TensorSpec]
    held: list[list[PlacedPiece]]
    parameters: list[str]
    constant: int

    def parts(
        self, tensor: int, start: int, count: int, positions: NDArray[np.uint32] | None
    ) -> Iterator[tuple[int, BlockPart]]:
        """Yields where a block of a tensor lies here, as (parameter, part); see `strided_runs.intersect`."""
        for held in self.held[tensor]:
            for part in intersect(held.piece, start, count, positions):
                yield held.parameter, part

    def used(self) -> list[int]:
        """Returns the parameters, by number, in which some tensor lies."""
        return sorted({held.parameter for pieces in self.held for held in pieces})


def encode(live: LiveMap) -> bytes:
    """Encodes a map for another rank."""
    return msgspec.msgpack.encode(live)


def decode(data: bytes) -> LiveMap:
    """Decodes what `encode` returned."""
    return msgspec.msgpack.decode(data, type=LiveMap)


def check_whole(maps: Sequence[LiveMap]) -> list[TensorSpec]:
    """Returns the tensors that the loader leaves out on every rank, such as a tied output matrix.

    Raises `EngineError` if a tensor is loaded only in part, or the ranks do not know the same tensors.
    """
    tensors = maps[0].tensors
    if any(live.tensors != tensors for live in maps):
        raise EngineError("the ranks read different checkpoints: give all of them the same files")
    dropped = []
    for number, spec in enumerate(tensors):
        pieces = [held.piece for live in maps for held in live.held[number]]
        lost = count_missing(pieces, spec.count)
        if lost and lost == spec.count:
            dropped.append(spec)
        elif lost:
            raise EngineError(
                f"{spec.name}: the model's loader leaves out {lost} of its {spec.count} units: such a model cannot be "
                "kept in step by deltas"
            )
    return dropped


def build_live_map(
    parameters: Mapping[str, list[tuple[int, StridedPiece]]], tensors: Sequence[TensorSpec], constant: int
) -> LiveMap:
    """Builds the map from each parameter's pieces, given as (tensor, piece)."""
    held: list[list[PlacedPiece]] = [[] for _ in tensors]
    for number, pieces in enumerate(parameters.values()):
        for tensor, piece in pieces:
            held[tensor].append(PlacedPiece(number, piece))
    return LiveMap(list(tensors), held, list(parameters), constant)
