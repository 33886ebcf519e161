"""Hostile chunks and manifests: each ends in valid blocks or in one typed error, in bounded time and memory.

    python -m tests.delta.fuzz --inputs 1000000 --seed 1 --processes 2 [--json FILE]
    python -m tests.delta.fuzz --seed 1 --only 1234567

An input follows from the seed and its number alone, so the second form makes one again. A process that dies is told of,
with the number that it was at.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import fuzz_checks
import fuzz_manifests
import fuzz_mutations
from fuzz_samples import FuzzSample, make_pool

from p2psync.errors import FormatError, TrustError

#: Inputs that share a pool of valid samples, and the number of these samples.
BATCH, POOL = 10_000, 10
_DIGITS = re.compile(r"-?\d+")
#: Seconds after which an input counts as a hang: the process ends with a trace.
HANG = 60


@dataclass
class Report:
    """The result of a run; times in seconds, memory in bytes."""

    inputs: int = 0
    accepted: int = 0
    faults: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    mutations: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    slowest: tuple[float, int, str] = (0.0, -1, "")
    #: Resident memory at its peak before the first input and after the last, and the input that raised it last.
    memory_before: int = 0
    memory: int = 0
    memory_input: tuple[int, str] = (-1, "")
    seconds: float = 0.0


def run(seed: int, begin: int, end: int, note: Callable[[int], None] = lambda _: None) -> Report:
    """Try the inputs with numbers from `begin` to `end`."""
    report, pool, batch = Report(), [], -1
    started = time.perf_counter()
    for number in range(begin, end):
        if number // BATCH != batch:
            batch = number // BATCH
            pool = make_pool(seed * 10_007 + batch, POOL)
            if not report.memory_before:
                report.memory_before = report.memory = _peak()
        note(number)
        how, judge = prepare(seed, number, pool)
        _try(report, number, how, judge)
    report.seconds = time.perf_counter() - started
    return report


def prepare(seed: int, number: int, pool: list[FuzzSample]) -> tuple[str, Callable[[], None]]:
    """Makes an input. Returns a description of it, and the function that decodes and checks it."""
    choice = random.Random(seed << 40 | number)
    kind = choice.random()
    if kind < 0.85:
        given = fuzz_mutations.draw(choice, pool)
        return given.how, lambda: fuzz_checks.chunk(given)
    if kind < 0.97:
        body, how = fuzz_manifests.draw_body(choice, pool)
        return how, lambda: fuzz_checks.body(body)
    data, how = fuzz_manifests.draw_signed(choice, pool)
    return how, lambda: fuzz_checks.signed(data)


def _try(report: Report, number: int, how: str, judge: Callable[[], None]) -> None:
    report.inputs += 1
    report.mutations[how] += 1
    start = time.thread_time()
    try:
        judge()
        report.accepted += 1
    except (FormatError, TrustError) as error:
        message = str(error)
        if "\n" in message or len(message) > 2000:
            report.faults.append(f"{number} ({how}): an error of more than one line: {message[:300]!r}")
        report.errors[_DIGITS.sub("#", message)[:400]] += 1
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        report.faults.append(f"{number} ({how}): {''.join(traceback.format_exception(error))[-1500:]}")
    spent = time.thread_time() - start
    report.times.append(spent)
    report.slowest = max(report.slowest, (spent, number, how))
    if (peak := _peak()) > report.memory + (1 << 20):
        report.memory, report.memory_input = peak, (number, how)


def _shape(message: str) -> str:
    """An error's text without the details that differ from input to input."""
    message = re.sub(r"unpack: .*", "unpack: …", message)
    message = re.sub(r"(broken|signed manifest|not a manifest): .*", r"\1: …", message)
    message = re.sub(r"unknown dtype .*", "unknown dtype …", message)
    message = re.sub(r"(old units of|units that|block of|negative size:|no version:) \S+", r"\1 …", message)
    message = re.sub(r"manifest signed by .*", "manifest signed by …", message)
    return re.sub(r"(of unknown kind|elements of|: )'?[^ ]*#.*", r"\1 …", message)[:160]


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _figures(reports: list[Report], seconds: float) -> dict[str, Any]:
    times = sorted(spent for report in reports for spent in report.times)
    inputs = len(times)
    errors: Counter[str] = Counter()
    for message, count in sum((report.errors for report in reports), Counter()).items():
        errors[_shape(message)] += count
    return {
        "inputs": inputs,
        "accepted": sum(report.accepted for report in reports),
        "refused": sum(errors.values()),
        "faults": [fault for report in reports for fault in report.faults],
        "seconds": round(seconds, 1),
        "inputs_per_second": round(inputs / seconds) if seconds else 0,
        "time_median": times[inputs // 2],
        "time_p99": times[inputs * 99 // 100],
        "time_p999": times[inputs * 999 // 1000],
        "time_max": times[-1],
        "slowest": max(report.slowest for report in reports),
        "memory_before": max(report.memory_before for report in reports),
        "memory": max(report.memory for report in reports),
        "memory_input": max(reports, key=lambda report: report.memory).memory_input,
        "distinct_errors": len(errors),
        "errors": dict(errors.most_common()),
        "mutations": dict(sum((report.mutations for report in reports), Counter()).most_common()),
    }


def _work(seed: int, begin: int, end: int, place: Path) -> None:
    """Run in a process of its own: writes its report to a file, and each number to another before trying it."""
    faulthandler.enable()
    with place.with_suffix(".at").open("wb", buffering=0) as at:

        def note(number: int) -> None:
            at.seek(0)
            at.write(b"%020d" % number)
            if number % 1000 == 0 or number == begin:
                faulthandler.dump_traceback_later(HANG, exit=True)

        report = run(seed, begin, end, note)
    faulthandler.cancel_dump_traceback_later()
    place.write_text(json.dumps(vars(report)))


def _spread(seed: int, inputs: int, processes: int) -> tuple[list[Report], list[str]]:
    reports, dead = [], []
    with tempfile.TemporaryDirectory() as folder:
        edges = [inputs * k // processes for k in range(processes + 1)]
        places = [Path(folder) / str(k) for k in range(processes)]
        command = [sys.executable, "-m", "tests.delta.fuzz", "--seed", str(seed), "--worker"]
        workers = [
            subprocess.Popen([*command, str(edges[k]), str(edges[k + 1]), str(places[k])]) for k in range(processes)
        ]
        for worker, place in zip(workers, places, strict=True):
            if worker.wait():
                dead.append(
                    f"a process ended with {worker.returncode} at input {int(place.with_suffix('.at').read_text())}"
                )
                continue
            report = Report(**json.loads(place.read_text()))
            report.errors, report.mutations = Counter(report.errors), Counter(report.mutations)
            report.slowest, report.memory_input = tuple(report.slowest), tuple(report.memory_input)
            reports.append(report)
    return reports, dead


def main() -> int:
    """The command line. Returns 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", type=int, help="try this one input and let what it raises pass")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        begin, end, place = options.worker
        _work(options.seed, int(begin), int(end), Path(place))
        return 0
    if options.only is not None:
        how, judge = prepare(options.seed, options.only, make_pool(options.seed * 10_007 + options.only // BATCH, POOL))
        print(how, file=sys.stderr)
        judge()
        return 0
    command = f"python -m tests.delta.fuzz --seed {options.seed}"
    print(f"{command} --inputs {options.inputs}", file=sys.stderr, flush=True)
    started = time.perf_counter()
    reports, dead = _spread(options.seed, options.inputs, options.processes)
    figures = _figures(reports, time.perf_counter() - started) if reports else {"faults": []}
    figures["faults"] += dead
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    if options.json:
        options.json.write_text(text)
    print(text)
    if figures["faults"]:
        print(f"{len(figures['faults'])} faults; each again: {command} --only NUMBER", file=sys.stderr)
    return bool(figures["faults"])


if __name__ == "__main__":
    sys.exit(main())
