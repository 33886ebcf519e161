"""Safetensors headers: reads them as hostile input, and writes them canonically.

A header is an 8-byte little-endian length and that much JSON: `{"name": {"dtype", "shape", "data_offsets"}, …}` with
an optional `__metadata__` of strings. The parser checks the length, the JSON, duplicate keys, dtypes, shapes, and that
the tensors cover the data section exactly, without gap or overlap (the format's own rule). It allocates nothing by a
size that a header claims.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from p2psync.delta.tensors import DTYPE_BITS, TensorKind, TensorSpec
from p2psync.errors import FormatError

#: The safetensors library's own limit on a header (bytes, without its length field).
MAX_HEADER_BYTES = 100_000_000
LENGTH_BYTES = 8
_MAX_DIMENSIONS = 64
_METADATA = "__metadata__"
#: The safetensors library writes tensors by this rank, falling, then by name, rising.
_RANK = {name: rank for rank, name in enumerate(DTYPE_BITS)}


class HeaderEntry(NamedTuple):
    """One tensor of a safetensors file. offset: bytes from the start of the file."""

    spec: TensorSpec
    offset: int


def header_bytes(prefix: bytes, file_bytes: int | None, where: str) -> int:
    """Returns the bytes of the header, length field included, from a file's first 8 bytes. Raises `FormatError`."""
    if len(prefix) < LENGTH_BYTES:
        raise FormatError(f"{where}: {len(prefix)} bytes, too short for safetensors")
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise FormatError(f"{where}: a header of {length} bytes is over the limit of {MAX_HEADER_BYTES}")
    if file_bytes is not None and LENGTH_BYTES + length > file_bytes:
        raise FormatError(f"{where}: a header of {length} bytes in a file of {file_bytes}: it was cut short")
    return LENGTH_BYTES + length


def parse_header(header: bytes, where: str) -> tuple[list[HeaderEntry], int]:
    """Parses a whole header (length field and JSON); returns its tensors by offset, and the size of the file (bytes).

    where: names the file in errors. Raises `FormatError`.
    """
    if header_bytes(header, None, where) != len(header):
        raise FormatError(f"{where}: the header's length field is wrong")
    entries: list[tuple[int, int, TensorSpec]] = []
    for name, info in _load(header[LENGTH_BYTES:], where).items():
        if name == _METADATA:
            _check_metadata(info, where)
        else:
            entries.append(_entry(name, info, where))
    entries.sort(key=lambda entry: entry[:2])
    end = 0
    for begin, stop, spec in entries:
        if begin != end:
            raise FormatError(f"{where}: tensor {spec.name!r} begins at {begin}, the one before it ends at {end}")
        end = stop
    return [HeaderEntry(spec, len(header) + begin) for begin, _, spec in entries], len(header) + end


def canonical_header(specs: Iterable[TensorSpec], file_name: str = "model.safetensors") -> bytes:
    """Returns the header (length field included) of one file with these TENSOR specs, as the safetensors library does.

    Tensors are ordered by falling rank of their dtype, then by name; the JSON has no spaces and is padded to 8 bytes.
    Raises `FormatError` for specs that one file cannot hold.
    """
    table: dict[str, object] = {_METADATA: {"format": "pt"}}
    end = 0
    for spec in sorted(specs, key=lambda s: (-_RANK.get(s.dtype, 0), s.name)):
        if spec.name in table or spec.kind != TensorKind.TENSOR:
            raise FormatError(f"{file_name} cannot hold {spec.name!r}: doubled, reserved, or not a tensor")
        begin, end = end, end + spec.nbytes
        table[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [begin, end]}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise FormatError(f"{file_name}: a header of {len(text)} bytes is over the limit of {MAX_HEADER_BYTES}")
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def blob_spec(kind: TensorKind, name: str, size: int) -> TensorSpec:
    """Returns the spec of a HEADER or FILE of `size` bytes."""
    return TensorSpec(int(kind), name, "U8", (size,))


def _load(text: bytes, where: str) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise FormatError(f"{where}: the header is not a JSON object")
    try:
        loaded = json.loads(text.decode(), object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: the header is not JSON: {str(error)[:200]}") from None
    if not isinstance(loaded, dict):
        raise FormatError(f"{where}: the header is not a JSON object")
    return loaded


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        doubled = next(a for a, b in itertools.pairwise(sorted(key for key, _ in pairs)) if a == b)
        raise ValueError(f"key {doubled!r} appears twice")
    return table


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_metadata(info: object, where: str) -> None:
    if not isinstance(info, dict) or not all(isinstance(value, str) for value in info.values()):
        raise FormatError(f"{where}: {_METADATA} is not a table of strings")


def _entry(name: str, info: object, where: str) -> tuple[int, int, TensorSpec]:
    if not isinstance(info, dict) or not {"dtype", "shape", "data_offsets"} <= info.keys():
        raise FormatError(f"{where}: tensor {name!r} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise FormatError(f"{where}: tensor {name!r} has unknown dtype {str(dtype)[:40]!r}")
    if not _naturals(shape) or len(shape) > _MAX_DIMENSIONS:
        raise FormatError(f"{where}: tensor {name!r} has an impossible shape")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FormatError(f"{where}: tensor {name!r} has impossible data_offsets")
    try:
        name.encode()
        spec = TensorSpec(int(TensorKind.TENSOR), name, dtype, tuple(shape))
        size = spec.nbytes
    except UnicodeEncodeError:
        raise FormatError(f"{where}: tensor name {name!r} is not UTF-8") from None
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from None
    if size != offsets[1] - offsets[0]:
        raise FormatError(f"{where}: tensor {name!r} of {size} bytes is given {offsets[1] - offsets[0]}")
    return offsets[0], offsets[1], spec


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)
