"""The codec writes and reads the example of docs/reference/formats.md."""

import re
from pathlib import Path

import numpy as np
import reference
from delta_parts import encode

from p2psync.delta.container import decode_chunk
from p2psync.delta.digest import digest_bytes, digest_units, tensor_id
from p2psync.delta.tensors import TableRow, TensorSpec

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text()
ROWS = [
    TableRow(TensorSpec(0, "a", "BF16", (70000,)), True, True),
    TableRow(TensorSpec(0, "b", "BF16", (3,)), False, True),
]


def page_bytes() -> bytes:
    (dump,) = re.findall(r"```\n(70 01.*?)```", PAGE, re.DOTALL)
    lines = (re.match(r"(?:[0-9a-f]{2}\s+)+", line + " ") for line in dump.strip().splitlines())
    return b"".join(bytes.fromhex(line.group()) for line in lines if line)


def example():
    old = np.full(70000, 0x3F80, np.uint16)
    new = old.copy()
    new[3] += 1
    new[300] -= 1
    new[65540] += 5
    new[69999] = 0xBF80
    return [old, None], [new, np.array([0x3F80, 0xBC24, 0], np.uint16)]


def test_codec_writes_the_bytes_of_the_format_page():
    (chunk,), _ = encode(ROWS, *example())
    assert chunk.data == page_bytes()


def test_codec_and_reference_read_the_bytes_of_the_format_page():
    steps = [{(0, 3): 1, (0, 300): 65535}, {(0, 65540): 5, (0, 69999): 0x8000}, {(1, 0): 0x3F80, (1, 1): 0xBC24}]
    assert reference.read_chunk(page_bytes(), ROWS, 1 << 16) == steps
    blocks = decode_chunk(page_bytes(), ROWS, 1 << 16)
    assert [(block.row, block.start, block.count) for block in blocks] == [(0, 0, 65536), (0, 65536, 4464), (1, 0, 3)]
    assert [block.steps.tolist() for block in blocks] == [[1, 65535], [5, 0x8000], [0x3F80, 0xBC24, 0]]


def test_digests_of_the_format_page_are_right():
    old, new = example()
    _, encoder = encode(ROWS, old, new)
    said = re.findall(r"`([0-9a-f]{32})`", PAGE)
    assert said == [
        tensor_id(ROWS[0].spec).hex(),
        tensor_id(ROWS[1].spec).hex(),
        digest_bytes(digest_units(ROWS[0].spec, old[0][:1])).hex(),
        digest_bytes(encoder.digest_change).hex(),
    ]
