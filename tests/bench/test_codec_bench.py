"""The codec's benchmark draws the stated deltas, and measures and prints all figures. Times are not judged."""

import io
import os
from itertools import pairwise, product

import msgspec
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from p2psync.bench import codec, patchers
from p2psync.bench.baselines import BASELINES
from p2psync.bench.codec import BASELINE_NAMES, CodecOptions, drawn, measure_delta, run_codec_bench
from p2psync.bench.deltas import ModelDelta
from p2psync.bench.plot import plot_codec_report
from p2psync.bench.policy import draw_step, model_rows, to_bf16
from p2psync.bench.report import CodecReport
from p2psync.bench.tables import print_codec_report
from p2psync.bench.timing import CodecWork
from p2psync.cli.app import app
from p2psync.delta.container import PROFILES
from p2psync.errors import DigestMismatchError, UsageError


def silent(line: str) -> None:
    """Progress that nobody watches."""


@pytest.fixture(scope="module")
def step():
    rows = model_rows(16 << 20)
    return rows, list(draw_step(rows, 0.01, seed=3))


def test_a_drawn_step_changes_as_many_units_as_asked_and_mostly_by_one(step):
    _, pairs = step
    old, new = (np.concatenate(side) for side in zip(*pairs, strict=True))
    steps = (new - old)[old != new].view(np.int16).astype(int)
    assert 0.008 < steps.size / old.size < 0.013
    assert 0.85 < np.mean(abs(steps) == 1) < 0.95
    assert 0.4 < np.mean(steps > 0) < 0.6


def test_a_unit_changes_about_half_as_often_for_each_step_of_its_exponent(step):
    _, pairs = step
    old, new = (np.concatenate(side) for side in zip(*pairs, strict=True))
    exponent = (old >> 7) & 0xFF
    share = [np.mean((old != new)[exponent == e]) for e in (119, 120, 121, 122)]
    assert all(1.6 < a / b < 2.5 for a, b in pairwise(share))


def test_the_same_seed_draws_the_same_step_and_another_one_another(step):
    rows, _ = step
    again, other = (next(draw_step(rows[1:2], 0.01, seed=seed)) for seed in (3, 4))
    assert np.array_equal(again[0], next(draw_step(rows[1:2], 0.01, seed=3))[0])
    assert not np.array_equal(again[0], other[0])


def test_rounding_to_bf16_is_to_nearest_even():
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -0.0], np.float32)
    assert to_bf16(values).tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x8000]


@pytest.fixture(scope="module")
def short_form(tmp_path_factory):
    """The output of `p2psync bench codec --quick`: text, report, picture."""
    folder = tmp_path_factory.mktemp("bench")
    words = ["--quick", "--json", str(folder / "codec.json"), "--plot", str(folder / "codec.png")]
    ended = CliRunner().invoke(app, ["bench", "codec", *words])
    assert ended.exit_code == 0, ended.output
    report = msgspec.json.decode((folder / "codec.json").read_bytes(), type=CodecReport)
    return ended.output, report, (folder / "codec.png").read_bytes()


@pytest.fixture(scope="module")
def report(short_form):
    return short_form[1]


def test_the_short_form_measures_every_format_once_and_all_speeds(report):
    cores = {1, len(os.sched_getaffinity(0))}
    assert [delta.asked_density for delta in report.deltas] == [0.003, 0.01, 0.04]
    for delta in report.deltas:
        names = [size.name for size in delta.formats]
        left_out = {line.split()[0] for line in delta.skipped}
        assert sorted({*names} | left_out) == sorted((*BASELINE_NAMES, "fast", "tight"))
        assert len(set(names)) == len(names)
        assert delta.bounds.changed == delta.changed
        assert {(speed.profile, speed.threads) for speed in delta.speeds} == set(product(PROFILES, cores))
        for speed in delta.speeds:
            assert len(speed.scan_ratios) == len(speed.encode_ratios) == len(speed.decode_ratios) == report.rounds == 2
    assert msgspec.json.decode(msgspec.json.encode(report), type=CodecReport) == report


def test_sizes_lie_where_theory_puts_them(report):
    for delta in report.deltas:
        bits = {size.name: size.bits for size in delta.formats}
        bounds = delta.bounds
        assert bounds.exponent.bits < bits["tight"] < bits["fast"] < bits["xor"] < bits["nemo"] < bits["pulse"]
        assert bits["pulse"] < bits["sparrow"] < bits["int32"]
        assert bounds.exponent.bits < bounds.independent.bits < bits["xor"]
        assert delta.times_smaller("tight", "sparrow") > 2.8
        assert delta.full_to_payload("tight") == pytest.approx(delta.model_bytes * 8 / bits["tight"] / delta.changed)


