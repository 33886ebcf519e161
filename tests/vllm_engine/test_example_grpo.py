"""The example of GRPO with vLLM actors, as a user runs it: an engine in the actor's process, and a server."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm
RUN = Path(__file__).parents[2] / "examples" / "grpo_vllm" / "run.py"
LIMIT = 900


def test_actors_in_process_and_over_http_answer_each_prompt_once_and_end_with_the_trainers_weights() -> None:
    command = [sys.executable, str(RUN), "--actors", "1", "--servers", "1", "--steps", "3"]
    process = subprocess.Popen([*command, "--", "--prompts", "4", "--samples", "4"], stdout=subprocess.PIPE, text=True)
    try:
        told, _ = process.communicate(timeout=LIMIT)
    finally:
        process.send_signal(signal.SIGTERM)  # it ends its children
        process.wait(60)
    assert process.returncode == 0, told
    # A step whose answers were all as good as each other changes no bit, and makes no version.
    last = re.search(r"^12 prompts, each answered once; 2 actors run version ([123]),", told, re.M)
    assert last is not None, told
    same = rf"^actor-\d: version {last[1]}; vLLM's checksums of all \d+ parameters are those of"
    assert len(re.findall(same, told, re.M)) == 2, told
    behind = [float(row.split()[3]) for row in told.splitlines() if re.match(r" +\d+ +\d\.\d{3} ", row)]
    assert len(behind) == 3
    assert all(mean <= 1.0 for mean in behind), "an answer of more than one version ago was learned from"
