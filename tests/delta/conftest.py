"""Compiles the loops once for all test workers: a second worker waits for the first."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _compiled(compiled: None) -> None:
    """Compiles the codec first, so that no test is timed while it compiles."""
