"""The group of ranks that publish together, and the collectives between them, which carry bytes.

The process group is one of gloo, on the CPU, whatever the training uses: its calls may run in a thread next to the
training, and wait for no stream of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist

from p2psync.errors import P2PSyncError, RanksError

T = TypeVar("T")


class RankGroup(Protocol):
    """The ranks that publish together, numbered from 0. Every call is made by all of them, in the same order.

    Every method raises `RanksError` once one of them is lost.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

    def broadcast(self, data: bytes = b"") -> bytes:
        """Returns the bytes that rank 0 gave. data: ignored at the other ranks."""

    def gather(self, data: bytes) -> list[bytes]:
        """Returns the bytes that each rank gave, by rank."""

    def exchange(self, data: Sequence[bytes]) -> list[bytes]:
        """Returns the bytes that each rank gave for this one. data: for each rank, the bytes to send to it."""


def run_collectively(ranks: RankGroup, work: Callable[[], T]) -> T:
    """Call `work` at every rank; returns its result here once all ranks have done theirs.

    Raises what `work` raised here, or `RanksError` if it failed at another rank: so all ranks go on, or none does.
    """
    failed: Exception | None = None
    try:
        done = work()
    except Exception as error:  # any failure must reach the others, or they wait for ever
        failed = error
    failure = b"" if failed is None else (_line(failed) or "it failed").encode()
    answers = ranks.gather(failure)
    if failed is not None:
        raise failed
    for rank, answer in enumerate(answers):
        if answer:
            raise RanksError(f"rank {rank}: {answer.decode(errors='replace')}")
    return done


def _line(error: Exception) -> str:
    text = str(error) if isinstance(error, P2PSyncError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:500]


class GlooRankGroup:
    """`RankGroup` of torch.distributed."""

    def __init__(self, members: Sequence[int], timeout: float) -> None:
        """members: global ranks. To be called by every rank of the default group, also by those that are no members.
        timeout: seconds that a call may wait for the slowest rank."""
        self._group: dist.ProcessGroup | None = dist.new_group(
            list(members), backend="gloo", timeout=timedelta(seconds=timeout)
        )
        self.rank = list(members).index(dist.get_rank()) if dist.get_rank() in members else -1
        self.size = len(members)

    def broadcast(self, data: bytes = b"") -> bytes:
        """See `RankGroup`."""

        def call(group: dist.ProcessGroup) -> bytes:
            size = torch.tensor([len(data)], dtype=torch.int64)
            dist.broadcast(size, group=group, group_src=0)
            found = _tensor(data) if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(found, group=group, group_src=0)
            return _bytes(found)

        return self._call(call)

    def gather(self, data: bytes) -> list[bytes]:
        """See `RankGroup`."""

        def call(group: dist.ProcessGroup) -> list[bytes]:
            sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(data)], dtype=torch.int64), group=group)
            most = max(int(size) for size in sizes)
            if not most:
                return [b""] * self.size
            given = torch.zeros(most, dtype=torch.uint8)
            given[: len(data)] = _tensor(data)
            found = [torch.empty(most, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(found, given, group=group)
            return [_bytes(one[: int(size)]) for one, size in zip(found, sizes, strict=True)]

        return self._call(call)

    def exchange(self, data: Sequence[bytes]) -> list[bytes]:
        """See `RankGroup`."""

        def call(group: dist.ProcessGroup) -> list[bytes]:
            mine = [len(part) for part in data]
            theirs = torch.empty(self.size, dtype=torch.int64)
            dist.all_to_all_single(theirs, torch.tensor(mine, dtype=torch.int64), group=group)
            sizes = [int(size) for size in theirs]
            found = torch.empty(sum(sizes), dtype=torch.uint8)
            dist.all_to_all_single(found, _tensor(b"".join(data)), sizes, mine, group=group)
            return [_bytes(part) for part in torch.split(found, sizes)]

        return self._call(call)

    def close(self) -> None:
        """Close the connections to all ranks: calls that wait for this one there raise `RanksError`. Idempotent."""
        group, self._group = self._group, None
        if group is not None and self.rank >= 0 and dist.is_initialized():
            dist.destroy_process_group(group)

    def _call(self, work: Callable[[dist.ProcessGroup], T]) -> T:
        if self._group is None:
            raise RanksError("a rank is gone, or this one was closed: start all ranks again")
        try:
            return work(self._group)
        except RuntimeError as error:
            line = " ".join(str(error).split())[:200]
        # Ranks that are no neighbours of the lost one notice it only if every rank closes its connections; and these
        # are closed once no object refers to the group, so the error, whose frames do, must be gone by here.
        self.close()
        raise RanksError(f"a rank is gone, or took too long: nothing was published ({line})")


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _bytes(tensor: torch.Tensor) -> bytes:
    data: bytes = tensor.numpy().tobytes()
    return data
