"""`p2psync delta` keeps its contract with scripts and people."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from child_signals import heed_interrupts
from safetensors.numpy import load_file, save_file

from p2psync.cli import main, output
from p2psync.parallel import limit_threads, thread_count

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command line; returns (exit status, stdout, stderr)."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["p2psync", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        code = ended.value.code
        out, err = capfd.readouterr()
        return (code if isinstance(code, int) else 0), out, err

    return call


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Two checkpoints, `old` and `new`, of which 1 % differs."""
    rng = np.random.default_rng(3)
    weights = {"w": rng.integers(0, 1 << 16, (400, 500), np.uint16), "s": np.array(1.5, np.float32)}
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        save_file(weights, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text("{}")
        weights["w"].flat[::100] += 1
    return tmp_path


def failed(result: tuple[int, str, str], code: int = 1) -> str:
    """Checks that a command failed with one line on stderr; returns that line."""
    assert result[0] == code
    assert result[1] == ""
    lines = result[2].splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("p2psync: ")
    return lines[0]


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_diff_and_apply_round_trip_and_report_their_results(run: Run, pair: Path) -> None:
    code, out, err = run("delta", "diff", pair / "old", pair / "new", "-o", pair / "d")
    assert (code, err) == (0, "")
    assert "2,000 of" in out
    assert "GB/s" in out
    code, out, err = run("delta", "apply", pair / "old", pair / "d", "-o", pair / "out")
    assert (code, err) == (0, "")
    assert (pair / "out/model.safetensors").read_bytes() == (pair / "new/model.safetensors").read_bytes()
    assert load_file(pair / "out/model.safetensors")["s"] == 1.5
    assert names(pair / "out") == names(pair / "new")


def test_threads_are_limited_by_flag_or_environment_and_the_bytes_stay(
    run: Run, pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        for number, words in enumerate([(), ("--threads", "1")]):
            assert run(*words, "delta", "diff", pair / "old", pair / "new", "-o", pair / f"d{number}")[0] == 0
        assert thread_count() == 1
        monkeypatch.setenv("P2PSYNC_THREADS", "3")
        run("delta", "info", pair / "d0")
        assert thread_count() == min(3, len(os.sched_getaffinity(0)))
    finally:
        limit_threads(None)
    assert (pair / "d0").read_bytes() == (pair / "d1").read_bytes()


def test_figures_as_json_leave_stdout_to_json_alone(run: Run, pair: Path) -> None:
    _, out, _ = run("delta", "diff", pair / "old", pair / "new", "-o", pair / "d", "--json", "-")
    made: dict[str, Any] = json.loads(out)
    assert made["changed"] == 2000
    assert made["file_bytes"] == (pair / "d").stat().st_size
    _, out, _ = run("delta", "info", pair / "d", "--json", pair / "figures.json")
    assert "2,000 of" in out
    described = json.loads((pair / "figures.json").read_text())
    assert described.items() <= made.items()


def test_every_command_offers_json(run: Run, pair: Path) -> None:
    old, new, d = pair / "old", pair / "new", pair / "d"
    for words in (
        ("diff", old, new, "-o", d),
        ("apply", old, d, "-o", pair / "out"),
        ("info", d),
        ("invert", d, "-o", pair / "inverse"),
        ("squash", d, pair / "inverse", "-o", pair / "nothing"),
    ):
        code, out, _ = run("delta", *words, "--json", "-")
        assert code == 0
        assert json.loads(out)["digest"]


def test_a_chain_squashed_and_inverted_leads_back(run: Run, pair: Path) -> None:
    run("delta", "diff", pair / "old", pair / "new", "-o", pair / "d")
    run("delta", "invert", pair / "d", "-o", pair / "back")
    code, out, _ = run("delta", "squash", pair / "d", pair / "back", "-o", pair / "nothing")
    assert code == 0
    assert "0 of" in out
    run("delta", "apply", pair / "new", pair / "back", "-o", pair / "restored")
    assert (pair / "restored/model.safetensors").read_bytes() == (pair / "old/model.safetensors").read_bytes()


def test_a_wrong_base_is_one_line_and_leaves_nothing(run: Run, pair: Path) -> None:
    run("delta", "diff", pair / "old", pair / "new", "-o", pair / "d")
    before = names(pair)
    assert "already" in failed(run("delta", "apply", pair / "new", pair / "d", "-o", pair / "out"))
    assert names(pair) == before


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("diff", "old", "nowhere", "-o", "x"), 1),
        (("diff", "old", "new", "-o", "missing/x"), 1),
        (("diff", "old", "new/model.safetensors", "-o", "x"), 2),
        (("diff", "old", "new", "-o", "x", "--profile", "best"), 2),
        (("diff", "old", "new", "-o", "old/x"), 2),
        (("diff", "old", "new", "-o", "d"), 1),
        (("apply", "old", "new/config.json", "-o", "x"), 1),
        (("apply", "old", "old", "-o", "x"), 1),
        (("apply", "old", "d", "-o", "old", "--force"), 2),
        (("info", "nowhere"), 1),
        (("info", "new/config.json"), 1),
        (("squash", "d", "d", "-o", "x"), 1),
        (("invert", "new/model.safetensors", "-o", "x"), 1),
    ],
)
def test_a_failing_command_prints_one_line_and_changes_nothing(
    run: Run, pair: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int
) -> None:
    monkeypatch.chdir(pair)
    run("delta", "diff", "old", "new", "-o", "d")
    before = names(pair), (pair / "d").read_bytes()
    failed(run("delta", *words), code)
    assert (names(pair), (pair / "d").read_bytes()) == before


