"""These tests need no GPU, and only the loopback network."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _compiled(compiled: None) -> None:
    """Ranks start together."""
