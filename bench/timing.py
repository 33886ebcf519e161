"""The timed work over one delta, on one core or on several, each time between two readings of both copies.

Several cores work on disjoint tensors, each with an encoder of its own; what decodes is the same chunks, divided alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numba
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from bench.deltas import Bits, Delta
from p2psync.delta.algebra import apply_block, apply_with_digest, invert
from p2psync.delta.block import Block, block_count, block_range
from p2psync.delta.container import ChunkEncoder, EncodedChunk, decode_chunk
from p2psync.delta.digest import MODULUS
from p2psync.delta.extract import Extraction
from p2psync.errors import DigestMismatchError
from p2psync.store.encoding import DELTA_BLOCK, DELTA_CHUNK


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


class Work:
    """What is timed. The old copy is patched in place and put back; use as a context manager.

    Raises `DigestMismatchError` from `apply` and `check` if the chunks do not lead to the new weights.
    """

    def __init__(
        self, delta: Delta, profile: str, threads: int, block_units: int = DELTA_BLOCK, chunk_bytes: int = DELTA_CHUNK
    ) -> None:
        self._delta = delta
        self._block_units = block_units
        self._options: dict[str, Any] = {
            "block_units": block_units,
            "chunk_bytes": chunk_bytes,
            "profile": profile,
        }
        self._shares = share_rows([old.nbytes for old in delta.olds], threads)
        self._pool = ThreadPoolExecutor(len(self._shares)) if len(self._shares) > 1 else None
        self._chunks: list[list[EncodedChunk]] = [[] for _ in self._shares]
        self._staged: list[list[Block]] = [[] for _ in self._shares]
        self._digests = [0] * len(self._shares)
        self._inverse: list[Block] = []
        self.changed = 0

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    @property
    def payload(self) -> int:
        """Bytes of all chunks."""
        return sum(len(chunk.data) for chunks in self._chunks for chunk in chunks)

    def read(self) -> None:
        """Every word of both copies."""
        self._each(self._read)

    def scan(self) -> None:
        """Positions and steps of all blocks, and nothing else."""
        self._each(self._scan)

    def encode(self) -> None:
        """Scan, digest, coding, and the hash of each chunk."""
        self.changed = sum(self._each(self._encode))

    def first_chunk(self) -> None:
        """Encode and hash until the first chunk is whole."""
        blake3(next(self._encoded(ChunkEncoder(self._delta.rows, **self._options), range(len(self._delta.rows)))).data)

    def apply(self) -> None:
        """Decode every chunk, add it to the old copy in place, and check the change of the digest."""
        self._each(self._apply)

    def stage(self) -> None:
        """Decode every chunk and keep the blocks."""
        self._each(self._stage)

    def commit(self) -> None:
        """Add the kept blocks to the old copy in place, and check the change of the digest."""
        self._each(self._commit)
        self._staged = [[] for _ in self._shares]

    def remember(self) -> None:
        """Keep what undoes the step: a profile may not be decodable against anything but the old copy."""
        self._inverse = [invert(block) for chunks in self._chunks for chunk in chunks for block in self._decoded(chunk)]

    def undo(self) -> None:
        """Put the old copy back."""
        for block in self._inverse:
            apply_block(self._delta.olds[block.row], block)

    def check(self) -> None:
        """Compare every bit of the patched copy with the new one."""
        for old, new in zip(self._delta.olds, self._delta.news, strict=True):
            if not np.array_equal(old, new):
                raise DigestMismatchError("a round of the benchmark did not end in the new weights")

    def _each(self, work: Callable[[int], int]) -> list[int]:
        shares = range(len(self._shares))
        return [work(0)] if self._pool is None else list(self._pool.map(work, shares))

    def _read(self, share: int) -> int:
        olds, news = self._delta.olds, self._delta.news
        return sum(_read_sum(_words(olds[row])) + _read_sum(_words(news[row])) for row in self._shares[share])

    def _scan(self, share: int) -> int:
        found = 0
        for row in self._shares[share]:
            spec = self._delta.rows[row].spec
            extraction = Extraction(row, self._delta.olds[row], self._delta.news[row])
            for index in range(block_count(spec, self._block_units)):
                block = extraction.block(*block_range(spec, self._block_units, index))
                found += 0 if block is None else block.steps.size
        return found

    def _encode(self, share: int) -> int:
        encoder = ChunkEncoder(self._delta.rows, **self._options)
        chunks = []
        for chunk in self._encoded(encoder, self._shares[share]):
            blake3(chunk.data).digest()
            chunks.append(chunk)
        self._chunks[share], self._digests[share] = chunks, encoder.digest_change
        return encoder.changed

    def _encoded(self, encoder: ChunkEncoder, rows: Iterable[int]) -> Iterator[EncodedChunk]:
        for row in rows:
            yield from encoder.add(row, self._delta.olds[row], self._delta.news[row])
        yield from encoder.finish()

    def _decoded(self, chunk: EncodedChunk) -> list[Block]:
        return decode_chunk(chunk.data, self._delta.rows, self._block_units, lambda row: self._delta.olds[row])

    def _apply(self, share: int) -> int:
        return self._add(share, (block for chunk in self._chunks[share] for block in self._decoded(chunk)))

    def _stage(self, share: int) -> int:
        self._staged[share] = [block for chunk in self._chunks[share] for block in self._decoded(chunk)]
        return 0

    def _commit(self, share: int) -> int:
        return self._add(share, self._staged[share])

    def _add(self, share: int, blocks: Iterable[Block]) -> int:
        rows, olds = self._delta.rows, self._delta.olds
        change = sum(apply_with_digest(rows[block.row].spec, olds[block.row], block) for block in blocks)
        if change % MODULUS != self._digests[share]:
            raise DigestMismatchError("a round of the benchmark did not end in the new weights")
        return 0


def measure_speed(
    delta: Delta, profile: str, threads: int, rounds: int, progress: Callable[[str], None], **options: int
) -> tuple[Speed, int]:
    """Rounds of reading, scanning, encoding and applying; and the bytes of the payload.

    Raises `DigestMismatchError` if a round does not end in exactly the new weights.
    """
    with Work(delta, profile, threads, **options) as work:
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


def share_rows(sizes: list[int], shares: int) -> list[list[int]]:
    """Row numbers in at most `shares` groups of nearly the same size, rising within each; largest first to the
    emptiest."""
    groups: list[list[int]] = [[] for _ in range(shares)]
    loads = [0] * shares
    for row in sorted(range(len(sizes)), key=lambda row: -sizes[row]):
        least = loads.index(min(loads))
        groups[least].append(row)
        loads[least] += sizes[row]
    return [sorted(group) for group in groups if group]


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


def _words(units: Bits) -> NDArray[np.uint64]:
    return units[: units.size // 4 * 4].view(np.uint64)
