"""Tables of 8-bit weights, and of as many tensors as a mixture of experts has."""

import msgspec
import numpy as np
import pytest
from delta_parts import apply_all, random_units, spec

from p2psync.delta.container import decode_chunk
from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec
from p2psync.protocol.manifest import decode_body, pack_table, unpack_table
from p2psync.store.encoding import Encoding, rows_between

EXPERTS, TENSORS = 128, 40_000


class Chunks(list[bytes]):
    """Chunks that are kept in memory."""


def expert_names():
    """40,000 names as a mixture of experts has them, and the shapes of its matrices and of their scales."""
    names = []
    for layer in range(TENSORS // (6 * EXPERTS + 6) + 1):
        for expert in range(EXPERTS):
            for part, shape in (("gate", (2048, 7168)), ("up", (2048, 7168)), ("down", (7168, 2048))):
                name = f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
                names += [(name, "F8_E4M3", shape), (f"{name}_scale_inv", "F32", (shape[0] // 128, shape[1] // 128))]
        for part, shape in (("q_a_proj", (1536, 7168)), ("kv_b_proj", (32768, 512)), ("o_proj", (7168, 16384))):
            names.append((f"model.layers.{layer}.self_attn.{part}.weight", "BF16", shape))
        for part in ("input_layernorm", "post_attention_layernorm", "mlp.gate"):
            names.append((f"model.layers.{layer}.{part}.weight", "BF16", (7168,)))
    return names[:TENSORS]


def encode(rows, old, new, profile="fast"):
    chunks = Chunks()
    encoding = Encoding(chunks, rows, profile=profile)
    for k in range(len(rows)):
        encoding.take(k, old[k], new[k])
    encoding.finish()
    digest = bytes(16)
    manifest = encoding.manifest(
        run="0" * 32, epoch=0, version=2, base=1, digest=digest, base_digest=digest, created=0.0
    )
    return chunks, manifest, encoding


def decode(chunks, rows, old, manifest):
    return [b for data in chunks for b in decode_chunk(data, rows, manifest.block_units, old.__getitem__)]


def test_table_of_forty_thousand_tensors_takes_a_byte_each():
    specs = [TensorSpec(TensorKind.TENSOR, *one) for one in expert_names()]
    rows = rows_between(specs, specs)
    assert len(rows) == TENSORS
    table = pack_table(rows)
    assert len(table) < 50_000
    assert unpack_table(table) == tuple(rows)
    # An anchor adds a digest of 16 bytes for each tensor, which nothing compresses.
    rng = np.random.default_rng(0)
    marked = [TableRow(row.spec, row.before, row.after, rng.bytes(16)) for row in rows]
    assert len(pack_table(marked)) < 20 * TENSORS


@pytest.fixture(scope="module")
def experts():
    """40,000 tensors with the names of `expert_names`, all of them small."""
    sizes = {"F8_E4M3": 384, "F32": 64, "BF16": 200}
    specs = [TensorSpec(TensorKind.TENSOR, name, dtype, (sizes[dtype],)) for name, dtype, _ in expert_names()]
    rows, rng = rows_between(specs, specs), np.random.default_rng(1)
    return rows, [rng.integers(0, 200, row.spec.count).astype(row.spec.unit) for row in rows]


@pytest.mark.parametrize("profile", ["fast", "tight"])
def test_unchanged_tensors_of_forty_thousand_take_no_bytes(experts, profile):
    rows, old = experts
    chunks, manifest, encoding = encode(rows, old, old, profile)
    assert not chunks and encoding.changed == 0
    assert len(msgspec.msgpack.encode(manifest)) < 2 * TENSORS
    new = list(old)
    new[31_234] = old[31_234] + old[31_234].dtype.type(1)
    chunks, manifest, _ = encode(rows, old, new, profile)
    assert sum(map(len, chunks)) < old[31_234].size + 100
    (block,) = decode(chunks, rows, old, manifest)
    assert block.row == 31_234
    assert manifest.chunk_rows(0).start == 31_234


@pytest.mark.parametrize("profile", ["fast", "tight"])
def test_ten_thousand_slightly_changed_tensors_round_trip(experts, profile):
    rows, old = (side[:10_000] for side in experts)
    new = [units.copy() for units in old]
    for k, units in enumerate(new):
        units[k % 64] += 1
    chunks, manifest, encoding = encode(rows, old, new, profile)
    assert encoding.changed == len(rows)
    assert sum(map(len, chunks)) < 4 * len(rows)
    assert decode_body(msgspec.msgpack.encode(manifest)).chunks == len(chunks)
    live = apply_all(rows, old, decode(chunks, rows, old, manifest))
    assert all(np.array_equal(a, b) for a, b in zip(live, new, strict=True))


@pytest.mark.parametrize("profile", ["fast", "tight"])
@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "I8", "F8_E8M0"])
def test_eight_bit_model_at_one_percent_is_compressed(dtype, profile):
    """Quantized weights beside the scales and norms that go with them."""
    rng = np.random.default_rng(2)
    shapes = [(dtype, 1 << 20), ("F32", 1 << 13), (dtype, 300_001), ("BF16", 4096)]
    rows = [TableRow(spec(name, (count,), f"{k}"), True, True) for k, (name, count) in enumerate(shapes)]
    old = [random_units(rng, row.spec.unit, row.spec.count) for row in rows]
    new = [units.copy() for units in old]
    for units in new:
        where = np.flatnonzero(rng.random(units.size) < 0.01)
        units[where] += np.where(rng.random(where.size) < 0.5, 1, -1).astype(units.dtype)
    chunks, manifest, encoding = encode(rows, old, new, profile)
    assert 8 * sum(map(len, chunks)) < 9.7 * encoding.changed
    live = apply_all(rows, old, decode(chunks, rows, old, manifest))
    assert all(np.array_equal(a, b) for a, b in zip(live, new, strict=True))
