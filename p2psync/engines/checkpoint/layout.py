"""The layout of a checkpoint: the file and offset of each tensor, computed from the headers alone.

A checkpoint is a set of files. A safetensors file is one HEADER and its TENSORs; any other file is one FILE. A tensor
has the name that its file gives it; where two files have a tensor of the same name, each is named `path/of/file#name`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from p2psync.delta.tensors import TensorKind, TensorSpec
from p2psync.engines.checkpoint.file_names import check_file_name, is_weights
from p2psync.engines.checkpoint.header import HeaderEntry, blob_spec, parse_header
from p2psync.errors import FormatError

#: Maximum bytes of all FILE blobs of a checkpoint. Configurations and tokenizers take megabytes; more means weights in
#: a format that is not read as tensors (.bin, .pt, .gguf), which would be sent whole with every version.
MAX_FILE_BYTES = 2 << 30
#: Maximum bytes of all HEADERs of a checkpoint, which are kept in memory. 40,000 tensors take about 5 MB.
MAX_HEADERS_BYTES = 256 << 20


class FileOffset(NamedTuple):
    """The start of a tensor's bytes: `offset` bytes into `file`, a path within the checkpoint."""

    file: str
    offset: int


class CheckpointLayout(msgspec.Struct, frozen=True):
    """The places of all tensors in files.

    offsets: of every tensor of every kind, sorted by spec. sizes: bytes of every file.
    """

    offsets: dict[TensorSpec, FileOffset]
    sizes: dict[str, int]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes.values())

    def contents(self) -> dict[str, dict[TensorSpec, int]]:
        """Returns for each file its tensors and their offsets: files with equal contents have the same layout."""
        found: dict[str, dict[TensorSpec, int]] = {name: {} for name in self.sizes}
        for spec, where in self.offsets.items():
            found[where.file][spec] = where.offset
        return found


EMPTY_LAYOUT = CheckpointLayout({}, {})


def compute_layout(headers: Mapping[str, bytes], files: Mapping[str, int] | None = None) -> CheckpointLayout:
    """Computes the layout of safetensors files with these headers, and of other `files` of these sizes, by path.

    Raises `FormatError` for hostile names, headers or sizes, and for names that conflict.
    """
    files = files or {}
    parsed: dict[str, list[HeaderEntry]] = {}
    sizes = dict(files)
    for path in sorted(headers):
        parsed[path], sizes[path] = parse_header(headers[path], path)
    _check_files(headers, files)
    if (total := sum(map(len, headers.values()))) > MAX_HEADERS_BYTES:
        raise FormatError(f"{total} bytes of headers are over the limit of {MAX_HEADERS_BYTES}")
    offsets = {blob_spec(TensorKind.HEADER, path, len(data)): FileOffset(path, 0) for path, data in headers.items()}
    offsets |= {blob_spec(TensorKind.FILE, path, size): FileOffset(path, 0) for path, size in files.items()}
    seen = Counter(entry.spec.name for entries in parsed.values() for entry in entries)
    names: set[str] = set()
    for path, entries in parsed.items():
        for spec, offset in entries:
            name = spec.name if seen[spec.name] == 1 else f"{path}#{spec.name}"
            if name in names:
                raise FormatError(f"{path}: tensor name {name!r} is not unique")
            names.add(name)
            offsets[TensorSpec(spec.kind, name, spec.dtype, spec.shape)] = FileOffset(path, offset)
    return CheckpointLayout({spec: offsets[spec] for spec in sorted(offsets)}, sizes)


def check_rows(specs: Iterable[TensorSpec]) -> None:
    """Raises `FormatError` if a manifest's specs have file names, kinds or sizes that no checkpoint can have."""
    sizes = {int(kind): 0 for kind in TensorKind}
    seen: set[tuple[int, str]] = set()
    for spec in specs:
        if (spec.kind, spec.name) in seen:
            raise FormatError(f"the manifest has {spec.name!r} twice")
        seen.add((spec.kind, spec.name))
        if spec.kind not in sizes:
            raise FormatError(f"the manifest has {spec.name!r} of unknown kind {spec.kind}; update p2psync")
        sizes[spec.kind] += spec.nbytes
        if spec.kind != TensorKind.TENSOR:
            if spec.dtype != "U8" or len(spec.shape) != 1:
                raise FormatError(f"the manifest's file {spec.name!r} is not a run of bytes")
            _check_name(spec.name, spec.kind)
    if sizes[TensorKind.FILE] > MAX_FILE_BYTES:
        raise FormatError(
            f"{sizes[TensorKind.FILE]} bytes of files beside the weights are over the limit: {MAX_FILE_BYTES}"
        )
    if sizes[TensorKind.HEADER] > MAX_HEADERS_BYTES:
        raise FormatError(f"{sizes[TensorKind.HEADER]} bytes of headers are over the limit of {MAX_HEADERS_BYTES}")


def _check_files(headers: Iterable[str], files: Mapping[str, int]) -> None:
    paths: set[str] = set()
    for kind, names in ((TensorKind.HEADER, headers), (TensorKind.FILE, files)):
        for name in names:
            _check_name(name, kind)
            if name in paths:
                raise FormatError(f"file {name!r} appears twice")
            paths.add(name)
    for name in paths:
        parts = name.split("/")
        if any("/".join(parts[:depth]) in paths for depth in range(1, len(parts))):
            raise FormatError(f"{name!r} lies in a directory that is a file too")
    total = sum(files.values())
    if total > MAX_FILE_BYTES:
        largest = max(files, key=lambda name: files[name])
        raise FormatError(
            f"{total} bytes of files beside the safetensors are over the limit of {MAX_FILE_BYTES}; "
            f"the largest is {largest!r}: convert weights to safetensors, or move it away"
        )


def _check_name(name: str, kind: int) -> None:
    check_file_name(name)
    if is_weights(name) != (kind == TensorKind.HEADER):
        raise FormatError(f"file {name!r} is of the wrong kind: safetensors files and only they have headers")
