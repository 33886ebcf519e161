"""A swarm of real daemons for each test, or for a file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from daemon_parts import Swarm

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.fixture(scope="session", autouse=True)
def _compiled(compiled: None) -> None:
    """Compiles the codec first, so that no daemon is timed while it compiles."""


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    """Daemons of one test."""
    made = Swarm(tmp_path, KEY)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """Daemons of one file of tests."""
    made = Swarm(tmp_path_factory.mktemp("swarm"), KEY)
    yield made
    made.close()
