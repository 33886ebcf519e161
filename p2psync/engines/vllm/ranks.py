"""Keeps the ranks of one engine in step: all of them write a version in the same pause, or none does.

Rank 0 has the node and decodes. It sends the edits to a thread of each other rank, over a process group of their own,
during generation. Each rank checks them against its live bits and prepares its writes. In the pause vLLM calls the main
threads of all ranks together; these agree over a second group on what to write, and then on whether all could.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import IntEnum
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from p2psync.delta.tensors import Units
from p2psync.engines.vllm.live_map import LiveMap, decode, encode
from p2psync.engines.vllm.rank_writer import Edit, RankWriter
from p2psync.errors import EngineError, UnvouchedError

logger = logging.getLogger(__name__)
# A rank waits for the next command without a limit.
_FOREVER = timedelta(days=3650)


class _RankCommand(IntEnum):
    """A command of rank 0 to the other ranks."""

    STOP = 0
    PREPARE = 1
    SCRUB = 2


class EngineRanks:
    """Coordinates this rank's writer with those of the other ranks. All ranks construct theirs at the same time."""

    def __init__(self, rank: int, size: int) -> None:
        """rank: among the `size` ranks of the engine. If there are several, they are all of torch's default group.

        Raises `EngineError` if that group has other ranks too.
        """
        self.rank, self.size = rank, size
        self.writer: RankWriter
        self._background_group = self._pause_group = None
        if size > 1:
            if dist.get_world_size() != size:
                raise EngineError("the engine shares its process group with others: run one engine per replica")
            self._background_group, self._pause_group = (
                dist.new_group(backend="gloo", timeout=_FOREVER) for _ in range(2)
            )

    def gather_maps(self, mine: LiveMap) -> list[LiveMap]:
        """Exchanges the live gather_maps: every rank calls it with its own and gets those of all ranks."""
        if self.size == 1:
            return [mine]
        data = np.frombuffer(encode(mine), np.uint8).copy()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([data.size]), group=self._pause_group)
        most = max(int(size) for size in sizes)
        padded = torch.zeros(most, dtype=torch.uint8)
        padded[: data.size] = torch.from_numpy(data)
        found = [torch.zeros(most, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(found, padded, group=self._pause_group)
        return [decode(part[: int(size)].numpy().tobytes()) for part, size in zip(found, sizes, strict=True)]

    # ---- during generation -----------------------------------------------------------------------------------------

    def prepare(self, edits: Sequence[Edit]) -> None:
        """Makes all ranks prepare the edits; at rank 0. Raises `EngineError` if one of them cannot."""
        self._send(_RankCommand.PREPARE, edits)
        self._run_and_agree(lambda: self.writer.prepare(edits))

    def is_intact(self) -> bool:
        """Returns, at rank 0, whether the live bits of all ranks are those written last."""
        self._send(_RankCommand.SCRUB)
        try:
            self._run_and_agree(self._check_intact)
        except EngineError:
            return False
        return True

    def stop(self) -> None:
        """Ends the other ranks' threads; at rank 0."""
        self._send(_RankCommand.STOP)

    def follow(self, on_trouble: Callable[[str], None]) -> threading.Thread:
        """Starts, at the other ranks, a thread that runs rank 0's commands until rank 0 stops or is gone."""
        thread = threading.Thread(target=self._follow, args=(on_trouble,), name="p2psync-rank", daemon=True)
        thread.start()
        return thread

    def _follow(self, on_trouble: Callable[[str], None]) -> None:
        try:
            while True:
                command, edits = self._receive()
                if command == _RankCommand.STOP:
                    return
                work = self._check_intact if command == _RankCommand.SCRUB else partial(self.writer.prepare, edits)
                try:
                    self._run_and_agree(work)
                except EngineError as error:
                    on_trouble(str(error))
        except RuntimeError as error:
            on_trouble(f"rank 0 is gone: {error}")

    def _check_intact(self) -> None:
        if not self.writer.is_intact():
            raise EngineError("live weights are not what was written last")

    def _run_and_agree(self, work: Callable[[], None]) -> None:
        """Runs this rank's part. Raises `EngineError` unless every rank could run its own."""
        failed: Exception | None = None
        try:
            work()
        except (EngineError, MemoryError, ValueError, RuntimeError) as error:
            failed = error
        if not _is_true_everywhere(self._background_group, failed is None):
            self.writer.discard()
            raise EngineError(str(failed) if failed is not None else "another rank could not prepare the version")

    def _send(self, command: _RankCommand, edits: Sequence[Edit] = ()) -> None:
        if self.size > 1:
            parts = _pack(edits)
            dist.broadcast(torch.tensor([command, *(part.numel() for part in parts)]), 0, group=self._background_group)
            for part in parts:
                dist.broadcast(part, 0, group=self._background_group)

    def _receive(self) -> tuple[_RankCommand, list[Edit]]:
        head = torch.zeros(1 + len(_COMMAND_DTYPES), dtype=torch.int64)
        dist.broadcast(head, 0, group=self._background_group)
        parts = [torch.empty(size, dtype=dtype) for size, dtype in zip(head[1:].tolist(), _COMMAND_DTYPES, strict=True)]
        for part in parts:
            dist.broadcast(part, 0, group=self._background_group)
        tensors = self.writer.tensors
        return _RankCommand(int(head[0])), _unpack(parts, [spec.unit for spec in tensors])

    # ---- in the pause ----------------------------------------------------------------------------------------------

    def broadcast_decision(self, decision: int) -> int:
        """Returns rank 0's decision, at all ranks."""
        if self.size == 1:
            return decision
        said = torch.tensor([decision])
        dist.broadcast(said, 0, group=self._pause_group)
        return int(said)

    def is_true_anywhere(self, mine: bool) -> bool:
        """Returns whether `mine` is true at some rank. All ranks must call it."""
        return not _is_true_everywhere(self._pause_group, not mine)

    def write(self) -> None:
        """Writes the prepared edits, on all ranks or on none.

        Raises `EngineError` if all weights are as they were, `UnvouchedError` if some rank's weights are unknown.
        """
        try:
            self._write()
        except RuntimeError as error:
            # Another rank ended: no agreement is possible.
            raise UnvouchedError(f"a rank was lost within a commit ({error}): restart this engine") from error

    def _write(self) -> None:
        failed: Exception | None = None
        whole = True
        try:
            self.writer.write()
        except EngineError as error:
            failed = error
        except Exception as error:  # the undoing failed too
            failed, whole = error, False
        if _is_true_everywhere(self._pause_group, failed is None):
            return
        if failed is None:
            try:
                self.writer.undo()
            except Exception as error:  # whatever it is: these bits are lost
                failed, whole = error, False
        reason = str(failed) if failed is not None else "another rank could not write the version; nothing was changed"
        if not _is_true_everywhere(self._pause_group, whole):
            raise UnvouchedError(f"the weights were left between two versions ({reason}): restart this engine")
        raise EngineError(reason)


#: Dtypes of the arrays of a command: where blocks are, their positions, old bits, new bits.
_COMMAND_DTYPES = (torch.int64, torch.int32, torch.uint8, torch.uint8)


def _is_true_everywhere(group: dist.ProcessGroup | None, good: bool) -> bool:
    """Returns whether `good` is true at all ranks."""
    if group is None:
        return good
    answer = torch.tensor([int(good)])
    dist.all_reduce(answer, dist.ReduceOp.MIN, group=group)
    return bool(answer)


def _pack(edits: Sequence[Edit]) -> list[torch.Tensor]:
    table = np.array(
        [(e.tensor, e.start, e.count, e.positions is not None, e.new.size) for e in edits], np.int64
    ).reshape(-1, 5)
    positions = [e.positions for e in edits if e.positions is not None]
    arrays = [
        table.reshape(-1),
        np.concatenate(positions).view(np.int32) if positions else np.empty(0, np.int32),
        _joined([e.old for e in edits]),
        _joined([e.new for e in edits]),
    ]
    return [torch.from_numpy(array) for array in arrays]


def _joined(units: Sequence[Units]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.concatenate([np.ascontiguousarray(u).view(np.uint8) for u in units]) if units else np.empty(0, np.uint8)


def _unpack(parts: Sequence[torch.Tensor], units: Sequence[np.dtype[np.unsignedinteger]]) -> list[Edit]:
    table, positions, old, new = (part.numpy() for part in parts)
    edits, at, byte = [], 0, 0
    for tensor, start, count, sparse, entries in table.reshape(-1, 5).tolist():
        where = None
        if sparse:
            where = positions[at : at + entries].view(np.uint32)
            at += entries
        end = byte + entries * units[tensor].itemsize
        edits.append(
            Edit(tensor, start, count, where, _cut(old, byte, end, units[tensor]), _cut(new, byte, end, units[tensor]))
        )
        byte = end
    return edits


def _cut(data: Units, begin: int, end: int, unit: np.dtype[np.unsignedinteger]) -> Units:
    # Bits of another width may lie before these.
    return data[begin:end].copy().view(unit) if begin % unit.itemsize else data[begin:end].view(unit)
