"""`p2psync doctor`: each look, at machines of every kind, and the command."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from p2psync.cli import doctor, doctor_machine, doctor_network
from p2psync.cli.finding import Finding, State

_ENDLESS = resource.RLIM_INFINITY


@pytest.fixture
def command() -> Typer:
    app = Typer()
    app.command()(doctor.doctor)
    return app


def kernel(place: Path, **files: str) -> Path:
    for name, text in files.items():
        (place / name).write_text(text + "\n")
    return place


def mended(finding: Finding) -> Finding:
    """Checks that a finding names a remedy exactly if it is not ok; returns it."""
    assert bool(finding.mend) == (finding.state != "ok")
    assert "\n" not in finding.detail + finding.mend
    return finding


def test_this_machine_is_examined_and_every_complaint_names_a_remedy(tmp_path: Path) -> None:
    report = doctor.examine(tmp_path)
    assert report.ready
    names = [mended(finding).name for finding in report.findings]
    assert len(names) == len(set(names)) == 21
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_a_line_for_each_finding_and_ends_well(command: Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--dir", str(tmp_path)])
    assert result.exit_code == 0
    for name in ("Python", "numba", "BLAKE3", "congestion", "port 7070", "netem"):
        assert any(line.startswith(name) for line in result.stdout.splitlines())


def test_a_machine_without_scipy_is_told_how_to_mend_it() -> None:
    code = "import sys; sys.modules['scipy'] = None; from p2psync.cli.doctor_machine import planner; print(planner())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "state='missing'" in told and "a hub here cannot plan" in told
    assert "mend='pip install --force-reinstall scipy'" in told


def test_json_holds_the_same_findings(command: Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--dir", str(tmp_path), "--json", "-"])
    report = json.loads(result.stdout)
    assert report["ready"] is True
    assert {finding["state"] for finding in report["findings"]} <= {"ok", "could be better", "missing"}


@pytest.mark.parametrize(("state", "code"), [("missing", 1), ("could be better", 0)])
def test_only_something_needed_that_is_missing_ends_in_failure(
    command: Typer, monkeypatch: pytest.MonkeyPatch, state: State, code: int
) -> None:
    found = [Finding("numba", state, "broken", "mend it", needed=True)]
    monkeypatch.setattr(doctor_machine, "findings", lambda directory: found)
    monkeypatch.setattr(doctor_network, "findings", lambda: [Finding("netem", "missing", "no", "modprobe")])
    result = CliRunner().invoke(command, [])
    assert result.exit_code == code
    assert "→ mend it" in result.stdout


def test_an_old_python_is_missing() -> None:
    assert mended(doctor_machine.python((3, 10, 4))).state == "missing"
    assert mended(doctor_machine.python((3, 11, 0))).state == "ok"


def test_a_processor_without_vector_units_could_be_better(tmp_path: Path) -> None:
    finding = mended(doctor_machine.processor(kernel(tmp_path, cpuinfo="flags\t\t: fpu sse2")))
    assert finding.state == "could be better"


def test_an_unreadable_proc_is_no_crash(tmp_path: Path) -> None:
    mended(doctor_machine.processor(tmp_path))
    mended(doctor_machine.memory(tmp_path))
    mended(doctor_network.congestion(tmp_path))
    mended(doctor_network.buffers(tmp_path, "tcp_rmem", "received"))


def test_gpus_are_read_from_the_driver(tmp_path: Path) -> None:
    for index in range(2):
        place = tmp_path / f"driver/nvidia/gpus/0000:0{index}:00.0"
        place.mkdir(parents=True)
        (place / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    assert doctor_machine.gpu(tmp_path) == Finding("CUDA GPU", "ok", "2 × NVIDIA H200")


def test_a_broken_compiler_is_missing_and_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "p2psync.delta.kernels.unit_loops", None)
    monkeypatch.delattr("p2psync.delta.kernels.unit_loops", raising=False)
    finding = mended(doctor_machine.compiler())
    assert (finding.state, finding.needed) == ("missing", True)


def test_a_directory_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    assert [mended(finding).state for finding in doctor_machine.disk(tmp_path)][-1] == "could be better"


@pytest.mark.parametrize(
    ("current", "available", "usable", "state", "mend"),
    [
        ("bbr", "reno cubic bbr", True, "ok", ""),
        ("cubic", "reno cubic bbr", True, "ok", ""),
        ("cubic", "reno cubic bbr", False, "could be better", "add bbr"),
        ("cubic", "reno cubic", False, "could be better", "modprobe"),
    ],
)
def test_bbr_is_recommended_where_connections_cannot_have_it(
    tmp_path: Path, current: str, available: str, usable: bool, state: str, mend: str
) -> None:
    place = kernel(tmp_path, tcp_congestion_control=current, tcp_available_congestion_control=available)
    finding = mended(doctor_network.congestion(place, lambda name: usable))
    assert finding.state == state
    assert finding.mend.startswith(mend)


def test_small_buffers_are_measured_against_a_long_fast_path(tmp_path: Path) -> None:
    place = kernel(tmp_path, tcp_rmem="4096 131072 6291456", tcp_wmem="4096 16384 33554432")
    small = mended(doctor_network.buffers(place, "tcp_rmem", "received"))
    assert small.state == "could be better"
    assert "252 Mbit/s" in small.detail
    assert small.mend == "sysctl -w net.ipv4.tcp_rmem='4096 131072 33554432'"
    assert mended(doctor_network.buffers(place, "tcp_wmem", "sent")).state == "ok"


@pytest.mark.parametrize(
    ("limits", "state", "mend"),
    [
        ((1024, 1 << 20), "could be better", "ulimit"),
        ((1024, 1024), "could be better", "raise"),
        ((1024, _ENDLESS), "could be better", "ulimit"),
        ((_ENDLESS, _ENDLESS), "ok", ""),
        ((4096, 4096), "ok", ""),
    ],
)
def test_few_open_files_could_be_better(limits: tuple[int, int], state: str, mend: str) -> None:
    finding = mended(doctor_network.open_files(limits))
    assert finding.state == state
    assert finding.mend.startswith(mend)


def test_a_port_in_use_is_reported() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        finding = mended(doctor_network.free_port(port, "hub"))
        assert finding.state == "could be better"
        assert "--hub-port" in finding.mend
    assert mended(doctor_network.free_port(port, "hub")).state == "ok"
