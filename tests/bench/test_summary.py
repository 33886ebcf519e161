"""The figures of all benchmarks in one form: medians with their spread, CSV, JSON, and two reports side by side."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from p2psync.bench.pause.report import PauseReport, ShareReport, times_of
from p2psync.bench.pause.report import figures as pause_figures
from p2psync.bench.pause.tables import print_pause_report
from p2psync.bench.relay.report import Passage, RelayReport
from p2psync.bench.relay.report import figures as relay_figures
from p2psync.bench.rl.report import Idle, LoopRun, LoopStep, RlReport
from p2psync.bench.rl.report import figures as loop_figures
from p2psync.bench.summary import Figure, compare_reports, read_report, summarize, with_figures, write_csv
from p2psync.bench.swarm.report import RaceRun, SwarmReport
from p2psync.bench.swarm.report import figures as swarm_figures
from p2psync.cli.app import app
from p2psync.errors import UsageError


def named(figures: list[Figure]) -> dict[tuple[str, str], Figure]:
    return {(figure.subject, figure.name): figure for figure in figures}


def shown(table: object) -> str:
    text = io.StringIO()
    Console(file=text, width=160).print(table)
    return text.getvalue()


def pause_report(*pauses: float) -> PauseReport:
    times = times_of({"pause": list(pauses), "scatter": [0.001] * len(pauses)}, 80_000)
    share = ShareReport(share=0.01, elements=80_000, times=times)
    return PauseReport(model="m", model_bytes=16_000_000, tensor_parallel=1, requests=2, cpu="x", shares=[share])


def write(path: Path, report: PauseReport, bench: str = "pause") -> Path:
    path.write_bytes(msgspec.json.encode(with_figures(bench, report, pause_figures(report))))
    return path


def test_repeats_are_shown_as_median_and_spread() -> None:
    (figure,) = summarize("x", "time", "s", [3.0, None, 9.0, 4.0])
    assert (figure.median, figure.least, figure.most, figure.runs) == (4.0, 3.0, 9.0, 3)
    assert figure.text == "4 (3 – 9)"
    assert summarize("x", "time", "s", [2.5])[0].text == "2.5"
    assert summarize("x", "time", "s", [None]) == []


def test_a_csv_has_a_line_for_each_figure(tmp_path: Path) -> None:
    path = tmp_path / "figures.csv"
    write_csv(summarize("p2psync, cold", "until all have it", "s", [3.0, 4.0, 9.0]), path)
    with path.open(newline="") as file:
        (line,) = csv.DictReader(file)
    assert line["subject"] == "p2psync, cold"
    assert (float(line["median"]), float(line["least"]), float(line["most"]), line["runs"]) == (4.0, 3.0, 9.0, "3")


def test_a_csv_that_cannot_be_written_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--csv"):
        write_csv([], tmp_path / "nowhere" / "figures.csv")


def test_a_report_with_figures_can_be_read_as_before(tmp_path: Path) -> None:
    report = pause_report(0.004, 0.005)
    path = write(tmp_path / "pause.json", report)
    assert msgspec.json.decode(path.read_bytes(), type=PauseReport) == report
    assert read_report(path).figures == pause_figures(report)


def test_two_reports_are_compared_by_their_medians(tmp_path: Path) -> None:
    one = write(tmp_path / "one.json", pause_report(0.004, 0.004, 0.006))
    other = write(tmp_path / "other.json", pause_report(0.002, 0.003, 0.003))
    text = shown(compare_reports(one, other))
    assert "80000 changed elements, pause" in text
    assert "4 (4 – 6)" in text and "3 (2 – 3)" in text and "0.750" in text
    ended = CliRunner().invoke(app, ["bench", "compare", str(one), str(other)])
    assert ended.exit_code == 0
    assert "0.750" in ended.output


def test_a_figure_missing_in_one_report_is_shown_without_a_ratio(tmp_path: Path) -> None:
    one, other = pause_report(0.004), pause_report(0.004)
    less = msgspec.structs.replace(other, shares=[msgspec.structs.replace(other.shares[0], times=[])])
    text = shown(compare_reports(write(tmp_path / "a.json", one), write(tmp_path / "b.json", less)))
    assert "–" in text and "1.000" not in text


def test_reports_of_different_benches_are_not_compared(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a.json", pause_report(1.0)), write(tmp_path / "b.json", pause_report(1.0), "swarm")
    with pytest.raises(UsageError, match="of bench pause"):
        compare_reports(one, other)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"bench": "pause"}'])
def test_a_file_that_is_no_report_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="no report"):
        read_report(path)
    with pytest.raises(UsageError):
        read_report(tmp_path / "nowhere.json")


def test_a_pause_names_the_number_of_changed_elements_that_it_holds_for() -> None:
    report = pause_report(0.004, 0.005, 0.006)
    figures = named(pause_figures(report))
    assert figures["80000 changed elements, pause", "time"].median == pytest.approx(5.0)
    assert figures["80000 changed elements, pause", "time for an element"].median == pytest.approx(62.5)
    assert all(times.elements == 80_000 for times in report.shares[0].times)
    text = io.StringIO()
    print_pause_report(report, Console(file=text, width=160))
    assert "for 80,000 changed elements the engine stood still" not in text.getvalue()  # nothing was written
    assert text.getvalue().count("80,000") == 3  # the title, and each row


def test_a_races_figures_are_of_runs_that_ended() -> None:
    def ran(seconds: float | None, cold: bool) -> RaceRun:
        return RaceRun(
            contender="aria2",
            round=0,
            cold=cold,
            payload_bytes=1000,
            floor=2.0,
            seconds=seconds,
            finished={},
            trainer_copies=1.5,
            region_copies={},
            cpu_seconds=3.0,
        )

    report = SwarmReport(
        topology="drawn",
        receivers=["b-0"],
        congestion="bbr",
        payload_bytes=1000,
        delta=False,
        floor=2.0,
        bound=50.0,
        because="x",
        limit=9.0,
        runs=[ran(4.0, False), ran(6.0, False), ran(None, False), ran(8.0, True)],
    )
    figures = named(swarm_figures(report))
    assert figures["aria2", "until all have it"].text == "5 (4 – 6)"
    assert figures["aria2, cold", "to the floor"].median == 4.0


def test_a_relays_figures_are_of_each_limit_and_size() -> None:
    def passed(cpu: float, trouble: str = "") -> Passage:
        return Passage("p2psync", 0, 1000.0, 64 << 20, 10**9, 65536, 4.0, cpu, trouble=trouble)

    report = RelayReport(leaves=1, congestion="bbr", passages=[passed(1.0), passed(3.0), passed(9.0, "it ended")])
    figures = named(relay_figures(report))
    assert figures["p2psync, 64 MiB, 1000 Mbit/s", "processor time for a GB"].text == "2 (1 – 3)"


def test_a_loops_repeats_are_the_steps_that_count() -> None:
    def step(at: float) -> LoopStep:
        return LoopStep(
            put=at, collected=at, learned=at, published=at, committed=at, tokens=1, payload_bytes=1, lags={}
        )

    run = LoopRun(
        way="p2psync",
        gbit=1.0,
        regions=1,
        actors=2,
        steps=[step(0), step(5), step(15), step(27)],
        counted=2,
        tokens_per_second=100,
        idle=Idle(staging=0.02),
    )
    report = RlReport(
        runs=[run],
        generation=60,
        learning=30,
        answer=12,
        staleness=1,
        density=0.01,
        model_bytes=64,
        faster=6,
        speed=2560,
        slots=8,
        warm=2,
    )
    figures = named(loop_figures(report))
    subject = "p2psync, 1 Gbit/s, 1 region(s)"
    assert figures[subject, "step"].text == "66 (60 – 72)"
    assert figures[subject, "idle: staging"].median == 0.02
