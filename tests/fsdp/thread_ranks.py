"""Ranks as threads of one process, over arrays: the same work as over a process group, many times a second."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from fsdp_parts import KEY

from p2psync.delta.tensors import TensorSpec, Units
from p2psync.errors import RanksError
from p2psync.protocol.versions import Position
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.trainer.fsdp.rank_builder import RankBuilder
from p2psync.trainer.fsdp.rank_layout import RankLayout
from p2psync.trainer.fsdp.rank_snapshot import RankSnapshot
from p2psync.trainer.fsdp.unit_ranges import UnitRanges

T = TypeVar("T")


class Meeting:
    """A barrier of threads, with a board on which each leaves its data."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.board: list[Sequence[bytes]] = [()] * size


class ThreadRanks:
    """`RankGroup` of one thread."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, len(meeting.board)

    def broadcast(self, data: bytes = b"") -> bytes:
        """See `RankGroup`."""
        return self._meet([data])[0][0]

    def gather(self, data: bytes) -> list[bytes]:
        """See `RankGroup`."""
        return [one[0] for one in self._meet([data])]

    def exchange(self, data: Sequence[bytes]) -> list[bytes]:
        """See `RankGroup`."""
        return [one[self.rank] for one in self._meet(data)]

    def hang_up(self) -> None:
        """Fail all calls from now on, as a lost rank does."""
        self._meeting.barrier.abort()

    def _meet(self, data: Sequence[bytes]) -> list[Sequence[bytes]]:
        try:
            self._meeting.board[self.rank] = data
            self._meeting.barrier.wait(60)
            found = list(self._meeting.board)
            self._meeting.barrier.wait(60)
        except threading.BrokenBarrierError as error:
            raise RanksError("a rank is gone") from error
        return found


class Trained:
    """Whole tensors, cut into shards as they are held."""

    def __init__(self, specs: Sequence[TensorSpec], ranks: int, seed: int = 0) -> None:
        self.specs = sorted(specs)
        self.rng = np.random.default_rng(seed)
        self.bits: dict[TensorSpec, Units] = {}
        for spec in self.specs:
            top = 1 << 8 * spec.width
            self.bits[spec] = self.rng.integers(0, top, spec.count, spec.unit.newbyteorder("="))
        self.held = [UnitRanges.of(self._places(rank, ranks)) for rank in range(ranks)]

    def _places(self, rank: int, ranks: int) -> list[tuple[int, int, int]]:
        places = []
        for row, spec in enumerate(self.specs):
            rows = spec.shape[0]
            each, inner = -(-rows // ranks), spec.count // rows if rows else 0
            places.append((row, min(rows, rank * each) * inner, min(rows, (rank + 1) * each) * inner))
        return places

    def step(self, share: float) -> None:
        """Change about this share of the units."""
        for bits in self.bits.values():
            where = np.flatnonzero(self.rng.random(bits.size) < share)
            steps = self.rng.choice([1, -1, 2, 1 << 7], where.size).astype(np.int64)
            bits[where] += steps.astype(bits.dtype)

    def units(self, spec: TensorSpec) -> Units:
        """See `p2psync.trainer.versions.source.Source`."""
        return self.bits[spec]


class ThreadedRanks:
    """Rank builders in threads, each with a store of its own."""

    def __init__(self, place: Path, trained: Trained) -> None:
        self.place, self.trained = place, trained
        self.layout = RankLayout(trained.specs, trained.held)
        self.open()

    def open(self) -> None:
        """Open stores and snapshots."""
        size = self.layout.ranks
        self.meeting = Meeting(size)
        self.stores = [Store(self.place / str(rank) / "packs") for rank in range(size)]
        self.rank_builders = [
            RankBuilder(
                ThreadRanks(self.meeting, rank),
                self.layout,
                self.stores[rank],
                RankSnapshot(self.place / str(rank) / "copy", self.layout.specs, self.layout.kept(rank)),
                KEY if rank == 0 else None,
            )
            for rank in range(size)
        ]

    def close(self) -> None:
        """Close them."""
        for rank_builder, store in zip(self.rank_builders, self.stores, strict=True):
            rank_builder.snapshot.close()
            store.close()

    def everywhere(self, work: Callable[[RankBuilder], T]) -> list[T | Exception]:
        """Call `work` at all ranks at once; returns each rank's result, or the exception that it raised."""

        def guarded(rank_builder: RankBuilder) -> T | Exception:
            try:
                return work(rank_builder)
            except Exception as error:
                return error

        with ThreadPoolExecutor(len(self.rank_builders)) as pool:
            return list(pool.map(guarded, self.rank_builders))

    def part(self, rank: int) -> Callable[[int, int, int], Units]:
        """Returns a function that reads a rank's shards, and fails for other units."""
        held, trained = self.trained.held[rank], self.trained

        def read(row: int, start: int, stop: int) -> Units:
            assert held.units(row, start, stop) == stop - start
            return trained.bits[trained.specs[row]][start:stop]

        return read

    def first(self, run: str, version: int = 0) -> list[Pack]:
        """Write a version out whole at all ranks."""
        return self._packs(lambda m: m.first(self.part(m.ranks.rank), run, 1, version))

    def delta(self, profile: str) -> list[Pack]:
        """Make a delta at all ranks."""

        def make(rank_builder: RankBuilder) -> Pack | None:
            base = rank_builder.snapshot.position
            assert base is not None
            made = rank_builder.delta(self.part(rank_builder.ranks.rank), base, profile=profile, epoch=1)
            return made[0] if made is not None else None

        return self._packs(make)

    def anchor(self, position: Position) -> list[Pack]:
        """Write the version of the snapshots out whole."""
        return self._packs(lambda m: m.anchor(position))

    def _packs(self, work: Callable[[RankBuilder], Pack | None]) -> list[Pack]:
        made = self.everywhere(work)
        for one in made:
            if isinstance(one, Exception):
                raise one
        return [one for one in made if isinstance(one, Pack)]
