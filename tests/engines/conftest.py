"""The parts of the store's tests that end processes and fill disks serve here too."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "store"))


@pytest.fixture
def ram_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is such a place: files after SIGKILL do not depend on the disk."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared, prefix="p2psync-test-") as made:
        yield Path(made)
