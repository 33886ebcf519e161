"""Measures extraction and apply on a GPU, against copying there. Prints JSON; asserts no times.

    python -m p2psync.bench.device [--size 2GB] [--density 0.01] [--rounds 5] [--device cuda]

Without a CUDA device it prints that and exits 1; nothing is measured. `--device cpu` runs the same code by torch's
operations on a CPU: that shows that it is right, and nothing of a GPU's speed.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import msgspec
import torch

from p2psync.bench.policy import draw_step, model_rows
from p2psync.delta.block import block_count, block_range
from p2psync.delta.extract import Extraction, FoundChanges
from p2psync.engines.device import unit_transfer as unit_transfer
from p2psync.engines.device.extract import DeviceExtraction, best_finder
from p2psync.engines.device.finder import DeviceChangeFinder, TorchFinder, VersionPair, nan_bits
from p2psync.engines.device.unit_transfer import TensorSelection
from p2psync.store.encoding import DELTA_BLOCK_UNITS


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """One finder. Bytes a second of both versions, medians; of_copying: that, to what copying reads and writes."""

    finder: str
    looked_at: float
    """On the device alone: with Triton all it does for an extraction, with torch the counting."""
    of_copying: float
    handed_over: float
    """Until the host has every block in order."""
    waits: int
    redone: int
    equal: bool
    """To what the CPU finds."""


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The figures, and the device they are of. Rates are bytes a second."""

    device: str
    torch: str
    triton: str | None
    model_bytes: int
    changed: int
    density: float
    rounds: int
    copy_rate: float
    """Bytes read and written by copying one version on the device."""
    finders: list[Rates]
    gather_seconds: float
    """Old bits to the host, while the device serves."""
    prepare_seconds: float
    """New bits and positions to the device, while it serves."""
    write_seconds: float
    """The work in a commit's pause."""
    write_rate: float
    """Bytes of model that are brought to the next version in a second of the pause."""
    applied: bool
    """Whether exactly the new bits were written, and then exactly the old ones."""


def run_device_bench(
    device: torch.device, model_bytes: int, density: float, rounds: int, seed: int = 0
) -> DeviceReport:
    """Draw a step by `bench.policy` and measure. Takes twice the model on the device, and thrice on the host."""
    rows = model_rows(model_bytes)
    pairs, found = [], []
    for index, (row, (old, new)) in enumerate(zip(rows, draw_step(rows, density, seed), strict=True)):
        extraction = Extraction(index, old, new)
        for k in range(block_count(row.spec, DELTA_BLOCK_UNITS)):
            block, _ = extraction.block_with_digest(row.spec, *block_range(row.spec, DELTA_BLOCK_UNITS, k))
            if block is not None:
                found.append(FoundChanges(block, extraction.olds.copy()))
        sides = [torch.from_numpy(side.view("i2")).to(device, copy=True) for side in (old, new)]
        pairs.append(VersionPair(index, row.spec, *sides))
    units, changed = sum(pair.old.numel() for pair in pairs), sum(one.block.changed for one in found)
    copy_rate = 4 * units / _median(lambda: _copy(pairs), device, rounds)
    finders: list[DeviceChangeFinder] = [best_finder(device)]
    if not isinstance(finders[0], TorchFinder):
        finders.append(TorchFinder(nan_bits(device)))
    rates = [_rates(finder, device, pairs, found, units, copy_rate, rounds) for finder in finders]
    places = [
        TensorSelection(pairs[one.block.row].old, one.block.start, one.block.count, one.block.positions)
        for one in found
    ]
    new_values = [one.olds + one.block.steps for one in found]
    gather = _median(lambda: unit_transfer.gather_units(places), device, rounds)
    prepare = _median(lambda: unit_transfer.prepare_unit_writes(places, new_values), device, rounds)
    forth, back = (
        unit_transfer.prepare_unit_writes(places, new_values),
        unit_transfer.prepare_unit_writes(places, [one.olds for one in found]),
    )
    before = [pair.old.clone() for pair in pairs]
    _run(forth)
    applied = all(torch.equal(pair.old, pair.new) for pair in pairs)
    _run(back)
    applied &= all(torch.equal(pair.old, bits) for pair, bits in zip(pairs, before, strict=True))
    write = _median(lambda: _run(forth), device, rounds)
    return DeviceReport(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}",
        torch=str(torch.__version__),
        triton=_triton(),
        model_bytes=2 * units,
        changed=changed,
        density=changed / units,
        rounds=rounds,
        copy_rate=copy_rate,
        finders=rates,
        gather_seconds=gather,
        prepare_seconds=prepare,
        write_seconds=write,
        write_rate=2 * units / write,
        applied=applied,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m p2psync.bench.device", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", default="2GB", help="bytes of model, such as 512MB or 2GB")
    parser.add_argument("--density", type=float, default=0.01, help="share of units that change")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device on this machine: nothing was measured", file=sys.stderr)
        return 1
    report = run_device_bench(torch.device(options.device), _bytes(options.size), options.density, options.rounds)
    print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    good = report.applied and all(rates.equal for rates in report.finders)
    if not good:
        print("the device's outcome is not the CPU's: a fault in p2psync, its libraries or the device", file=sys.stderr)
    return 0 if good else 1


