"""The codec's benchmark draws what it says, measures all that it reports, and prints it."""

import io
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from rich.console import Console

from bench.bounds import measure_bounds
from bench.codec import CodecReport, print_codec_report, run_codec_bench
from bench.policy import draw_step, model_rows, to_bf16


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


def test_rounding_to_bf16_is_to_nearest_even():
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -0.0], np.float32)
    assert to_bf16(values).tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x8000]


def test_knowing_the_exponent_saves_bits_and_no_format_beats_its_bound(step):
    bounds = measure_bounds(step[1])
    assert bounds.entropy_given_exponent < bounds.entropy - 2
    assert bounds.entropy < bounds.gaps_xor_zstd < bounds.gaps16_zstd < bounds.leb128_raw < bounds.int32_raw


@pytest.mark.parametrize("profile", ["fast", "tight"])
def test_a_report_holds_every_figure_and_can_be_written_and_printed(profile):
    report = run_codec_bench(8 << 20, 0.01, 5, profile=profile, rounds=2)
    assert len(report.encode_ratios) == len(report.decode_ratios) == 2
    assert report.bounds.entropy_given_exponent < report.bits_per_changed < 12
    assert report.full_to_payload > 100
    assert msgspec.json.decode(msgspec.json.encode(report), type=CodecReport) == report
    out = io.StringIO()
    print_codec_report(report, Console(file=out, width=120))
    assert "bits per changed unit" in out.getvalue()
