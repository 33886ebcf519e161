"""The two programs of the README run as they stand, and are typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import private_network
import pytest
from pages import ROOT, blocks

#: Kept from run to run: most of the time goes by torch's types.
CACHE = str(ROOT / ".mypy_cache" / "readme")
PROGRAMS = [block.text for block in blocks(ROOT / "README.md") if block.language == "python"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with both programs, and the keys that the README's command makes."""
    trainer, subscriber = PROGRAMS
    (tmp_path / "trainer.py").write_text(trainer)
    (tmp_path / "subscriber.py").write_text(subscriber)
    new = [sys.executable, "-m", "p2psync", "keys", "new", "trainer.key"]
    with (tmp_path / "trainer.pub").open("w") as out:
        subprocess.run(new, cwd=tmp_path, env=environment(), stdout=out, check=True, timeout=60)
    return tmp_path


def environment() -> dict[str, str]:
    """Returns the environment of this process, with the checkout on Python's path."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@private_network.needs_root
def test_trainer_and_subscriber_end_with_the_same_version(place: Path, compiled: None) -> None:
    def run() -> tuple[str, str]:
        started = [
            subprocess.Popen(
                [sys.executable, program], cwd=place, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True,
            )
            for program in ("trainer.py", "subscriber.py")
        ]  # fmt: skip
        try:
            ended = [process.communicate(timeout=150) for process in started]
        finally:
            for process in started:
                process.kill()
        assert [process.returncode for process in started] == [0, 0], ended
        return ended[0][0].strip(), ended[1][0].strip()

    trainer, subscriber = private_network.inside(run)
    assert "version=3" in trainer
    assert subscriber.startswith(trainer)


def test_the_programs_are_as_short_as_the_readme_says() -> None:
    lines = [sum(1 for line in program.splitlines() if line.strip()) for program in PROGRAMS]
    assert len(lines) == 2
    assert lines[0] <= 15
    assert lines[1] <= 10


def test_the_programs_pass_strict_typing(place: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", CACHE]
    done = subprocess.run(
        [*command, "trainer.py", "subscriber.py"],
        cwd=place, env={**environment(), "MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_fits_on_three_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
