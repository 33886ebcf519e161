"""A killed trainer loses and doubles nothing: the short form of `python tests/ledger/kills.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_trainer_that_is_killed_at_random_moments_trains_on_each_prompt_once() -> None:
    # A process of its own: it forks, which one that has threads must not.
    script = Path(__file__).with_name("kills.py")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, script, "--kills", "8"], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8 kills")
