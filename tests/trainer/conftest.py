"""Shared parts: those of the tests of the store and of membership are importable here too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from watch_parts import Disk

sys.path[:0] = [str(Path(__file__).parent.parent / package) for package in ("store", "membership")]


@pytest.fixture
def disk() -> Disk:
    """An empty watched directory."""
    return Disk()
