"""A planning process that lacks a package ends in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_planning_process_without_scipy_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "scipy.py").write_text("raise ModuleNotFoundError(\"No module named 'scipy'\", name='scipy')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "p2psync.topology.plan_process", "0", "1", "0"]
    ended = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert "the hub cannot plan: No module named 'scipy'; `pip install" in ended.stderr
