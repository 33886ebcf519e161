"""How fast, and how small, is the codec? One core, one policy step, beside the rate of merely reading both versions.

Encoding is scan, digest, coding, and BLAKE3 of each chunk; decoding is decoding, adding in place and the digest of what
was added. Each is timed between two readings of both copies, in turns, and reported as a ratio to their mean; what is
printed are medians. Nothing here asserts a time.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numba
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bench.bounds import Bounds, measure_bounds
from bench.policy import draw_step, model_rows
from p2psync.delta.algebra import apply_block, apply_with_digest, invert
from p2psync.delta.block import Block
from p2psync.delta.container import PROFILES, ChunkEncoder, EncodedChunk, decode_chunk, iter_chunk
from p2psync.delta.digest import MODULUS
from p2psync.delta.tensors import Row
from p2psync.errors import DigestMismatchError
from p2psync.store.encoding import DELTA_BLOCK, DELTA_CHUNK

_MEBIBYTE = 1 << 20
_Pair = tuple[NDArray[np.uint16], NDArray[np.uint16]]


class CodecReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, and on what. Rates are bytes of one copy of the model a second; sizes are bytes.

    The lists hold one figure a round; a ratio is (time to read both copies) / (time of the work).
    """

    profile: str
    model_bytes: int
    units: int
    changed: int
    density: float
    seed: int
    block_units: int
    chunk_bytes: int
    rounds: int
    chunks: int
    payload_bytes: int
    bits_per_changed: float
    other_profiles: dict[str, float]
    """Bits per changed unit that the profiles take which were not measured."""
    full_to_payload: float
    read_rates: list[float]
    encode_ratios: list[float]
    decode_ratios: list[float]
    encode_extra_bytes: int | None
    """Highest resident memory while encoding, less that before, chunks kept; None where the kernel does not tell."""
    decode_extra_bytes: int | None
    first_call_seconds: float
    """First encoding and decoding of a small tensor: compilation, or loading what was compiled before."""
    bounds: Bounds
    cpu: str
    cpus_allowed: int

    @property
    def read_rate(self) -> float:
        """Median rate of reading both copies."""
        return statistics.median(self.read_rates)

    @property
    def encode_ratio(self) -> float:
        """Median."""
        return statistics.median(self.encode_ratios)

    @property
    def decode_ratio(self) -> float:
        """Median."""
        return statistics.median(self.decode_ratios)


def run_codec_bench(
    model_bytes: int = 1 << 30,
    density: float = 0.01,
    seed: int = 0,
    *,
    profile: str = "fast",
    block_units: int = DELTA_BLOCK,
    chunk_bytes: int = DELTA_CHUNK,
    rounds: int = 5,
    progress: Callable[[str], None] = lambda line: None,
) -> CodecReport:
    """Draw a bf16 model and one step of it (`bench.policy`), and measure. Takes about three times the model in memory.

    Raises `DigestMismatchError` if a round does not end in exactly the new weights.
    """
    small = model_rows(_MEBIBYTE)
    first = _Work(small, list(draw_step(small, density, seed)), profile, block_units, chunk_bytes)
    first_call = _timed(first.encode) + _timed(first.apply)
    rows = model_rows(model_bytes)
    progress("drawing the weights and a step")
    pairs = list(draw_step(rows, density, seed))
    work = _Work(rows, pairs, profile, block_units, chunk_bytes)
    units = sum(old.size for old, _ in pairs)
    progress("one round to warm up")
    work.read()
    encode_extra = _peak_extra(work.encode)
    work.remember()
    decode_extra = _peak_extra(work.apply)
    work.undo()
    reads, encodes, decodes = [], [], []
    for turn in range(rounds):
        progress(f"round {turn + 1} of {rounds}")
        before, encode, between = _timed(work.read), _timed(work.encode), _timed(work.read)
        apply, after = _timed(work.apply), _timed(work.read)
        work.undo()
        reads += [2 * units / seconds for seconds in (before, between, after)]
        encodes.append((before + between) / 2 / encode)
        decodes.append((between + after) / 2 / apply)
    payload = work.payload
    others = {}
    for name in PROFILES:
        if name != profile:
            progress(f"profile {name}, for its size")
            other = _Work(rows, pairs, name, block_units, chunk_bytes)
            other.encode()
            others[name] = 8 * other.payload / max(1, other.changed)
    return CodecReport(
        profile=profile,
        model_bytes=2 * units,
        units=units,
        changed=work.changed,
        density=work.changed / units,
        seed=seed,
        block_units=block_units,
        chunk_bytes=chunk_bytes,
        rounds=rounds,
        chunks=len(work.chunks),
        payload_bytes=payload,
        bits_per_changed=8 * payload / max(1, work.changed),
        other_profiles=others,
        full_to_payload=2 * units / max(1, payload),
        read_rates=reads,
        encode_ratios=encodes,
        decode_ratios=decodes,
        encode_extra_bytes=encode_extra,
        decode_extra_bytes=decode_extra,
        first_call_seconds=first_call,
        bounds=measure_bounds(pairs),
        cpu=_cpu(),
        cpus_allowed=len(os.sched_getaffinity(0)),
    )