def test_a_budget_is_scaled_by_bytes_and_by_cores(report):
    assert [budget.profile for budget in report.budgets] == list(PROFILES)
    for budget in report.budgets:
        assert budget.delta == "drawn 1 %"
        stages = {stage.cores: stage for stage in budget.stages}
        assert set(stages) == {1, 2, 8, len(os.sched_getaffinity(0))}
        for cores, stage in stages.items():
            assert stage.measured == (cores in budget.read_rates)
            assert stage.bandwidth == pytest.approx(2 * budget.full_bytes / stage.publish)
            if not stage.measured:
                assert stage.publish == pytest.approx(stages[1].publish / cores)
                assert stage.first_chunk == stages[1].first_chunk


def test_tables_name_every_format_and_the_plot_is_a_picture(short_form):
    text, _, picture = short_form
    for words in ("SparrowRL", "PULSE", "NeMo-RL", "p2psync tight", "given the old exponent", "scan and extract", "8B"):
        assert words in text
    assert picture.startswith(b"\x89PNG")


def test_a_plot_that_cannot_be_written_is_an_error_in_one_line(report, tmp_path):
    with pytest.raises(UsageError, match="cannot write"):
        plot_codec_report(report, tmp_path / "nowhere" / "codec.png")


def test_a_model_that_lies_in_caches_is_not_timed():
    report = run_codec_bench(drawn(4 << 20, [0.01], 5, silent), CodecOptions(baselines=("sparrow",)))
    (delta,) = report.deltas
    assert delta.speeds == report.budgets == []
    assert [size.name for size in delta.formats] == ["sparrow", "fast", "tight"]
    out = io.StringIO()
    print_codec_report(report, Console(file=out, width=150))
    assert "p2psync tight" in out.getvalue() and "read both copies" not in out.getvalue()


def test_only_formats_written_here_from_descriptions_are_said_to_be_rebuilt(report, short_form):
    for delta in report.deltas:
        rebuilt = {size.name for size in delta.formats if size.rebuilt}
        assert rebuilt == {baseline.name for baseline in BASELINES}
    assert "rebuilt here from their published descriptions" in short_form[0]


def test_a_dense_delta_is_drawn_of_a_smaller_model(monkeypatch):
    monkeypatch.setattr(codec, "DENSE_BYTES", 2 << 20)
    sizes = {delta.asked_density: delta for delta in drawn(8 << 20, [0.01, 0.5], 1, silent)}
    assert sizes[0.5].model_bytes < 3 << 20 < sizes[0.01].model_bytes
    changed = sum(
        np.count_nonzero(old != new) for old, new in zip(sizes[0.5].old_bits, sizes[0.5].new_bits, strict=True)
    )
    assert 0.4 < changed / sizes[0.5].units < 0.6


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--size", "lots"], "--size"),
        (["--profile", "loose"], "--profile"),
        (["--baselines", "gzip"], "no format 'gzip'"),
        (["--size", "0MB", "--trajectories", ".", "--steps", "0"], "--steps"),
        (["--size", "0MB", "--trajectories", ".", "--models", "gpt"], "no model 'gpt'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_measured(words, told):
    ended = CliRunner().invoke(app, ["bench", "codec", *words])
    assert ended.exit_code != 0
    assert isinstance(ended.exception, UsageError) and told in str(ended.exception)


def test_a_wrong_bit_ends_the_benchmark():
    delta = next(drawn(1 << 20, [0.01], 0, silent))
    with CodecWork(delta, "fast", 1) as work:
        work.encode()
        work.remember()
        delta.old_bits[1][:] ^= 1
        with pytest.raises(DigestMismatchError):
            work.apply()


def test_a_missing_tool_is_reported_and_left_out(monkeypatch):
    monkeypatch.setattr(patchers.shutil, "which", lambda program: None)
    delta = next(drawn(1 << 20, [0.01], 0, silent))
    measured = measure_delta(delta, CodecOptions(baselines=("bsdiff", "int32")), silent)
    assert measured.skipped == ["bsdiff skipped: not installed (Debian package bsdiff)"]
    assert measured.format("bsdiff") is None and measured.format("int32") is not None


def test_a_part_holds_the_same_share_of_every_tensor():
    old_bits = [np.arange(1000, dtype=np.uint16), np.arange(5000, 5400, dtype=np.uint16)]
    old, new = patchers.cut_part(old_bits, [part + 1 for part in old_bits], 700)
    assert old.tolist() == [*range(250), *range(5000, 5100)]
    assert np.array_equal(new, old + 1)


def test_work_on_several_cores_is_the_work_of_one(step):
    rows, pairs = step
    old_bits, new_bits = map(list, zip(*pairs, strict=True))
    delta = ModelDelta(name="", source="", rows=rows, old_bits=[old.copy() for old in old_bits], new_bits=new_bits)
    with CodecWork(delta, "tight", 2) as work:
        work.encode()
        work.remember()
        work.stage()
        work.commit()
        work.check()
        work.undo()
    assert all(map(np.array_equal, delta.old_bits, old_bits))
