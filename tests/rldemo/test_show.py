"""The demonstration is never silent for long, and begins at once."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from p2psync.rldemo import show
from p2psync.rldemo.cast import Cast


def test_without_a_terminal_a_long_silence_names_the_awaited_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    screen = show.Screen(Console(file=out), Cast(tmp_path), 20, lambda: "the trainer loads its model")
    screen.note("begun")
    for seconds in (2.0, 3.9, 4.1, 8.0, 8.2):
        now[0] = 100.0 + seconds
        screen.refresh()
    assert [line.split("s  ")[1] for line in out.getvalue().splitlines()] == [
        "begun",
        "… the trainer loads its model",
        "… the trainer loads its model",
    ]


def test_the_parent_of_the_demonstration_loads_no_torch() -> None:
    code = "import sys, p2psync.rldemo.demo, p2psync.cli.demo\nprint('torch' in sys.modules, 'numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
