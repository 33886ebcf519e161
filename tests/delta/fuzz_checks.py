"""The promises about accepted input; each check raises an `AssertionError` for a broken one."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
from fuzz_manifests import KEY
from fuzz_mutations import Input

from p2psync.delta.block import block_count, block_range, block_span
from p2psync.delta.container import decode_chunk
from p2psync.delta.digest import digest_from_bytes, tensor_key
from p2psync.delta.tensors import TensorKind
from p2psync.protocol.manifest import Manifest, decode_body, open_signed

_TRUSTED = frozenset({KEY.public_key().public_bytes_raw()})


def chunk(given: Input) -> None:
    """Decode a chunk; its blocks lie on the grid, with the right unit and rising positions."""
    blocks = decode_chunk(given.data, given.rows, given.block_units, given.base, given.history)
    assert blocks
    block_keys = [(block.row, block.start) for block in blocks]
    assert all(a < b for a, b in itertools.pairwise(block_keys))
    for block in blocks:
        one = given.rows[block.row].spec
        index, off = divmod(block.start, block_span(one.width, given.block_units))
        assert off == 0 and 0 <= index < block_count(one, given.block_units)
        assert block.count == block_range(one, given.block_units, index)[1] > 0
        assert block.steps.dtype == one.unit
        if block.positions is None:
            assert block.steps.size == block.count
            continue
        assert block.positions.dtype == np.uint32
        assert 0 < block.positions.size == block.steps.size
        assert (block.positions[1:] > block.positions[:-1]).all()
        assert block.positions[-1] < block.count
        assert block.steps.all()


def body(data: bytes) -> None:
    """Decode a manifest's body; the manifest can be used in every way in which a node uses it."""
    check(decode_body(data))


def signed(data: bytes) -> None:
    """Open a signed manifest."""
    manifest, _ = open_signed(data, _TRUSTED)
    check(manifest)


def check(manifest: Manifest) -> None:
    """Check that every number is within its bounds, and every row is a tensor that can be cut into blocks."""
    rows = manifest.rows()
    for row in rows:
        TensorKind(row.spec.kind)
        assert tensor_key(row.spec).size == 2
        assert 0 <= row.spec.nbytes < 1 << 63
        assert 0 <= block_count(row.spec, manifest.block_units) < 1 << 48
        assert not row.digest or digest_from_bytes(row.digest) >= 0
    assert len({row.spec for row in rows}) == len(rows)
    for k in range(manifest.chunks):
        part = manifest.chunk_rows(k)
        assert 0 <= part.start < part.stop <= len(rows)
        assert len(manifest.chunk_hash(k)) == 32
    assert manifest.payload_bytes >= 0 and manifest.kind in ("anchor", "delta")
    assert 0 <= manifest.changed <= manifest.total
    assert decode_body(msgspec.msgpack.encode(manifest)) == manifest
