"""Hostile safetensors headers are refused; canonical ones are those of the safetensors library."""

from __future__ import annotations

import json
import random

import pytest
import torch
from engine_parts import header_of, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from p2psync.delta.tensors import TensorSpec
from p2psync.engines.checkpoint.header import canonical_header, header_bytes, parse_header
from p2psync.errors import FormatError


def _header(text: bytes | str) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return len(data).to_bytes(8, "little") + data


def _one(**fields: object) -> str:
    return json.dumps({"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]} | fields})


HOSTILE = {
    "no JSON": "{",
    "not an object": "[]",
    "leading space": " {}",
    "not UTF-8": b'{"\xff": 1}',
    "NaN": '{"w": NaN}',
    "doubled tensor": '{"a": {"dtype":"U8","shape":[0],"data_offsets":[0,0]}, "a": {}}',
    "doubled field": '{"a": {"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}}',
    "unknown dtype": _one(dtype="F12"),
    "dtype of a wrong kind": _one(dtype=["BF16"]),
    "negative shape": _one(shape=[-2]),
    "fractional shape": _one(shape=[2.0]),
    "shape of truth": _one(shape=[True, 2]),
    "endless shape": _one(shape=[1] * 65 + [2]),
    "overflowing shape": _one(shape=[1 << 62, 1 << 62, 4]),
    "overflowing dimension": _one(shape=[1 << 64]),
    "size mismatch": _one(shape=[3]),
    "turned offsets": _one(data_offsets=[4, 0]),
    "negative offsets": _one(data_offsets=[-4, 0]),
    "three offsets": _one(data_offsets=[0, 4, 8]),
    "hole at the start": _one(data_offsets=[2, 6]),
    "missing shape": '{"w": {"dtype": "U8", "data_offsets": [0, 0]}}',
    "tensor of a wrong kind": '{"w": 5}',
    "metadata of a wrong kind": '{"__metadata__": {"a": 1}}',
    "metadata list": '{"__metadata__": []}',
    "half a byte": '{"w": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}',
    "lone surrogate": '{"\\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}',
    "deep nesting": '{"w":' + "[" * 100_000,
    "huge number": '{"w": {"dtype": "U8", "shape": [' + "9" * 5000 + '], "data_offsets": [0, 0]}}',
    "overlap": json.dumps(
        {n: {"dtype": "U8", "shape": [4], "data_offsets": [o, o + 4]} for n, o in [("a", 0), ("b", 3)]}
    ),
    "hole": json.dumps({n: {"dtype": "U8", "shape": [4], "data_offsets": [o, o + 4]} for n, o in [("a", 0), ("b", 5)]}),
    "twice the same place": json.dumps({n: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for n in "ab"}),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_headers_are_refused_by_the_name_of_their_file(text: str | bytes) -> None:
    with pytest.raises(FormatError, match=r"some/file") as caught:
        parse_header(_header(text), "some/file")
    assert len(str(caught.value)) < 400


def test_a_length_beyond_the_limit_or_the_file_is_refused_before_anything_is_read() -> None:
    for length, size in ((100_000_001, 1 << 40), (1 << 63, None), (93, 100)):
        with pytest.raises(FormatError, match="header of"):
            header_bytes(length.to_bytes(8, "little"), size, "f")
    with pytest.raises(FormatError, match="too short"):
        header_bytes(b"1234567", 7, "f")


def test_a_valid_header_gives_the_offset_of_each_tensor() -> None:
    weights = {
        "b": tensor(1, "F32", 3),
        "scalar": tensor(2, "BF16"),
        "none": tensor(3, "I8", 0, 5),
        "a": tensor(4, "U8", 7),
    }
    header = header_of(weights, note="x", pad=1)
    entries, size = parse_header(header, "f")
    n = len(header)
    assert [(e.spec.name, e.spec.shape, e.offset - n) for e in entries] == [
        ("b", (3,), 0), ("scalar", (), 12), ("none", (0, 5), 14), ("a", (7,), 14)
    ]  # fmt: skip
    assert size == n + 21
    assert parse_header(_header("{}"), "f") == ([], 10)


@given(st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_a_damaged_header_is_refused_or_still_covers_its_data_exactly(seed: int, flips: int) -> None:
    weights = {f"w{i}": tensor(i, d, 3, i) for i, d in enumerate(["BF16", "F8_E4M3", "F32", "I64"])}
    rng = random.Random(seed)
    header = bytearray(header_of(weights, note="n"))
    for _ in range(flips):
        header[rng.randrange(8, len(header))] = rng.choice(b'0123456789[]{}",:-. \xff\0eF')
    try:
        entries, size = parse_header(bytes(header), "f")
    except FormatError:
        return
    assert sum(entry.spec.nbytes for entry in entries) == size - len(header)


TORCH = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "I16": torch.int16, "U16": torch.uint16, "F16": torch.float16,
    "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32, "F64": torch.float64,
    "I64": torch.int64, "U64": torch.uint64, "C64": torch.complex64, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


def test_the_canonical_header_is_that_of_the_safetensors_library() -> None:
    names = ["z", "a", 'quo"te', "ünïcode", "tab\t", "slash/back\\", "model.layers.10.w", "model.layers.9.w"]
    tensors, specs = {}, []
    for index, (dtype, kind) in enumerate(TORCH.items()):
        for name in (f"{names[index % 8]}.{index}", f"{index % 3}.x{index}"):
            shape = (index % 4, 3) if index % 5 else ()
            tensors[name] = (
                torch.zeros(shape, dtype=torch.uint8).to(kind) if kind != torch.bool else torch.zeros(shape, dtype=kind)
            )
            specs.append(TensorSpec(2, name, dtype, shape))
    whole = save(tensors, metadata={"format": "pt"})
    header = canonical_header(sorted(specs), "model.safetensors")
    assert whole[: len(header)] == header
    assert parse_header(header, "f")[1] == len(whole)


def test_one_file_cannot_hold_a_tensor_twice_or_a_file() -> None:
    for specs in (
        [TensorSpec(2, "w", "U8", (1,)), TensorSpec(2, "w", "I8", (1,))],
        [TensorSpec(2, "__metadata__", "U8", (1,))],
        [TensorSpec(1, "config.json", "U8", (1,))],
    ):
        with pytest.raises(FormatError, match=r"m\.safetensors"):
            canonical_header(specs, "m.safetensors")
