"""Packs for tests: manifests of chunks of random bytes."""

from __future__ import annotations

import random

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec
from p2psync.protocol.manifest import Manifest, SignedManifest, pack_table, sign

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def make_pack(seed: int, sizes: list[int]) -> tuple[SignedManifest, Manifest, list[bytes]]:
    """A signed manifest of version `seed`, and its chunks."""
    chunks = [random.Random(f"{seed}/{i}").randbytes(size) for i, size in enumerate(sizes)]
    manifest = Manifest(
        run="0" * 32,
        epoch=1,
        version=seed,
        base=None,
        digest=bytes(16),
        base_digest=bytes(16),
        profile="fast",
        block_units=1 << 16,
        table=pack_table([TableRow(TensorSpec(int(TensorKind.TENSOR), "w", "BF16", (4,)), False, True)]),
        sizes=sizes,
        hashes=b"".join(blake3(chunk).digest() for chunk in chunks),
        first_rows=[0] * len(sizes),
        changed=4,
        total=4,
        created=0.0,
    )
    return sign(manifest, KEY), manifest, chunks