def print_codec_report(report: CodecReport, console: Console | None = None) -> None:
    """The tables: speed beside reading, size beside bounds and published formats, and what it all was measured on."""
    console = console or Console()
    speed = Table("one core", "GB/s of model", "of reading", title="Speed", title_justify="left")
    rate = report.read_rate
    speed.add_row("read both copies", f"{rate / 1e9:.2f}", "1.00")
    for name, ratio in (
        ("encode: scan, digest, code, hash", report.encode_ratio),
        ("decode and apply, with digest", report.decode_ratio),
    ):
        speed.add_row(name, f"{ratio * rate / 1e9:.2f}", f"{ratio:.2f}")
    size = Table("format", "bits per changed unit", title="Size", title_justify="left")
    bounds = report.bounds
    profiles = dict(sorted({report.profile: report.bits_per_changed, **report.other_profiles}.items()))
    for name, bits in (
        ("32-bit index, value", bounds.int32_raw),
        ("LEB128 gaps, values (SparrowRL)", bounds.leb128_raw),
        ("16-bit gaps, values, zstd-1 (near PULSE)", bounds.gaps16_zstd),
        ("LEB128 gaps, XOR, zstd-1 (near NeMo-RL)", bounds.gaps_xor_zstd),
        *((f"p2psync {name}, all headers in", bits) for name, bits in profiles.items()),
        ("entropy of gaps and steps", bounds.entropy),
        ("entropy given the old exponent", bounds.entropy_given_exponent),
    ):
        size.add_row(name, f"{bits:.2f}")
    console.print(speed, size)
    console.print(
        f"payload {report.payload_bytes / 1e6:.2f} MB in {report.chunks} chunks for {report.model_bytes / 1e6:.0f} MB "
        f"({report.full_to_payload:.0f}× less), {100 * report.density:.2f} % of {report.units} units changed"
    )
    console.print(
        f"memory beyond both copies: encoding {_megabytes(report.encode_extra_bytes)}, "
        f"decoding {_megabytes(report.decode_extra_bytes)}; first call {report.first_call_seconds:.1f} s"
    )
    console.print(
        f"bf16 weights and a step drawn from the ulp law (bench/policy.py), seed {report.seed}; blocks of "
        f"{report.block_units} units, chunks of {report.chunk_bytes} bytes; medians of {report.rounds} rounds, each "
        f"between two readings; formats on the first {bounds.units} units; {report.cpu}, "
        f"{report.cpus_allowed} core(s) allowed, one used"
    )


class _Work:
    """The timed work over one drawn step. The old copy is patched in place and put back."""

    def __init__(self, rows: list[Row], pairs: list[_Pair], profile: str, block_units: int, chunk_bytes: int) -> None:
        self._rows, self._pairs = rows, pairs
        self._options: dict[str, Any] = {
            "block_units": block_units,
            "chunk_bytes": chunk_bytes,
            "profile": profile,
        }
        self.chunks: list[EncodedChunk] = []
        self.changed = 0
        self._inverse: list[Block] = []
        self._digest_change = 0

    @property
    def payload(self) -> int:
        """Bytes of all chunks."""
        return sum(len(chunk.data) for chunk in self.chunks)

    def read(self) -> int:
        """Every word of both copies, summed."""
        return sum(_read_sum(_words(old)) + _read_sum(_words(new)) for old, new in self._pairs)

    def encode(self) -> None:
        """Scan, digest, coding, and the hash of each chunk."""
        encoder = ChunkEncoder(self._rows, **self._options)
        chunks = []
        for row, (old, new) in enumerate(self._pairs):
            for chunk in encoder.add(row, old, new):
                blake3(chunk.data).digest()
                chunks.append(chunk)
        for chunk in encoder.finish():
            blake3(chunk.data).digest()
            chunks.append(chunk)
        self.chunks, self.changed, self._digest_change = chunks, encoder.changed, encoder.digest_change

    def apply(self) -> None:
        """Decode every chunk, add it to the old copy in place, and check the change of the digest."""
        change = 0
        for chunk in self.chunks:
            for block in iter_chunk(chunk.data, self._rows, self._options["block_units"], self._base):
                change += apply_with_digest(self._rows[block.row].spec, self._pairs[block.row][0], block)
        if change % MODULUS != self._digest_change:
            raise DigestMismatchError("a round of the benchmark did not end in the new weights")

    def remember(self) -> None:
        """Keep what undoes the step: a profile may not be decodable against anything but the old copy."""
        for chunk in self.chunks:
            for block in decode_chunk(chunk.data, self._rows, self._options["block_units"], self._base):
                self._inverse.append(invert(block))

    def _base(self, row: int) -> NDArray[np.uint16]:
        return self._pairs[row][0]

    def undo(self) -> None:
        """Put the old copy back."""
        for block in self._inverse:
            apply_block(self._pairs[block.row][0], block)


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _read_sum(words: NDArray[np.uint64]) -> int:
    total = np.uint64(0)
    for i in range(words.size):
        total += words[i]
    return total  # type: ignore[return-value]


def _words(units: NDArray[np.uint16]) -> NDArray[np.uint64]:
    return units[: units.size // 4 * 4].view(np.uint64)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _peak_extra(work: Callable[[], object]) -> int | None:
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


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown processor"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")


def _megabytes(size: int | None) -> str:
    return "not measured" if size is None else f"{size / 1e6:.0f} MB"
