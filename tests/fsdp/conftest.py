"""Nothing here needs a GPU, nor a network but loopback."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _compiled(compiled: None) -> None:
    """Ranks start together."""
