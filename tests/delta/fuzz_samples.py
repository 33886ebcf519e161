"""Valid chunks and manifests of every kind, which the fuzzer mutates."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from blake3 import blake3
from delta_parts import DTYPES, GRID, change, random_units, spec

from p2psync.delta.container import PROFILES, ChunkEncoder
from p2psync.delta.history import ChangeHistory, HistoryLookup
from p2psync.delta.tensors import DTYPE_BITS, TableRow, TensorSpec, Units
from p2psync.protocol.manifest import Manifest, pack_table

_STATES = ((True, True), (True, True), (True, True), (True, True), (False, True), (True, False))
_COUNTS = (0, 1, 3, 63, 64, 65, 257, 1000, 4097, 9000, GRID - 1, GRID, GRID + 1, GRID + 500)
_LARGE = (GRID + 500, 3 * GRID + 77, (1 << 20) + 5)
_DENSITIES = (1e-4, 0.003, 0.01, 0.04, 0.3, 0.9, 1.0)


@dataclass(frozen=True)
class FuzzSample:
    """One delta: its table, its tensors before, and its chunks of one profile."""

    rows: tuple[TableRow, ...]
    old: tuple[Units | None, ...]
    block_units: int
    chunks: tuple[bytes, ...]
    manifest: Manifest
    history: HistoryLookup | None = None

    @property
    def tight(self) -> bool:
        """Whether its chunks are of profile `tight`, or the first of them is."""
        return self.chunks[0][1] in (2, 3)


def law_step(rng: np.random.Generator, count: int, density: float) -> tuple[Units, Units]:
    """A bf16 tensor, and a step of it by the law of real steps: about `density` of the units change."""
    masters = rng.standard_normal(count).astype(np.float32) * np.float32(0.03)
    moved = masters + rng.standard_normal(count).astype(np.float32) * np.float32(1.6e-4 * 100 * density)
    return (masters.view(np.uint32) >> 16).astype(np.uint16), (moved.view(np.uint32) >> 16).astype(np.uint16)


def make_sample(seed: int, *, large: bool = False) -> FuzzSample:
    """A delta of 1 to 10 tensors; `large`: of up to a million units each."""
    choice, rng = random.Random(seed), np.random.default_rng(seed)
    rows, old, new = [], [], []
    profile = choice.choice(PROFILES)
    for k in range(choice.randint(1, 3 if large else 10)):
        dtype = "BF16" if choice.random() < (0.7 if profile == "tight" else 0.3) else choice.choice(DTYPES)
        count = choice.choice(_LARGE if large else _COUNTS)
        shape = (count,) if DTYPE_BITS[dtype] >= 8 else (count, 4)
        row = TableRow(spec(dtype, shape, f"{k:02d}"), *choice.choice(_STATES))
        density, kind = choice.choice(_DENSITIES), choice.choice(("one", "little", "any", "law"))
        if kind == "law" and row.spec.width == 2:
            before, after = law_step(rng, row.spec.count, min(density, 0.04))
        else:
            before = random_units(rng, row.spec.unit, row.spec.count)
            after = change(rng, before, density, "one" if kind == "law" else kind)
        rows.append(row)
        old.append(before if row.before else None)
        new.append(after if row.after else None)
    block_units = choice.choice((GRID, GRID, 1 << 17, 1 << 19, 1 << 20))
    chunk_bytes = choice.choice((4096, 1 << 14, 1 << 18, 4 << 20))
    history = _histories(rows, choice, rng) if profile == "tight" and choice.random() < 0.5 else None
    encoder = ChunkEncoder(rows, block_units=block_units, chunk_bytes=chunk_bytes, profile=profile, history=history)
    chunks, first_rows = [], []
    for k in range(len(rows)):
        for chunk in encoder.add(k, old[k], new[k]):
            chunks.append(chunk.data)
            first_rows.append(chunk.first_row)
    for chunk in encoder.finish():
        chunks.append(chunk.data)
        first_rows.append(chunk.first_row)
    manifest = _manifest(rows, chunks, first_rows, profile, block_units, encoder)
    return FuzzSample(tuple(rows), tuple(old), block_units, tuple(chunks), manifest, history)


def _histories(rows: Sequence[TableRow], choice: random.Random, rng: np.random.Generator) -> HistoryLookup:
    """Histories with random directions of none, few, many or all units; some tensors have no history."""
    found: dict[int, ChangeHistory] = {}
    for index, row in enumerate(rows):
        if row.spec.width == 2 and choice.random() < 0.8:
            history = found[index] = ChangeHistory(row.spec.count)
            for words, share in ((history.known, choice.choice((0.0, 0.02, 0.5, 0.5, 0.95, 1.0))), (history.down, 0.5)):
                words[:] = np.packbits(rng.random(64 * words.size) < share).view(np.uint64)
    return found.get


def make_pool(seed: int, size: int) -> list[FuzzSample]:
    """Samples that have chunks, every other one `tight` ones; the first two are large."""
    pool: list[FuzzSample] = []
    number = seed * 1_000_003
    while len(pool) < size:
        sample = make_sample(number, large=len(pool) < 2)
        number += 1
        if sample.chunks and sample.tight == bool(len(pool) % 2):
            pool.append(sample)
    return pool


def _manifest(
    rows: Sequence[TableRow],
    chunks: Sequence[bytes],
    first_rows: list[int],
    profile: str,
    block_units: int,
    encoder: ChunkEncoder,
) -> Manifest:
    digest = bytes(range(16))
    marked = [TableRow(row.spec, row.before, row.after, digest if k % 3 == 0 else b"") for k, row in enumerate(rows)]
    return Manifest(
        run="0123456789abcdef" * 2,
        epoch=1,
        version=7,
        base=6,
        digest=digest,
        base_digest=digest,
        profile=profile,
        block_units=block_units,
        table=pack_table(marked),
        sizes=[len(data) for data in chunks],
        hashes=b"".join(blake3(data).digest() for data in chunks),
        first_rows=first_rows,
        changed=encoder.changed,
        total=encoder.total,
        created=1.5,
    )


def plain_rows(rows: Sequence[TableRow]) -> list[list[object]]:
    """A table as msgpack sees it: lists that may be changed."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(rows))


def other_rows(choice: random.Random, rows: Sequence[TableRow]) -> list[TableRow]:
    """A table that differs from `rows`: a tensor less, or one of another size, dtype or state."""
    found = list(rows)
    k = choice.randrange(len(found))
    one = found[k].spec
    match choice.randrange(5):
        case 0:
            del found[k]
        case 1:
            found[k] = TableRow(TensorSpec(one.kind, one.name, one.dtype, (choice.choice(_COUNTS), 4)), True, True)
        case 2:
            found[k] = TableRow(TensorSpec(one.kind, one.name, choice.choice(DTYPES), (*one.shape, 4)), True, True)
        case 3:
            found[k] = TableRow(one, *choice.choice(_STATES))
        case _:
            found[k] = TableRow(TensorSpec(one.kind, one.name, one.dtype, (1 << 40, 8)), True, True)
    return found
