"""The timed work over one delta, on one core or on several, each time between two readings of both copies."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import numba
import numpy as np
from numpy.typing import NDArray

from p2psync.bench.deltas import Bits, ModelDelta
from p2psync.delta.algebra import apply_block, apply_with_digest, invert
from p2psync.delta.block import Block, block_count, block_range
from p2psync.delta.container import iter_chunk
from p2psync.delta.digest import MODULUS
from p2psync.delta.extract import Extraction
from p2psync.errors import DigestMismatchError
from p2psync.parallel import in_parallel, limit_threads
from p2psync.store.encoding import DELTA_BLOCK_UNITS, Encoding

T = TypeVar("T")
#: Units that a thread reads at a time.
_PART = 4 << 20


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are bytes of one copy of the model a second; a ratio is (time to read both copies) / (time of the work).

    The lists hold one figure a round.
    """

    profile: str
    threads: int
    read_rates: list[float]
    scan_ratios: list[float]
    """Scan and extract, without digest."""
    encode_ratios: list[float]
    """Scan, digest, coding and the hash of each chunk."""
    decode_ratios: list[float]
    """Decode, add in place, digest."""
    encode_extra_bytes: int | None
    """Highest resident memory while encoding, less that before, chunks kept; None where the kernel does not tell."""
    decode_extra_bytes: int | None

    @property
    def read_rate(self) -> float:
        """Median rate of reading both copies."""
        return statistics.median(self.read_rates)

    @property
    def scan_ratio(self) -> float:
        """Median."""
        return statistics.median(self.scan_ratios)

    @property
    def encode_ratio(self) -> float:
        """Median."""
        return statistics.median(self.encode_ratios)

    @property
    def decode_ratio(self) -> float:
        """Median."""
        return statistics.median(self.decode_ratios)


class CodecWork:
    """The timed calls: those of a trainer and an actor, on so many threads. The old copy is patched in place and put
    back; use as a context manager.

    Raises `DigestMismatchError` from `apply`, `commit` and `check` if the chunks do not lead to the new weights.
    """

    def __init__(self, delta: ModelDelta, profile: str, threads: int, *, with_history: bool = False) -> None:
        """with_history: the receiver has the delta's history, so that it may be used."""
        self._delta = delta
        histories = delta.history.of_tensors(delta.rows) if with_history and delta.history is not None else None
        self._history = None if histories is None else histories.__getitem__
        self._profile = profile
        self._threads = threads
        self.chunks: list[bytes] = []
        self._staged: list[list[Block]] = []
        self._inverse: list[Block] = []
        self._digest_change = 0
        self.changed = 0

    def __enter__(self) -> CodecWork:
        limit_threads(self._threads)
        return self

    def __exit__(self, *_: object) -> None:
        limit_threads(None)

    @property
    def payload(self) -> int:
        """Bytes of all chunks."""
        return sum(map(len, self.chunks))

    def read(self) -> None:
        """Every word of both copies."""
        _run(
            _read_sum, [_words(part) for units in self._delta.old_bits + self._delta.new_bits for part in _parts(units)]
        )

    def scan(self) -> None:
        """Positions and steps of all blocks, and nothing else."""
        _run(lambda place: self._scan(*place), self._blocks())

    def encode(self) -> None:
        """Scan, digest, coding, and the hash of each chunk, into memory."""
        sink = _Sink()
        with Encoding(sink, self._delta.rows, profile=self._profile, history=self._history) as encoding:
            self._encode(encoding)
            encoding.finish()
        self.chunks, self.changed, self._digest_change = sink.chunks, encoding.changed, encoding.digest_change

    def first_chunk(self) -> None:
        """Encode and hash until the first chunk is whole."""
        with suppress(_FirstChunkError), Encoding(_FirstSink(), self._delta.rows, profile=self._profile) as encoding:
            self._encode(encoding)
            encoding.finish()

    def apply(self) -> None:
        """Decode every chunk, add it to the old copy in place, and check the change of the digest."""
        self._check_digest(in_parallel(lambda data: self._add(self._decoded(data)), self.chunks))

    def stage(self) -> None:
        """Decode every chunk and keep the blocks."""
        self._staged = list(in_parallel(lambda data: list(self._decoded(data)), self.chunks))

    def commit(self) -> None:
        """Add the kept blocks to the old copy in place, and check the change of the digest."""
        self._check_digest(in_parallel(self._add, self._staged))
        self._staged = []

    def remember(self) -> None:
        """Keep what undoes the step: a profile may not be decodable against anything but the old copy."""
        self._inverse = [invert(block) for data in self.chunks for block in self._decoded(data)]

    def undo(self) -> None:
        """Restores the old copy."""
        for block in self._inverse:
            apply_block(self._delta.old_bits[block.row], block)

    def check(self) -> None:
        """Compare every bit of the patched copy with the new one."""
        for old, new in zip(self._delta.old_bits, self._delta.new_bits, strict=True):
            if not np.array_equal(old, new):
                raise DigestMismatchError("a round of the benchmark did not end in the new weights")

    def _encode(self, encoding: Encoding) -> None:
        for row, (old, new) in enumerate(zip(self._delta.old_bits, self._delta.new_bits, strict=True)):
            encoding.take(row, old, new)

    def _blocks(self) -> list[tuple[int, int, int]]:
        specs = [row.spec for row in self._delta.rows]
        return [
            (row, *block_range(spec, DELTA_BLOCK_UNITS, index))
            for row, spec in enumerate(specs)
            for index in range(block_count(spec, DELTA_BLOCK_UNITS))
        ]

    def _scan(self, row: int, start: int, count: int) -> None:
        Extraction(row, self._delta.old_bits[row], self._delta.new_bits[row]).block(start, count)

    def _decoded(self, data: bytes) -> Iterator[Block]:
        return iter_chunk(
            data, self._delta.rows, DELTA_BLOCK_UNITS, lambda row: self._delta.old_bits[row], self._history
        )

    def _add(self, blocks: Iterable[Block]) -> int:
        rows, old_bits = self._delta.rows, self._delta.old_bits
        return sum(apply_with_digest(rows[block.row].spec, old_bits[block.row], block) for block in blocks)

    def _check_digest(self, changes: Iterable[int]) -> None:
        if (sum(changes) - self._digest_change) % MODULUS:
            raise DigestMismatchError("a round of the benchmark did not end in the new weights")


