"""The bench of the loop: its scale, its figures, and a short one of real processes each way."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from p2psync.bench.rl.bench import RlBench
from p2psync.bench.rl.figures import figures, idle
from p2psync.bench.rl.generator import ActorResult, CommitRecord, SlotTimes
from p2psync.bench.rl.learner import LearnerStep
from p2psync.bench.rl.report import Idle, LoopRun, RlReport, lines
from p2psync.bench.rl.scale import (
    FIFO,
    FREE,
    FULL,
    P2PSYNC,
    SPARSE,
    LoopOptions,
    lengths,
    quick_options,
    shapes,
    topology,
)
from p2psync.bench.rl.tables import print_rl_report, spreads
from p2psync.topology.emulator import why_not

torch = pytest.importorskip("torch")
_reason = why_not()
needs_networks = pytest.mark.skipif(_reason is not None, reason=_reason or "")


def ran(way: str, tokens: float, **more: object) -> LoopRun:
    """A run that came to so many tokens/s."""
    return LoopRun(way=way, gbit=1.0, regions=4, actors=8, tokens_per_second=tokens, **more)  # type: ignore[arg-type]


def report(runs: list[LoopRun]) -> RlReport:
    """A report of these."""
    return RlReport(
        runs=runs,
        generation=60,
        learning=30,
        answer=12,
        staleness=1,
        density=0.01,
        model_bytes=64_000_000,
        faster=6,
        speed=2560,
        slots=8,
        warm=2,
    )


def test_a_whole_copy_takes_as_long_as_that_of_the_real_model() -> None:
    options = LoopOptions(model_bytes=64_000_000, faster=1)
    assert options.rate(1.0) == pytest.approx(4.0)
    assert 8 * options.model_bytes / (options.rate(0.25) * 1e6) == pytest.approx(16e9 * 8 / 0.25e9)
    assert LoopOptions(model_bytes=64_000_000, faster=6).rate(1.0) == pytest.approx(24.0)
    assert 2 * sum(rows * columns for rows, columns in shapes(64_000_000)) == pytest.approx(64e6, rel=0.02)


@pytest.mark.parametrize("regions", [1, 2, 3, 4])
def test_the_trainer_is_alone_and_every_region_is_linked_with_every_other(regions: int) -> None:
    made = topology(LoopOptions(actors=3), regions, 1.0)
    made.check()
    assert [host for host, region in made.hosts if region == "r0"] == [made.trainer]
    assert len(made.hosts) == 1 + 3 * regions
    assert len(made.link) == regions * (regions + 1) // 2
    assert all(15 <= link.delay_ms <= 75 for link in made.link)


def test_every_step_asks_for_as_many_tokens_as_the_actors_make_in_its_time() -> None:
    options = LoopOptions()
    for step in range(3):
        drawn = lengths(options, 8, step)
        assert len(drawn) == 8 * 40
        assert sum(drawn) == pytest.approx(8 * options.speed * options.generation, rel=0.001)
        assert max(drawn) < 2.5 * options.tokens
    assert lengths(options, 8, 1) != lengths(options, 8, 2)
    assert lengths(options, 8, 1) == lengths(options, 8, 1)


def test_a_step_changes_the_given_share_of_units(tmp_path: Path) -> None:
    from p2psync.bench.rl.weights import Optimizer, draw_masters, make_module, sha256

    path = tmp_path / "masters.npy"
    np.save(path, draw_masters([(64, 4096)] * 2, 1))
    one, other = make_module([(64, 4096)] * 2, path), make_module([(64, 4096)] * 2, path)
    assert sha256(one) == sha256(other)
    optimizer = Optimizer(one, path, 0.01, 1)
    for _ in range(2):
        before = torch.cat([p.data.view(torch.int16).flatten().clone() for p in one.parameters()])
        optimizer.step()
        after = torch.cat([p.data.view(torch.int16).flatten() for p in one.parameters()])
        assert (before != after).float().mean().item() == pytest.approx(0.01, rel=0.05)
    assert sha256(one) != sha256(other)


def said(step: int, at: float) -> LearnerStep:
    """A step of ten seconds that ends at `at`, with 1000 tokens of ten answers, three of them a version behind."""
    return LearnerStep(
        step=step,
        put=at - 10,
        collected=at - 4,
        learned=at - 1,
        published=at,
        committed=at,
        tokens=1000,
        lags={0: 7, 1: 3},
        payload_bytes=50,
    )


def test_figures_are_of_the_steps_that_count_and_of_the_real_loop() -> None:
    options = LoopOptions(warm=1, faster=5, speed=40)
    commits = [CommitRecord(1, 111.0, 0.5, 1.0), CommitRecord(2, 122.0, 0.001, 2.0), CommitRecord(3, 129.0, 0.003, 2.0)]
    actor = ActorResult(version=3, sha256="x", commits=commits, spent=[], outcomes={"accepted": 30, "duplicate": 2})
    made = figures(
        *(options, LoopRun(way=P2PSYNC, gbit=1, regions=1, actors=0)),
        [said(0, 110), said(1, 120), said(2, 130)],
        {"r1-0": actor},
        {"3": "y"},
        [500, 700, 800],
    )
    assert made.counted == 2
    assert made.seconds_per_step == 50
    assert made.tokens_per_second == 2000 / 100
    assert made.share == 0.5
    assert (made.staleness_mean, made.staleness_most) == (0.3, 1)
    assert made.spread == [2.0, -1.0]  # of versions 2 and 3
    assert (made.uplink_bytes, made.payload_bytes) == (150, 50)
    assert made.refused == {"duplicate": 2}
    assert made.other_weights == ["r1-0"]


def test_idle_time_is_counted_between_two_moments() -> None:
    notes = [
        SlotTimes(0, 0, 0, 50, 0),
        SlotTimes(8, 80, 0, 50, 0),
        SlotTimes(16, 128, 4, 58, 4),
        SlotTimes(30, 160, 99, 99, 99),
    ]
    assert idle([notes], 7, 17) == Idle(without_work=4 / 64, without_version=8 / 64, paused=4 / 64)
    assert idle([notes[:1]], 0, 99).whole == 0


def test_the_costs_of_staging_and_of_other_processes_are_separate() -> None:
    notes = [SlotTimes(0, 0, 0, 0, 0, 0, 0), SlotTimes(10, 70, 0, 0, 0, 20, 10)]
    assert idle([notes], 0, 10) == Idle(staging=0.2, behind=0.1)
    assert idle([notes], 0, 10).whole == pytest.approx(0.3)


def test_runs_are_compared_on_their_own_network() -> None:
    runs = [ran(FREE, 100), ran(P2PSYNC, 98), ran(FULL, 14), ran(FREE, 50, trouble="it ended")]
    found = {line.run.way: (line.lost, line.times) for line in lines(runs[:3])}
    assert found[P2PSYNC] == (pytest.approx(0.02), 7)
    assert found[FREE] == (None, pytest.approx(100 / 14))
    assert found[FULL] == (pytest.approx(0.86), None)
    with_fifo = lines([*runs[:3], ran(FIFO, 49, ideal_tokens_per_second=70, ideal_copy_seconds=88)])
    (mine,) = [line for line in with_fifo if line.run.way == P2PSYNC]
    assert (mine.times, mine.to_ideal) == (2, pytest.approx(1.4))  # the fastest full broadcast counts
    (line,) = lines([runs[3]])
    assert (line.lost, line.times) == (None, None)


def test_rounds_count_by_their_median_and_the_middle_run_is_shown() -> None:
    runs = [ran(P2PSYNC, tokens, round=i) for i, tokens in enumerate((90, 60, 80))]
    (mine, full) = lines([*runs, ran(FULL, 40), ran(FULL, 0, round=1, trouble="it ended")])
    assert (mine.tokens, mine.least, mine.most, mine.run.round) == (80, 60, 90, 2)
    assert (mine.times, full.tokens) == (2, 40)
    assert spreads(report(runs)) == ["1 Gbit/s, 4 region(s): p2psync makes 80 tokens/s (60 – 90 in 3 rounds)"]


def test_a_report_can_be_printed_drawn_and_read_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from p2psync.bench.rl.plot import plot_rl_report

    fifo = ran(FIFO, 49, ideal_tokens_per_second=70, ideal_copy_seconds=88, skipped=1)
    runs = [ran(FREE, 100), ran(P2PSYNC, 98, other_weights=["r1-0"]), ran(FULL, 14), fifo]
    made = report([*runs, ran(P2PSYNC, 0, trouble="the trainer ended")])
    text = io.StringIO()
    print_rl_report(made, Console(file=text, width=200))
    for words in ("are arithmetic", "2.0 %", "2.00×", "OTHER WEIGHTS", "the trainer ended", "fastest", "never sent"):
        assert words in text.getvalue()
    plot_rl_report(made, tmp_path / "rl.png")
    assert (tmp_path / "rl.png").stat().st_size > 10_000
    assert msgspec.json.decode(msgspec.json.encode(made), type=RlReport) == made


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ways", "telepathy"),
        ("--gbit", "much"),
        ("--regions", "5"),
        ("--regions", "1.5"),
        ("--gbit", "0"),
        ("--steps", "1"),
    ],
)
def test_wrong_options_are_refused(arguments: tuple[str, ...], refused: Callable[..., tuple[int, str]]) -> None:
    code, told = refused("rl", *arguments)
    assert code == 2
    assert told


@pytest.mark.root
@needs_networks
def test_a_loop_of_real_processes_learns_the_same_each_way_and_ends_with_the_published_weights() -> None:
    options = replace(quick_options(LoopOptions()), steps=4, full_steps=3, model_bytes=4_000_000)
    made = RlBench(options).run()
    assert [run.way for run in made.runs] == [FREE, P2PSYNC, FULL, FIFO, SPARSE]
    for run in made.runs:
        assert run.trouble == ""
        assert run.other_weights == []
        assert run.staleness_most <= 1
        assert [step.tokens for step in run.steps] == [sum(lengths(options, 2, i)) for i in range(len(run.steps))]
    free, p2psync, full, fifo, sparse = made.runs
    assert not any(step.live for step in free.steps)
    assert all(len(step.live) == 2 for step in p2psync.steps[:-1])
    assert fifo.ideal_copy_seconds > 50
    assert sparse.steps[0].live == sparse.steps[1].live  # version 1 is never sent: 2 comes in its place
    assert 0 < p2psync.payload_bytes < 0.1 * options.model_bytes
    assert full.payload_bytes > 0.5 * options.model_bytes
