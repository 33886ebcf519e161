"""The benchmark of a device: right on a CPU, and plain about there being no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "p2psync.bench.device", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_same_code_on_a_cpu_finds_and_writes_the_same() -> None:
    run = bench("--device", "cpu", "--size", "20MB", "--rounds", "1")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["applied"] is True
    assert [rates["equal"] for rates in report["finders"]] == [True]
    assert 0.005 < report["density"] < 0.02


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_bench_measures_nothing_and_reports_that() -> None:
    run = bench()
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "no CUDA device on this machine: nothing was measured\n"