class _Sink:
    """Keeps chunks."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def append(self, data: bytes) -> None:
        """See `Sink`."""
        self.chunks.append(data)


class _FirstChunkError(Exception):
    """The first chunk is there."""


class _FirstSink:
    """Wants one chunk."""

    def append(self, data: bytes) -> None:
        """See `Sink`."""
        raise _FirstChunkError


def _run(work: Callable[[T], object], items: Iterable[T]) -> None:
    for _ in in_parallel(work, items):
        pass


def measure_speed(
    delta: ModelDelta, profile: str, threads: int, rounds: int, progress: Callable[[str], None]
) -> tuple[Speed, int]:
    """Rounds of reading, scanning, encoding and applying; and the bytes of the payload.

    Raises `DigestMismatchError` if a round does not end in exactly the new weights.
    """
    with CodecWork(delta, profile, threads) as work:
        work.read()
        work.scan()
        encode_extra = peak_extra(work.encode)
        work.remember()
        decode_extra = peak_extra(work.apply)
        work.check()
        work.undo()
        reads: list[float] = []
        ratios: dict[str, list[float]] = {"scan": [], "encode": [], "apply": []}
        for turn in range(rounds):
            progress(f"{delta.name}: {profile}, {threads} core(s), round {turn + 1} of {rounds}")
            before = timed(work.read)
            for name, figures in ratios.items():
                seconds, after = timed(getattr(work, name)), timed(work.read)
                figures.append((before + after) / 2 / seconds)
                reads.append(before)
                before = after
            work.undo()
        speed = Speed(
            profile=profile,
            threads=threads,
            read_rates=[delta.model_bytes / seconds for seconds in reads],
            scan_ratios=ratios["scan"],
            encode_ratios=ratios["encode"],
            decode_ratios=ratios["apply"],
            encode_extra_bytes=encode_extra,
            decode_extra_bytes=decode_extra,
        )
        return speed, work.payload


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_extra(work: Callable[[], object]) -> int | None:
    """Bytes by which resident memory rose at most while `work` ran, or None where Linux does not tell."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        work()
        return max(0, _status("VmHWM") - before)
    except OSError:
        work()
        return None


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _read_sum(words: NDArray[np.uint64]) -> int:
    total = np.uint64(0)
    for i in range(words.size):
        total += words[i]
    return total  # type: ignore[return-value]


def _parts(units: Bits) -> Iterator[Bits]:
    for start in range(0, units.size, _PART):
        yield units[start : start + _PART]


def _words(units: Bits) -> NDArray[np.uint64]:
    return units[: units.size // 4 * 4].view(np.uint64)
