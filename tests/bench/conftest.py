"""Races of real processes, and the commands that begin them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p2psync.cli.main import main


@pytest.fixture(scope="session", autouse=True)
def _compiled(compiled: None) -> None:
    """Compiles the codec before the tests, so that no race includes it."""


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs `p2psync bench …`, which must exit; returns its exit code and stderr."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["p2psync", "bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err.strip()

    return run
