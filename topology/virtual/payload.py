"""Payloads of whole chunks for nodes in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np
from blake3 import blake3

from p2psync.errors import UsageError
from p2psync.protocol.manifest import HASH_BYTES, MAX_CHUNKS, Manifest, pack_table
from p2psync.swarm.transfer import Bits

#: Bytes of a signed manifest beside its hashes, about.
_SIGNED_BYTES = 1024


@dataclass(frozen=True)
class VirtualPayload:
    """One version. chunks: the bytes of each. signed: stands for the signed manifest, of about its size."""

    id: bytes
    manifest: Manifest
    chunks: list[bytes]
    signed: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks."""
        return sum(self.manifest.sizes)

    @property
    def all_chunks(self) -> Bits:
        """A set flag for each chunk (bool)."""
        return np.ones(self.manifest.chunks, np.bool_)

    @property
    def no_chunks(self) -> Bits:
        """An unset flag for each chunk (bool)."""
        return np.zeros(self.manifest.chunks, np.bool_)

    def as_version(self, version: int) -> VirtualPayload:
        """Returns the same chunks as another version."""
        ends = {"digest": version.to_bytes(16, "little"), "base_digest": (version - 1).to_bytes(16, "little")}
        manifest = msgspec.structs.replace(self.manifest, version=version, base=version - 1, **ends)
        return replace(self, id=blake3(version.to_bytes(8, "little")).digest(), manifest=manifest)


def make_payload(payload_bytes: int, chunk_bytes: int) -> VirtualPayload:
    """Returns version 1: `payload_bytes` in chunks of `chunk_bytes`, the last one smaller. Raises `UsageError`."""
    if chunk_bytes < 8 or payload_bytes < chunk_bytes:
        raise UsageError("chunks of at least 8 bytes, and a payload of at least one")
    sizes = [chunk_bytes] * (payload_bytes // chunk_bytes)
    sizes += [payload_bytes % chunk_bytes] * bool(payload_bytes % chunk_bytes >= 8)
    if len(sizes) > MAX_CHUNKS:
        raise UsageError(f"{len(sizes)} chunks: at most {MAX_CHUNKS}; choose larger ones")
    chunks = [i.to_bytes(8, "little").ljust(size, b"\0") for i, size in enumerate(sizes)]
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
    return VirtualPayload(b"", manifest, chunks, bytes(_SIGNED_BYTES + HASH_BYTES * len(sizes))).as_version(1)
