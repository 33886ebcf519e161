"""Checkpoints made by hand: every dtype, every bit pattern, any layout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from p2psync.delta.tensors import DTYPE_BITS, TensorKind, TensorSpec
from p2psync.engines.offline import delta_commands


class Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


#: A safetensors file (tensors in the order of their data), or the bytes of any other file.
File = dict[str, Tensor] | bytes
Files = dict[str, File]


def safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A file of these tensors, laid out in the order given, which the library need not have chosen."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        offsets = [end, end + len(tensor.data)]
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        end = offsets[1]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(tensor.data for tensor in tensors.values())


def write(root: Path, files: Files) -> Path:
    root.mkdir(parents=True)
    for name, file in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file if isinstance(file, bytes) else safetensors(file))
    return root


def contents(root: Path) -> dict[str, bytes]:
    """Every file below `root`, hidden ones too, or the one file that it is."""
    if root.is_file():
        return {"": root.read_bytes()}
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory in memory, where fsync costs nothing."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        yield Path(place)
        shutil.rmtree(place, ignore_errors=True)
        Path(place).mkdir()


def bf16(*bits: int) -> Tensor:
    return Tensor("BF16", (len(bits),), np.array(bits, "<u2").tobytes())


def bump(tensor: Tensor, every: int, seed: int = 0) -> Tensor:
    """The tensor with one unit in `every` changed by a small step."""
    units = np.frombuffer(tensor.data, "<u2").copy()
    where = np.random.default_rng(seed).choice(units.size, max(1, units.size // every), replace=False)
    units[where] += np.random.default_rng(seed + 1).choice(np.array([1, 65535, 2, 900], "<u2"), where.size)
    return tensor._replace(data=units.tobytes())


def model(units: int = 600_000, seed: int = 0) -> Files:
    """A matrix of several blocks, a scalar, an empty tensor, and a configuration."""
    data = np.random.default_rng(seed).integers(0, 1 << 16, units, np.uint16).tobytes()
    tensors = {
        "w": Tensor("BF16", (units,), data),
        "scale": Tensor("F32", (), b"\0\0\x80\x3f"),
        "none": Tensor("F16", (0, 4), b""),
    }
    return {"model.safetensors": tensors, "config.json": b'{"a": 1}'}


def step(files: Files, seed: int = 0) -> Files:
    weights = files["model.safetensors"]
    assert isinstance(weights, dict)
    return {**files, "model.safetensors": {**weights, "w": bump(weights["w"], 100, seed)}}


def round_trip(place: Path, old: Files, new: Files) -> delta_commands.DiffReport:
    a, b = write(place / "a", old), write(place / "b", new)
    report = delta_commands.diff(a, b, place / "d")
    delta_commands.apply(a, place / "d", place / "out")
    assert contents(place / "out") == contents(b)
    return report


_NAMES = ("embed", "layer.0.weight", "layer.0.bias", "norm", "é")
_PATHS = ("model-1.safetensors", "model-2.safetensors", "sub/x.safetensors", "config.json", "tok/vocab.txt")


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(list(DTYPE_BITS)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    if DTYPE_BITS[dtype] < 8:
        shape = (*shape, 4)
    count = TensorSpec(TensorKind.TENSOR, "", dtype, shape).nbytes
    return Tensor(dtype, shape, draw(st.binary(min_size=count, max_size=count)))


weights = st.dictionaries(st.sampled_from(_NAMES), tensors(), max_size=4)


@st.composite
def checkpoints(draw: st.DrawFn) -> Files:
    paths = draw(st.lists(st.sampled_from(_PATHS), unique=True, max_size=4))
    return {path: draw(weights if path.endswith(".safetensors") else st.binary(max_size=40)) for path in paths}


@st.composite
def successors(draw: st.DrawFn, files: Files) -> Files:
    """A checkpoint that has most of its tensors from `files`, at times changed or in another file."""
    pool = {name: tensor for file in files.values() if isinstance(file, dict) for name, tensor in file.items()}
    made = draw(checkpoints())
    for path, file in files.items():
        if draw(st.booleans()):
            made[path] = file
    for file in made.values():
        if isinstance(file, dict):
            for name in list(file):
                if name in pool and draw(st.booleans()):
                    file[name] = draw(changed(pool[name]))
    return made


@st.composite
def changed(draw: st.DrawFn, tensor: Tensor) -> Tensor:
    data = bytearray(tensor.data)
    for _ in range(draw(st.integers(0, 3)) if data else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return tensor._replace(data=bytes(data))