def _rates(
    finder: DeviceChangeFinder,
    device: torch.device,
    pairs: Sequence[VersionPair],
    found: Sequence[FoundChanges],
    units: int,
    copy_rate: float,
    rounds: int,
) -> Rates:
    extraction = DeviceExtraction(device, DELTA_BLOCK_UNITS, finder=finder)
    found_here = list(extraction.extract(pairs))
    equal = len(found_here) == len(found) and all(_same(a, b) for a, b in zip(found_here, found, strict=True))
    looked = 4 * units / _median(lambda: extraction.count(pairs), device, rounds)
    extraction.waits = extraction.redone = 0
    handed = 4 * units / _median(lambda: sum(1 for _ in extraction.extract(pairs)), device, rounds)
    return Rates(
        finder=type(finder).__name__,
        looked_at=looked,
        of_copying=looked / copy_rate,
        handed_over=handed,
        waits=extraction.waits // (rounds + 1),
        redone=extraction.redone // (rounds + 1),
        equal=equal,
    )


def _same(a: FoundChanges, b: FoundChanges) -> bool:
    one, two = a.block, b.block
    where = (one.positions is None) == (two.positions is None)
    if one.positions is not None and two.positions is not None:
        where = one.positions.tobytes() == two.positions.tobytes()
    same = (one.row, one.start, one.count) == (two.row, two.start, two.count)
    return where and same and one.steps.tobytes() == two.steps.tobytes() and a.olds.tobytes() == b.olds.tobytes()


def _copy(pairs: Sequence[VersionPair]) -> None:
    """Copy every tensor, one after another, to the same memory."""
    largest = max(pair.old.numel() for pair in pairs)
    target = torch.empty(largest, dtype=torch.int16, device=pairs[0].old.device)
    for pair in pairs:
        target[: pair.old.numel()].copy_(pair.old)


def _run(writes: Sequence[Callable[[], None]]) -> None:
    for write in writes:
        write()


def _median(work: Callable[[], object], device: torch.device, rounds: int) -> float:
    """Seconds, of `rounds` after one to warm up, each until the device is done."""
    seconds = []
    for _ in range(rounds + 1):
        unit_transfer.synchronize(device)
        begun = time.perf_counter()
        work()
        unit_transfer.synchronize(device)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:])


def _bytes(text: str) -> int:
    for suffix, factor in (("GB", 10**9), ("MB", 10**6)):
        if text.upper().endswith(suffix):
            return int(float(text[:-2]) * factor)
    return int(text)


def _triton() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


if __name__ == "__main__":
    sys.exit(main())