def test_missing_arguments_are_wrong_usage(run: Run) -> None:
    assert run("delta", "diff", "old")[0] == 2


def test_force_replaces_the_outcome(run: Run, pair: Path) -> None:
    for _ in range(2):
        assert run("delta", "diff", pair / "old", pair / "new", "-o", pair / "d", "--force")[0] == 0
        assert run("delta", "apply", pair / "old", pair / "d", "-o", pair / "out", "--force")[0] == 0
    assert names(pair) == ["d", "new", "old", "out"]


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_stopped_command_leaves_nothing(run: Run, pair: Path, signal: str) -> None:
    run("delta", "diff", pair / "old", pair / "new", "-o", pair / "d")
    script = (
        "import contextlib, os, signal, sys\n"
        "from p2psync.cli import main, output\n"
        "@contextlib.contextmanager\n"
        f"def stop(label): yield lambda done, total: os.kill(os.getpid(), signal.{signal})\n"
        "output.progress = stop\n"
        "main.main()"
    )
    words = ["delta", "apply", str(pair / "old"), str(pair / "d"), "-o", str(pair / "out")]
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=heed_interrupts)
    assert done.returncode > 128
    assert "Traceback" not in done.stderr
    assert names(pair) == ["d", "new", "old"]


def test_nothing_heavy_is_loaded_before_a_command_runs() -> None:
    script = "import sys; from p2psync.cli import delta, doctor; print({'numba', 'numpy', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (12_340, "12.3 kB"), (999_600, "1.00 MB"), (15.6e9, "15.6 GB")],
)
def test_sizes_have_three_figures(count: float, text: str) -> None:
    assert output.size(count) == text


@pytest.mark.parametrize(
    ("fraction", "text"), [(0, "0 %"), (1, "100 %"), (0.0102, "1.02 %"), (0.000031, "0.0031 %"), (0.4, "40.0 %")]
)
def test_shares_are_percent(fraction: float, text: str) -> None:
    assert output.share(fraction) == text


@pytest.mark.parametrize(("elapsed", "text"), [(0.314, "0.31 s"), (12.4, "12.4 s"), (200, "3 min 20 s")])
def test_times_are_short(elapsed: float, text: str) -> None:
    assert output.seconds(elapsed) == text


def test_a_tight_delta_is_squashed_and_inverted_given_its_base(run: Run, pair: Path) -> None:
    run("delta", "diff", pair / "old", pair / "new", "-o", pair / "d", "--profile", "tight")
    for words in (("squash", pair / "d"), ("invert", pair / "d")):
        assert "--base" in failed(run("delta", *words, "-o", pair / "x"), 2)
        assert run("delta", *words, "-o", pair / words[0], "--base", pair / "old")[0] == 0
    run("delta", "apply", pair / "new", pair / "invert", "-o", pair / "restored")
    assert (pair / "restored/model.safetensors").read_bytes() == (pair / "old/model.safetensors").read_bytes()
