"""Payloads without content for swarms in virtual time: a manifest, and chunks whose bytes may stand for many each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from p2psync.errors import UsageError
from p2psync.protocol.manifest import HASH_BYTES, MAX_CHUNKS, Manifest, pack_table

#: Least simulated bytes of a whole chunk: room for its number, so that no two have one hash.
MIN_CHUNK_BYTES = 4
#: Bytes of a signed manifest beside its hashes, about.
_SIGNED_BYTES = 1024


@dataclass(frozen=True)
class SimulatedPayload:
    """One version. chunks: the simulated bytes of each. scale: bytes that each of them stands for."""

    id: bytes
    manifest: Manifest
    chunks: list[bytes]
    scale: int = 1

    @property
    def nbytes(self) -> int:
        """The bytes that all chunks stand for."""
        return self.scale * sum(self.manifest.sizes)

    @property
    def signed(self) -> bytes:
        """Zeros in place of the signed manifest, of about its size."""
        return bytes(_SIGNED_BYTES + HASH_BYTES * self.manifest.chunks)

    @property
    def all_chunks(self) -> NDArray[np.bool_]:
        """A set flag for each chunk (bool)."""
        return np.ones(self.manifest.chunks, np.bool_)

    @property
    def no_chunks(self) -> NDArray[np.bool_]:
        """An unset flag for each chunk (bool)."""
        return np.zeros(self.manifest.chunks, np.bool_)

    def as_version(self, version: int) -> SimulatedPayload:
        """Returns the same chunks as another version."""
        ends = {"digest": version.to_bytes(16, "little"), "base_digest": (version - 1).to_bytes(16, "little")}
        manifest = msgspec.structs.replace(self.manifest, version=version, base=version - 1, **ends)
        return replace(self, id=blake3(version.to_bytes(8, "little")).digest(), manifest=manifest)


def make_payload(payload_bytes: int, chunk_bytes: int, *, scale: int = 1) -> SimulatedPayload:
    """Returns version 1: `payload_bytes` in chunks of `chunk_bytes`, the last one smaller; each simulated byte stands
    for `scale` of them, and what is left below that is dropped. Raises `UsageError` for impossible sizes."""
    if chunk_bytes < MIN_CHUNK_BYTES * scale or payload_bytes < chunk_bytes:
        raise UsageError(f"chunks of at least {MIN_CHUNK_BYTES * scale} bytes, and a payload of at least one")
    whole, rest = divmod(payload_bytes, chunk_bytes)
    sizes = [chunk_bytes // scale] * whole + [rest // scale] * (rest >= scale)
    if len(sizes) > MAX_CHUNKS:
        raise UsageError(f"{len(sizes)} chunks: at most {MAX_CHUNKS}; choose larger ones")
    # The last chunk may be too small for its number; its size alone makes it differ from the others.
    chunks = [i.to_bytes(MIN_CHUNK_BYTES, "little")[:size].ljust(size, b"\0") for i, size in enumerate(sizes)]
    manifest = Manifest(
        run="0" * 32,
        epoch=1,
        version=1,
        base=0,
        digest=bytes(16),
        base_digest=bytes(16),
        profile="fast",
        block_units=1 << 16,
        table=pack_table([]),
        sizes=sizes,
        hashes=b"".join(blake3(chunk).digest() for chunk in chunks),
        first_rows=[0] * len(sizes),
        changed=0,
        total=0,
        created=0.0,
    )
    return SimulatedPayload(b"", manifest, chunks, scale).as_version(1)
