"""The compiled packet loop is not loaded from the cache of other sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2psync.topology.emulator import compiled


def _cached_name() -> str:
    def loop() -> int:
        return 1

    compiled.entry(loop)
    return loop.__qualname__


def test_a_changed_module_gives_the_compiled_loop_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _cached_name()
    assert _cached_name() == before, "the same sources give the same name"
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path.name == "segments.py"))
    assert _cached_name() != before
