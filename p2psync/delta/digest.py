"""The digest: a fingerprint of all weights that does not depend on order and is updated in O(changed).

Definition. All arithmetic is on unsigned integers; `id` is the tensor's id, 128 bits (`tensor_id`); a unit of a tensor
has an index i in the flat tensor and bits b (zero-extended to 64 bits).

    mix(id, i, b) = low(id mod 2^64 + i·0x9E3779B97F4A7C15 + b·0x9E3779B1 mod 2^64)
                  + 2^64 · high(id div 2^64 + i·0xD1B54A32D192ED03 + b·0x85EBCA77 mod 2^64)
    digest = Σ mix over all units of all tensors, mod 2^128

`low` and `high` are bijections of 64 bits, three xor-shifts and two multiplications each (`kernels.unit_loops`). Within
a tensor (i, b) → mix is injective: both linear forms agree on two pairs only if the pairs are equal, or if their
indices are 2^60 or more apart.

What it protects against. Accidents: a flipped bit (a single unit that differs always changes the digest, because the
mix is injective), a wrong base, a block that was missed, applied twice, or applied to the wrong tensor or place, units
that changed places, a tensor that is missing or is there twice; each escapes with a chance of about 2^-128.

What it does not protect against. An adversary who can choose weights: the sum is linear, so setting some hundreds of
units freely steers it to any value by lattice or birthday methods. The signature over the manifest and the BLAKE3 hash
of each chunk protect against forgery. The digest does not locate a difference, and a tensor of no units adds nothing to
it: the manifest's table lists the tensors.
"""

from __future__ import annotations

import functools

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from p2psync.delta.kernels import unit_loops
from p2psync.delta.tensors import DIGEST_BYTES, TensorSpec, Units

#: The digest is a sum modulo this.
MODULUS = 1 << 128
_CONTEXT = b"p2psync tensor v1\0"
# The loops add 32-bit halves in 64-bit sums: fewer than 2^31 units in one call keep even signed sums exact.
_SPAN = 1 << 30


def tensor_id(spec: TensorSpec) -> bytes:
    """16 bytes that name a tensor: the start of the BLAKE3 hash of its canonical encoding.

    The encoding: the context `p2psync tensor v1\\0`; kind (1 byte); length of the name in UTF-8 (4 bytes), the name;
    length of the dtype (1 byte), the dtype; number of dimensions (2 bytes), each dimension (8 bytes); little-endian.
    """
    name = spec.name.encode("utf-8", "surrogatepass")
    dtype = spec.dtype.encode("ascii")
    parts = [_CONTEXT, spec.kind.to_bytes(1, "little"), len(name).to_bytes(4, "little"), name]
    parts += [len(dtype).to_bytes(1, "little"), dtype, len(spec.shape).to_bytes(2, "little")]
    parts += [size.to_bytes(8, "little") for size in spec.shape]
    return blake3(b"".join(parts)).digest(DIGEST_BYTES)


@functools.lru_cache(maxsize=1 << 16)
def tensor_key(spec: TensorSpec) -> NDArray[np.uint64]:
    """The tensor's id as two u64, low half first; not to be written to."""
    return np.frombuffer(tensor_id(spec), dtype="<u8").copy()


def digest_units(spec: TensorSpec, units: Units, start: int = 0) -> int:
    """Sum the mix of `units`, a flat array of the spec's unit whose first entry has index `start` in the tensor.

    Sums of disjoint parts add up (mod 2^128) to the sum of the whole. Any alignment. Raises `ValueError` for an array
    that is not flat, contiguous and of the spec's unit.
    """
    check_units(spec, units)
    key, like, base, total = tensor_key(spec), unit_witness(spec.unit), unit_loops.address(units), 0
    for first in range(0, units.size, _SPAN):
        count = min(_SPAN, units.size - first)
        a, b, high = unit_loops.sum_units(base + first * spec.width, count, start + first, key, like)
        total += int(a) + (int(b) << 32) + (int(high) << 64)
    return total % MODULUS


def digest_change(spec: TensorSpec, start: int, positions: NDArray[np.uint32] | None, old: Units, new: Units) -> int:
    """Returns the sum that a change adds to the digest, mod 2^128: the sum of mix(new) − mix(old).

    `positions` are offsets from unit `start` of the tensor (None: 0, 1, 2, …); `old` and `new` are flat arrays of the
    spec's unit, one entry for each position. Raises `ValueError` where they do not fit together.
    """
    if positions is None:
        if old.size != new.size:
            raise ValueError("old and new differ in length")
        return (digest_units(spec, new, start) - digest_units(spec, old, start)) % MODULUS
    if not positions.size == old.size == new.size or positions.dtype != np.uint32:
        raise ValueError("positions, old and new differ in length, or positions are not of 32 bits")
    check_units(spec, old)
    check_units(spec, new)
    before = unit_loops.plain(old)
    steps = unit_loops.plain(new) - before
    where = unit_loops.plain(positions)
    return join_change(*unit_loops.sum_change(where, before, steps, where.size, start, tensor_key(spec)))


def join_change(first: int, second: int, high: int) -> int:
    """The change of the digest from a kernel's three sums (two signed halves of the low lane, and the high lane)."""
    return (int(first) + (int(second) << 32) + (int(high) << 64)) % MODULUS


def digest_bytes(digest: int) -> bytes:
    """16 bytes, little-endian, of a digest or a change of one (taken mod 2^128)."""
    return (digest % MODULUS).to_bytes(DIGEST_BYTES, "little")


def digest_from_bytes(data: bytes) -> int:
    """The inverse of `digest_bytes`; raises `ValueError` unless there are 16 bytes."""
    if len(data) != DIGEST_BYTES:
        raise ValueError(f"a digest has {DIGEST_BYTES} bytes, not {len(data)}")
    return int.from_bytes(data, "little")


def check_units(spec: TensorSpec, units: Units) -> None:
    """Raise `ValueError` unless `units` is flat, contiguous and of the spec's unit."""
    if units.dtype != spec.unit or units.ndim != 1 or not units.flags.c_contiguous:
        raise ValueError(f"{spec.name}: a flat, contiguous array of {spec.unit} is wanted")


@functools.cache
def unit_witness(unit: np.dtype[np.unsignedinteger]) -> Units:
    """An empty array whose dtype tells a compiled loop the unit."""
    return np.empty(0, unit)
