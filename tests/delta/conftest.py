"""Kernels are compiled once for all workers: a second one waits for the first rather than compile the same."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _compiled(compiled: None) -> None:
    """No test is timed while it compiles."""
