"""The Triton kernels find the same changes as a CPU, in Triton's interpreter, and compile for real GPUs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)
ELSEWHERE = "triton" in sys.modules
# Triton decides when it is imported whether its functions are compiled or interpreted.
os.environ["TRITON_INTERPRET"] = "1"
from p2psync.engines.device import digest as device_digest  # noqa: E402
from p2psync.engines.device import triton_finder as device_triton  # noqa: E402
from p2psync.engines.device import triton_scatter as device_scatter  # noqa: E402

del os.environ["TRITON_INTERPRET"]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from device_parts import CPU, GRID, WIDTHS, assert_same, masters, on_cpu, pairs_of, tensor_of, versions  # noqa: E402

from p2psync.delta.digest import digest_units  # noqa: E402
from p2psync.engines.device import unit_transfer  # noqa: E402
from p2psync.engines.device.extract import DeviceExtraction  # noqa: E402
from p2psync.engines.device.finder import VersionPair, nan_bits  # noqa: E402
from p2psync.engines.device.unit_transfer import TensorSelection  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    if ELSEWHERE:
        pytest.skip("triton was imported before, to compile")


def extraction(**options: int) -> DeviceExtraction:
    return DeviceExtraction(CPU, GRID, finder=device_triton.TritonFinder(nan_bits(CPU)), **options)


@pytest.mark.parametrize("density", [0.0, 0.01, 0.2])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_the_same_blocks_as_on_a_cpu(dtype: str, density: float) -> None:
    # Around a word, a tile of 1024 words, and a block.
    sizes = (1, 3, 5, 8191, 8192, 8193, GRID + 4097)
    pairs = pairs_of([versions(dtype, count, density, seed) for seed, count in enumerate(sizes)])
    found = list(extraction().extract(pairs))
    assert_same(found, on_cpu(pairs))
    assert bool(found) == (density > 0)


def test_all_changed_is_dense_and_does_not_fit_the_buffers() -> None:
    pairs = pairs_of([versions("F64", GRID + 1000, 1.0)])
    small = extraction(buffer_bytes=1)
    small._density = 0.0
    assert_same(list(small.extract(pairs)), on_cpu(pairs))
    assert small.redone == 1


def test_tensors_that_begin_anywhere() -> None:
    spec, old, new = versions("BF16", 10_000, 0.02)
    crooked = [torch.empty(10_008, dtype=torch.int16)[offset : offset + 10_000] for offset in (1, 3)]
    for view, units in zip(crooked, (old, new), strict=True):
        view.copy_(tensor_of(units))
    pairs = [VersionPair(0, spec, *crooked), VersionPair(1, spec, tensor_of(old), crooked[1])]
    assert not any(pair.aligned for pair in pairs)
    assert_same(list(extraction().extract(pairs)), on_cpu(pairs))


def test_masters_are_rounded_as_torch_rounds_them() -> None:
    found = [masters(count, 0.05, seed) for seed, count in enumerate((7, 1024, 1025, GRID + 9))]
    pairs = [VersionPair(row, spec, tensor_of(old), new) for row, (spec, old, new) in enumerate(found)]
    assert_same(list(extraction().extract(pairs)), on_cpu(pairs))


COMPILE = """
import re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from p2psync.engines.device import digest as device_digest, triton_scatter as device_scatter
from p2psync.engines.device import triton_finder as kernels

