"""The ranks of one engine, kept in step: all of them write a version in the same pause, or none does.

Rank 0 has the node and decodes. What is decoded goes to the other ranks over a process group of its own, to a thread
beside generation, where each checks it against its live bits and makes its writes ready. In the pause the ranks' main
threads, which vLLM calls together, agree over another group: on what to write, and then on whether all of them could.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import IntEnum

import numpy as np
import torch
import torch.distributed as dist

from p2psync.delta.tensors import Units
from p2psync.engines.vllm.live_map import LiveMap, decode, encode
from p2psync.engines.vllm.rank_writer import Edit, RankWriter
from p2psync.errors import EngineError, UnvouchedError

logger = logging.getLogger(__name__)
# A rank waits for the next version for as long as it takes.
_FOREVER = timedelta(days=3650)


class _Order(IntEnum):
    """What rank 0 has the others do."""

    STOP = 0
    PREPARE = 1
    SCRUB = 2


class Ranks:
    """This rank's hand, and how it goes along with the others'. All ranks make theirs at the same time."""

    def __init__(self, rank: int, size: int) -> None:
        """rank: among the `size` ranks of the engine, which are all of torch's default group if there are several."""
        self.rank, self.size = rank, size
        self.writer: RankWriter
        self._back = self._front = None
        if size > 1:
            if dist.get_world_size() != size:
                raise EngineError("the engine shares its process group with others: run one engine per replica")
            self._back, self._front = (dist.new_group(backend="gloo", timeout=_FOREVER) for _ in range(2))

    def maps(self, mine: LiveMap) -> list[LiveMap]:
        """The maps of all ranks, at all of them."""
        if self.size == 1:
            return [mine]
        data = np.frombuffer(encode(mine), np.uint8).copy()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([data.size]), group=self._front)
        most = max(int(size) for size in sizes)
        padded = torch.zeros(most, dtype=torch.uint8)
        padded[: data.size] = torch.from_numpy(data)
        found = [torch.zeros(most, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(found, padded, group=self._front)
        return [decode(part[: int(size)].numpy().tobytes()) for part, size in zip(found, sizes, strict=True)]

    # ---- beside generation -----------------------------------------------------------------------------------------

    def prepare(self, edits: Sequence[Edit]) -> None:
        """At rank 0: have all ranks make ready to write. Raises `EngineError` if one of them cannot."""
        self._tell(_Order.PREPARE, edits)
        self._answer(lambda: self.writer.prepare(edits))

    def sound(self) -> bool:
        """At rank 0: whether the live bits of all ranks are what was written last."""
        self._tell(_Order.SCRUB)
        try:
            self._answer(self._look)
        except EngineError:
            return False
        return True

    def stop(self) -> None:
        """At rank 0: let the other ranks' threads end."""
        self._tell(_Order.STOP)

    def follow(self, on_trouble: Callable[[str], None]) -> threading.Thread:
        """At the other ranks: a thread that does what rank 0 says until it says stop, or is gone."""
        thread = threading.Thread(target=self._follow, args=(on_trouble,), name="p2psync-rank", daemon=True)
        thread.start()
        return thread

    def _follow(self, on_trouble: Callable[[str], None]) -> None:
        try:
            while True:
                order, edits = self._hear()
                if order == _Order.STOP:
                    return
                try:
                    self._answer(self._look if order == _Order.SCRUB else lambda: self.writer.prepare(edits))  # noqa: B023
                except EngineError as error:
                    on_trouble(str(error))
        except RuntimeError as error:
            on_trouble(f"rank 0 is gone: {error}")

    def _look(self) -> None:
        if not self.writer.sound():
            raise EngineError("live weights are not what was written last")

    def _answer(self, work: Callable[[], None]) -> None:
        """Do this rank's part, and learn whether every rank could do its own. Raises `EngineError` if not."""
        failed: Exception | None = None
        try:
            work()
        except (EngineError, MemoryError, ValueError, RuntimeError) as error:
            failed = error
        if not _all(self._back, failed is None):
            self.writer.drop()
            raise EngineError(str(failed) if failed is not None else "another rank could not prepare the version")

    def _tell(self, order: _Order, edits: Sequence[Edit] = ()) -> None:
        if self.size > 1:
            parts = _pack(edits)
            dist.broadcast(torch.tensor([order, *(part.numel() for part in parts)]), 0, group=self._back)
            for part in parts:
                dist.broadcast(part, 0, group=self._back)

    def _hear(self) -> tuple[_Order, list[Edit]]:
        head = torch.zeros(1 + len(_PARTS), dtype=torch.int64)
        dist.broadcast(head, 0, group=self._back)
        parts = [torch.empty(size, dtype=dtype) for size, dtype in zip(head[1:].tolist(), _PARTS, strict=True)]
        for part in parts:
            dist.broadcast(part, 0, group=self._back)
        tensors = self.writer.tensors
        return _Order(int(head[0])), _unpack(parts, [spec.unit for spec in tensors])

    # ---- in the pause ----------------------------------------------------------------------------------------------

    def decided(self, decision: int) -> int:
        """What rank 0 decides, at all ranks."""
        if self.size == 1:
            return decision
        said = torch.tensor([decision])
        dist.broadcast(said, 0, group=self._front)
        return int(said)

    def any(self, mine: bool) -> bool:
        """Whether it is so at some rank. To be asked at all of them."""
        return not _all(self._front, not mine)

    def write(self) -> None:
        """Write what was prepared, on all ranks or on none.

        Raises `EngineError` if all is as it was, `UnvouchedError` if nobody can say what some rank holds.
        """
        try:
            self._write()
        except RuntimeError as error:
            # Another rank ended, and nobody is left to agree with.
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
        if _all(self._front, failed is None):
            return
        if failed is None:
            try:
                self.writer.undo()
            except Exception as error:  # whatever it is: these bits are lost
                failed, whole = error, False
        reason = str(failed) if failed is not None else "another rank could not write the version; nothing was changed"
        if not _all(self._front, whole):
            raise UnvouchedError(f"the weights were left between two versions ({reason}): restart this engine")
        raise EngineError(reason)


#: Of what an order carries: where blocks are, their positions, old bits, new bits.
_PARTS = (torch.int64, torch.int32, torch.uint8, torch.uint8)


def _all(group: dist.ProcessGroup | None, good: bool) -> bool:
    """Whether it is so at all ranks."""
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
