"""A killed worker serves no wrong bit, and its successor comes back to the newest version: kill.py, in short."""

from __future__ import annotations

import kill
import pytest

pytestmark = pytest.mark.vllm


def test_a_worker_killed_within_a_commit_serves_no_mixed_weights() -> None:
    kill.run(1, 2, seed=5)
