"""A tiny model and its versions: real bits, coded by the real codec, made once and shared by all simulations.

A version's name is the sequence of choices that led to it, one number per step from version 0, so that a fork has
another name, and other bits, than the version of the same number that it replaces.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.delta.block import Block
from p2psync.delta.container import ChunkEncoder, decode_chunk
from p2psync.delta.digest import MODULUS, digest_bytes, digest_units
from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec, Units
from p2psync.protocol.manifest import Manifest, SignedManifest, pack_table, sign
from p2psync.protocol.messages import NO_VERSION

VersionName: TypeAlias = tuple[int, ...]

BLOCK_UNITS = 1 << 16
CHUNK_BYTES = 4096
#: Number of different models, so that not all simulations use the same bits.
MODELS = 4
_TENSORS = (("BF16", (48, 32), 10), ("F32", (600,), 2), ("U8", (2500,), 1), ("F16", (7,), 1))


@dataclass(frozen=True)
class ModelWeights:
    """All bits of one version, tensor by tensor, and their digest (16 bytes)."""

    units: tuple[Units, ...]
    digest: bytes


@dataclass(frozen=True)
class CodedVersion:
    """An anchor or delta, not yet signed."""

    base: VersionName | None
    name: VersionName
    table: bytes
    chunks: tuple[bytes, ...]
    first_rows: tuple[int, ...]
    changed: int
    total: int


class ModelVersions:
    """Every version of one model that some simulation has used."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.specs = _specs()
        self._weights: dict[VersionName, ModelWeights] = {}
        self._coded: dict[tuple[VersionName | None, VersionName], CodedVersion] = {}
        self._blocks: dict[tuple[bytes, bytes], list[Block]] = {}

    def weights(self, name: VersionName) -> ModelWeights:
        """Returns the bits of a version; read-only."""
        found = self._weights.get(name)
        if found is None:
            found = self._weights[name] = self._make(name)
        return found

    def coded(self, base: VersionName | None, name: VersionName) -> CodedVersion:
        """Returns the delta between two versions, or the anchor of one."""
        found = self._coded.get((base, name))
        if found is None:
            found = self._coded[base, name] = self._code(base, name)
        return found

    def decode(self, data: bytes, table: bytes, rows: tuple[TableRow, ...]) -> list[Block]:
        """Decodes a chunk with the codec; equal bytes are decoded once. Raises `FormatError`."""
        found = self._blocks.get((table, data))
        if found is None:
            found = decode_chunk(data, rows, BLOCK_UNITS)
            if len(self._blocks) > 8192:
                self._blocks.clear()
            self._blocks[table, data] = found
        return found

    def _make(self, name: VersionName) -> ModelWeights:
        rng = np.random.default_rng([self.seed, *name])
        before = self.weights(name[:-1]).units if len(name) > 1 else None
        made = []
        for i, spec in enumerate(self.specs):
            if before is None:
                units = rng.integers(0, 1 << 8 * spec.width, spec.count, spec.unit, endpoint=False)
            else:
                units = before[i].copy()
                changed = rng.random(spec.count) < 0.3
                units[changed] += rng.integers(1, 4, int(changed.sum())).astype(spec.unit)
            units.flags.writeable = False
            made.append(units)
        return ModelWeights(tuple(made), digest_of(self.specs, made))

    def _code(self, base: VersionName | None, name: VersionName) -> CodedVersion:
        new = self.weights(name).units
        old = self.weights(base).units if base is not None else None
        rows = [self._row(i, units, old is not None) for i, units in enumerate(new)]
        encoder = ChunkEncoder(rows, block_units=BLOCK_UNITS, chunk_bytes=CHUNK_BYTES)
        chunks = []
        for i, units in enumerate(new):
            chunks += list(encoder.add(i, None if old is None else old[i], units))
            # Chunks are closed early, so that even a tiny delta has several.
            chunks += list(encoder.finish())
        return CodedVersion(
            base,
            name,
            pack_table(rows),
            tuple(chunk.data for chunk in chunks),
            tuple(chunk.first_row for chunk in chunks),
            encoder.changed,
            encoder.total,
        )

    def _row(self, index: int, units: Units, before: bool) -> TableRow:
        spec = self.specs[index]
        return TableRow(spec, before, True, b"" if before else digest_bytes(digest_units(spec, units)))


@functools.cache
def history(model: int) -> ModelVersions:
    """Returns the shared history of one model."""
    return ModelVersions(model)


@functools.cache
def signing_key(seed: int) -> Ed25519PrivateKey:
    """Returns a trainer's key."""
    return Ed25519PrivateKey.from_private_bytes(blake3(b"simulated trainer %d" % seed).digest())


def signed_manifest(
    bits: ModelVersions, coded: CodedVersion, key: Ed25519PrivateKey, *, run: str, epoch: int, created: float
) -> tuple[Manifest, SignedManifest]:
    """Describes and signs an anchor or delta as a trainer of this run and epoch does."""
    manifest = Manifest(
        run=run,
        epoch=epoch,
        version=len(coded.name) - 1,
        base=None if coded.base is None else len(coded.base) - 1,
        digest=bits.weights(coded.name).digest,
        base_digest=NO_VERSION if coded.base is None else bits.weights(coded.base).digest,
        profile="fast",
        block_units=BLOCK_UNITS,
        table=coded.table,
        sizes=[len(chunk) for chunk in coded.chunks],
        hashes=b"".join(blake3(chunk).digest() for chunk in coded.chunks),
        first_rows=list(coded.first_rows),
        changed=coded.changed,
        total=coded.total,
        created=created,
    )
    return manifest, sign(manifest, key)


def digest_of(specs: tuple[TensorSpec, ...], units: list[Units] | tuple[Units, ...]) -> bytes:
    """Returns the digest over all tensors, 16 bytes."""
    return digest_bytes(sum(digest_units(s, u) for s, u in zip(specs, units, strict=True)) % MODULUS)


def _specs() -> tuple[TensorSpec, ...]:
    specs = [
        TensorSpec(TensorKind.TENSOR, f"layer.{dtype.lower()}.{i:02d}.weight", dtype, shape)
        for dtype, shape, count in _TENSORS
        for i in range(count)
    ]
    return tuple(sorted(specs))
