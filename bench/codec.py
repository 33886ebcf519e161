"""Measures the size and speed of the codec on deltas of real training and on drawn ones, against bounds, other formats
and merely reading.

Every format is decoded again and compared bit by bit on the very delta that is reported. Every speed is taken between
two readings of both copies and reported as a ratio to them; the tables show medians. Nothing here asserts a time.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from p2psync.bench import arc, baselines, patchers
from p2psync.bench.bounds import measure_bounds
from p2psync.bench.budget import ModelBudget, measure_budget
from p2psync.bench.deltas import ModelDelta
from p2psync.bench.policy import draw_step, model_rows
from p2psync.bench.report import CodecReport, DeltaReport, FormatSize
from p2psync.bench.timing import CodecWork, measure_speed, timed
from p2psync.delta.container import PROFILES
from p2psync.errors import UsageError
from p2psync.store.encoding import DELTA_BLOCK_UNITS, MAX_DELTA_CHUNK_BYTES

_MEBIBYTE = 1 << 20
#: The name of profile tight where the receiver has the history of a trajectory.
TIGHT_HISTORY = "tight-history"
FORMATS = (*baselines.BASELINES, arc.ARC)
BASELINE_NAMES = tuple(baseline.name for baseline in FORMATS) + tuple(tool.name for tool in patchers.TOOLS)
#: Only models of at least so many bytes are timed: both copies of a smaller one fit into caches, so its reading time
#: says nothing about a real model.
MIN_TIMED_BYTES = 64 * 10**6
#: Drawn deltas of a run that names no density: one as RL makes them, and such as other training makes.
DENSITIES = (0.01, 0.10, 0.25, 0.50)
#: Above this share of changed elements a model of at most `DENSE_BYTES` is drawn: a whole one would take hours.
DENSE_ABOVE = 0.05
DENSE_BYTES = 128 * 10**6
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class CodecOptions:
    """The settings of a run. Sizes are bytes."""

    profiles: Sequence[str] = PROFILES
    baselines: Sequence[str] = BASELINE_NAMES
    rounds: int = 5
    part_bytes: int = 16 * 10**6
    """The part of the model that tools for binary deltas are given."""
    min_timed_bytes: int = MIN_TIMED_BYTES
    all_cores: int = 1
    """Cores of the second measurement of each speed."""
    baseline_bytes: int = 1100 * 10**6
    """The part of the model that other formats are given: their positions take memory."""
    budget_density: float | None = None
    """The drawn delta that the budget is measured on; None: the first delta that is timed."""


def quick_options(options: CodecOptions) -> CodecOptions:
    """Returns options for a run of seconds: two rounds, and little data for tools."""
    return replace(options, rounds=min(2, options.rounds), part_bytes=10**6, min_timed_bytes=0)


def run_codec_bench(
    deltas: Iterator[ModelDelta], options: CodecOptions, progress: Progress = lambda line: None
) -> CodecReport:
    """Measure delta after delta, and the budget on one of them.

    Raises `DigestMismatchError` or `AssertionError` if any format does not end in exactly the new weights.
    """
    for name in options.baselines:
        if name not in BASELINE_NAMES:
            raise UsageError(f"no format {name!r}; there are {', '.join(BASELINE_NAMES)}")
    first_call = _first_call(options)
    reports: list[DeltaReport] = []
    budgets: list[ModelBudget] = []
    for delta in deltas:
        reports.append(measure_delta(delta, options, progress))
        wanted = options.budget_density in (None, delta.asked_density)
        if wanted and not budgets and delta.model_bytes >= options.min_timed_bytes:
            budgets = [
                measure_budget(
                    delta,
                    profile,
                    options.all_cores,
                    options.rounds,
                    progress,
                )
                for profile in options.profiles
            ]
        del delta  # before the next one is drawn: only one is in memory
    return CodecReport(
        deltas=reports,
        budgets=budgets,
        block_units=DELTA_BLOCK_UNITS,
        chunk_bytes=MAX_DELTA_CHUNK_BYTES,
        rounds=options.rounds,
        first_call_seconds=first_call,
        cpu=cpu_name(),
        cpus_allowed=len(os.sched_getaffinity(0)),
    )


def measure_delta(delta: ModelDelta, options: CodecOptions, progress: Progress) -> DeltaReport:
    """Returns sizes of all profiles and baselines, bounds, and the speed of `options.profiles`."""
    progress(f"{delta.name}: bounds")
    bounds = measure_bounds(list(zip(delta.old_bits, delta.new_bits, strict=True)), delta.history, delta.step or 0)
    formats, skipped = _baseline_sizes(delta, options, progress)
    speeds = []
    for profile in PROFILES:
        payload = None
        if profile in options.profiles and delta.model_bytes >= options.min_timed_bytes:
            for cores in sorted({1, options.all_cores}):
                speed, size = measure_speed(delta, profile, cores, options.rounds, progress)
                payload = size if payload is None else payload
                speeds.append(speed)
        if payload is None:
            payload = _size(delta, profile)
        formats.append(
            FormatSize(
                name=profile,
                title=f"p2psync {profile}",
                is_p2psync=True,
                payload_bytes=payload,
                changed=bounds.changed,
            )
        )
    if delta.history is not None and delta.history.last.any():
        progress(f"{delta.name}: tight with history")
        payload = _size(delta, "tight", with_history=True)
        title = "p2psync tight, with history"
        formats.append(
            FormatSize(name=TIGHT_HISTORY, title=title, is_p2psync=True, payload_bytes=payload, changed=bounds.changed)
        )
    return DeltaReport(
        name=delta.name,
        source=delta.source,
        rate=delta.rate,
        step=delta.step,
        asked_density=delta.asked_density,
        model_bytes=delta.model_bytes,
        units=bounds.units,
        changed=bounds.changed,
        formats=formats,
        bounds=bounds,
        speeds=speeds,
        skipped=skipped,
    )


def drawn(model_bytes: int, densities: Sequence[float], seed: int, progress: Progress) -> Iterator[ModelDelta]:
    """Yields deltas drawn from the law by which AdamW changes bf16 weights. One is in memory at a time.

    Those above `DENSE_ABOVE` are of a model of at most `DENSE_BYTES`.
    """
    for density in densities:
        size = model_bytes if density <= DENSE_ABOVE else min(model_bytes, DENSE_BYTES)
        rows = model_rows(size)
        progress(f"drawing {size / 1e9:g} GB of weights and a step that changes {100 * density:g} %")
        old_bits, new_bits = map(list, zip(*draw_step(rows, density, seed), strict=True))
        yield ModelDelta(
            name=f"drawn {100 * density:g} %",
            source=f"weights and a step drawn from the ulp law (bench/policy.py), seed {seed}",
            rows=rows,
            old_bits=old_bits,
            new_bits=new_bits,
            asked_density=density,
        )
        del old_bits, new_bits


def _baseline_sizes(delta: ModelDelta, options: CodecOptions, progress: Progress) -> tuple[list[FormatSize], list[str]]:
    sizes, skipped = [], []
    rows, seen = 0, 0
    while rows < len(delta.old_bits) and (not rows or seen + delta.old_bits[rows].nbytes <= options.baseline_bytes):
        seen += delta.old_bits[rows].nbytes
        rows += 1
    for baseline in FORMATS:
        if baseline.name not in options.baselines:
            continue
        if baseline is arc.ARC and (line := arc.missing()) is not None:
            skipped.append(line)
            continue
        progress(f"{delta.name}: {baseline.name}")
        size = baselines.measure_baseline(baseline, delta.rows, delta.old_bits[:rows], delta.new_bits[:rows])
        sizes.append(
            FormatSize(
                name=baseline.name,
                title=baseline.title,
                is_p2psync=False,
                rebuilt=baseline in baselines.BASELINES,
                payload_bytes=size.payload,
                changed=size.changed,
                part_bytes=seen if rows < len(delta.old_bits) else None,
            )
        )
    tools = [tool for tool in patchers.TOOLS if tool.name in options.baselines]
    part = patchers.cut_part(delta.old_bits, delta.new_bits, options.part_bytes) if tools else None
    for tool in tools:
        assert part is not None
        if (line := patchers.missing(tool)) is not None:
            skipped.append(line)
            continue
        progress(f"{delta.name}: {tool.name} on {part[0].nbytes / 1e6:.0f} MB")
        try:
            patch = patchers.measure_tool(tool, *part)
        except subprocess.SubprocessError as error:
            skipped.append(f"{tool.name} skipped: {error}")
            continue
        sizes.append(
            FormatSize(
                name=tool.name,
                title=tool.title,
                is_p2psync=False,
                payload_bytes=patch.payload,
                changed=patch.changed,
                part_bytes=patch.part_bytes,
                encode_seconds=patch.seconds,
            )
        )
    return sizes, skipped


def _size(delta: ModelDelta, profile: str, *, with_history: bool = False) -> int:
    """Payload of a profile, after a round trip."""
    with CodecWork(delta, profile, 1, with_history=with_history) as work:
        work.encode()
        work.remember()
        work.apply()
        work.check()
        work.undo()
        return work.payload


def _first_call(options: CodecOptions) -> float:
    small = next(drawn(_MEBIBYTE, [0.01], 0, lambda line: None))
    seconds = 0.0
    for profile in PROFILES:
        with CodecWork(small, profile, 1) as work:
            seconds += timed(work.encode)
            work.remember()
            seconds += timed(work.apply)
            work.undo()
    return seconds


def cpu_name() -> str:
    """Returns the processor's model name, from /proc/cpuinfo."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown processor"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")