pointers = {"table": "*i64", "counts": "*i32", "words": "*i16", "runs": "*i32", "cursor": "*i32", "positions": "*i32"}
numbers = {"capacity": "i32", "tiles": "i32", "nan": "i32"}
for capability in (80, 90):
    for kernel, warps in ((kernels.find_words, kernels.FIND_WARPS), (kernels.write_changes, kernels.WRITE_WARPS)):
        for unit, pack, masters, aligned in (
            ("u8", 8, 0, 1), ("i16", 4, 0, 1), ("i32", 2, 0, 1), ("i64", 1, 0, 1), ("i16", 1, 1, 1), ("i16", 1, 0, 0)
        ):
            if capability < 90 and unit != "i16":
                continue
            types = {**pointers, **numbers, "olds": "*" + unit, "steps": "*" + unit, "unit": "*" + unit}
            fixed = {"PACK": pack, "TILE": kernels.TILE_WORDS, "STEP_UNITS": kernels.STEP_UNITS}
            fixed |= {"MASTERS": bool(masters), "ALIGNED": bool(aligned)}
            names = kernel.arg_names
            source = ASTSource(
                kernel, {n: types.get(n, "constexpr") for n in names}, {n: fixed[n] for n in names if n in fixed}
            )
            made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
            wide = len(re.findall(r"ld\\.global\\.v[248]\\.b(?:64|32)", made.asm["ptx"]))
            print(capability, kernel.__name__, unit, aligned, wide, len(made.asm["cubin"]))
    for gather in (True, False):
        source = ASTSource(
            device_scatter.move_units,
            {"table": "*i64", "positions": "*i32", "values": "*i16", "TILE": "constexpr", "GATHER": "constexpr"},
            {"TILE": device_scatter.TILE, "GATHER": gather},
        )
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32))
        print(capability, "move_units", "i16", 0, 0, len(made.asm["cubin"]))
    source = ASTSource(
        device_digest.sum_tiles,
        {"units": "*i16", "count": "i32", "start": "i64", "key": "*i64", "sums": "*i64", "TILE": "constexpr"},
        {"TILE": device_digest.TILE},
    )
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8})
    print(capability, "sum_tiles", "i16", 0, 0, len(made.asm["cubin"]))
"""


def test_the_kernels_compile_for_gpus_and_read_16_bytes_at_a_time(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "0"}
    run = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines() if re.match(r"\d+ ", line)]
    assert len(lines) == 24
    for _, kernel, _, aligned, wide, size in lines:
        assert int(size) > 0
        if kernel == "find_words":
            assert (int(wide) > 0) == bool(int(aligned))


def test_units_are_gathered_and_written_by_one_launch_for_many_blocks() -> None:
    rng = np.random.default_rng(4)
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
        live = torch.from_numpy(rng.integers(0, 255, 20_000 * dtype.itemsize, np.uint8)).view(dtype)
        other, before = live.flip(0).contiguous(), live.clone()
        few = np.sort(rng.choice(6000, 1500, replace=False)).astype(np.uint32)
        places = [
            TensorSelection(live, 1000, 6000, few),
            TensorSelection(live, 12_000, 2000, None),
            TensorSelection(other, 3, 10, few[:0]),
            TensorSelection(other, 7, 6000, few[:1]),
        ]
        group = unit_transfer._make_group(places)
        found, expected = (torch.empty(group.entries, dtype=dtype) for _ in range(2))
        device_scatter.gather_group(group, found)()
        unit_transfer.torch_gather(group, expected)()
        assert torch.equal(found, expected)
        write = device_scatter.scatter_group(group, expected + 1)
        assert torch.equal(live, before), "only prepared"
        write()
        unit_transfer.torch_gather(group, found)()
        assert torch.equal(found, expected + 1)
        device_scatter.scatter_group(group, expected)()
        assert torch.equal(live, before)


@pytest.mark.parametrize("dtype", [*WIDTHS, "U8"])
def test_the_digest_on_the_device_equals_that_on_a_cpu(dtype: str) -> None:
    for count in (1, 4096, 10_001):
        spec, units, _ = versions(dtype, count, 0.0, count)
        units[: min(9, count)] = np.iinfo(units.dtype).max
        assert device_digest.digest_tensor(spec, tensor_of(units)) == digest_units(spec, units)


def test_a_digest_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_digest, "_SPAN", 5000)
    spec, units, _ = versions("BF16", 12_345, 0.0)
    assert device_digest.digest_tensor(spec, tensor_of(units)) == digest_units(spec, units)
