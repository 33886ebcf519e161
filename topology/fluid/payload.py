"""Payloads without content: manifests and chunks of a thousandth of the size that they represent."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np
from blake3 import blake3

from p2psync.errors import UsageError
from p2psync.protocol.manifest import MAX_CHUNKS, Manifest, pack_table
from p2psync.protocol.plan import NodePlan
from p2psync.swarm.core import SwarmConfig
from p2psync.swarm.transfer import Bits

#: Each simulated byte represents this many.
SCALE = 1024
#: Bytes of the smallest chunk that can be told from others.
MIN_CHUNK_BYTES = 4 * SCALE


@dataclass(frozen=True)
class FluidPayload:
    """One published version. chunks: the bytes of each."""

    id: bytes
    manifest: Manifest
    chunks: list[bytes]

    @property
    def nbytes(self) -> int:
        """The bytes that it represents."""
        return SCALE * sum(self.manifest.sizes)

    @property
    def all_chunks(self) -> Bits:
        """A set flag for each chunk (bool)."""
        return np.ones(self.manifest.chunks, np.bool_)

    @property
    def no_chunks(self) -> Bits:
        """An unset flag for each chunk (bool)."""
        return np.zeros(self.manifest.chunks, np.bool_)

    def as_version(self, version: int) -> FluidPayload:
        """Returns the same chunks as another version."""
        ends = {"digest": version.to_bytes(16, "little"), "base_digest": (version - 1).to_bytes(16, "little")}
        manifest = msgspec.structs.replace(self.manifest, version=version, base=version - 1, **ends)
        return replace(self, id=blake3(version.to_bytes(8, "little")).digest(), manifest=manifest)


def make_payload(payload_bytes: int, chunk_bytes: int, version: int = 1) -> FluidPayload:
    """Returns a payload of about these bytes, in chunks of these bytes. Raises `UsageError` for impossible sizes."""
    if chunk_bytes < MIN_CHUNK_BYTES or payload_bytes < chunk_bytes:
        raise UsageError(f"chunks of at least {MIN_CHUNK_BYTES} bytes, and a payload of at least one")
    size, count = chunk_bytes // SCALE, payload_bytes // chunk_bytes
    if count > MAX_CHUNKS:
        raise UsageError(f"{count} chunks: at most {MAX_CHUNKS}; choose larger ones")
    chunks = [i.to_bytes(4, "little").ljust(size, b"\0") for i in range(count)]
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
        sizes=[size] * count,
        hashes=b"".join(blake3(chunk).digest() for chunk in chunks),
        first_rows=[0] * count,
        changed=0,
        total=0,
        created=0.0,
    )
    return FluidPayload(b"", manifest, chunks).as_version(version)


def scaled(config: SwarmConfig) -> SwarmConfig:
    """Returns the same settings for bytes that represent `SCALE` each."""
    return replace(
        config,
        window_least=config.window_least // SCALE,
        window_most=config.window_most // SCALE,
        surplus_most=config.surplus_most // SCALE,
        flush_limit=config.flush_limit // SCALE,
        flight_least=config.flight_least // SCALE,
        unasked=config.unasked // SCALE,
    )


def scaled_plan(plan: NodePlan) -> NodePlan:
    """Returns the same plan with rates divided by `SCALE`."""
    positions = [msgspec.structs.replace(position, rate=position.rate / SCALE) for position in plan.positions]
    return msgspec.structs.replace(plan, positions=positions)
