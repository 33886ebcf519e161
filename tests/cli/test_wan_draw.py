"""`p2psync wan draw`: a network from a seed, as a file that the other commands take."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2psync.cli import main
from p2psync.topology.model import load
from p2psync.topology.places import draw_places


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["p2psync", "wan", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return ended.value.code if isinstance(ended.value.code, int) else 0


def test_a_drawn_network_can_be_planned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "drawn.toml"
    assert run(monkeypatch, "draw", 4, "-o", file) == 0
    assert load(file) == draw_places(4)
    assert run(monkeypatch, "plan", file) == 0
    assert "of the bound" in capfd.readouterr().out


def test_a_network_is_written_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "draw", 5, "--hosts", 6) == 0
    (tmp_path / "drawn.toml").write_text(capfd.readouterr().out)
    assert load(tmp_path / "drawn.toml") == draw_places(5, hosts=6)


def test_a_file_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "draw", 4, "-o", tmp_path / "none" / "drawn.toml") == 2
    assert len(capfd.readouterr().err.splitlines()) == 1
