"""Trajectories of real training, kept on disk as a start and sparse steps, and replayed as deltas with their history.

A folder holds `start.npy` (all bf16 units, tensor after tensor), `step-0001.npz`, … (positions in that row of units,
and steps mod 2^16) and `about.json`. It is made once, under another name until it is whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2psync.bench.deltas import ModelDelta, ModelHistory
from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec
from p2psync.errors import UsageError

Bits = NDArray[np.uint16]
MODELS = ("qwen3", "smollm2")
RATES = (1e-6, 3e-6, 5e-6)
STEPS = 24
MEASURED = (1, 5, 20, 24)
Progress = Callable[[str], None]


@dataclass(frozen=True)
class InitialPolicy:
    """The first published bits of a run, flat units by name, and a description of the model."""

    about: str
    units: dict[str, Bits]
    shapes: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class StepNote:
    """One step of a run: its figures and its published changes."""

    reward: float
    samples: int
    used_samples: int
    seconds: float
    units: dict[str, Bits]


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One step in `about.json`."""

    changed: int
    reward: float
    samples: int
    used_samples: int
    seconds: float


class About(msgspec.Struct, frozen=True, kw_only=True):
    """`about.json`."""

    name: str
    about: str
    rate: float
    seed: int
    names: list[str]
    shapes: list[tuple[int, ...]]
    steps: list[StepRecord]


class TrainingRun(Protocol):
    """A run that can be recorded, such as `p2psync.bench.grpo.Trajectory`."""

    def start(self) -> InitialPolicy: ...
    def step(self) -> StepNote: ...


def record(
    folder: Path, name: str, run: TrainingRun, *, rate: float, seed: int, steps: int, progress: Progress
) -> None:
    """Run `steps` steps and write `folder`, whole or not at all."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    start = run.start()
    names = sorted(start.units)
    last = np.concatenate([start.units[n] for n in names])
    np.save(partial / "start.npy", last)
    records = []
    for number in range(1, steps + 1):
        note = run.step()
        positions, moves = _advance(last, [note.units[n] for n in names])
        np.savez(partial / f"step-{number:04}.npz", positions=positions, steps=moves)
        records.append(
            StepRecord(
                changed=positions.size,
                reward=note.reward,
                samples=note.samples,
                used_samples=note.used_samples,
                seconds=note.seconds,
            )
        )
        progress(
            f"{folder.name}: step {number} of {steps}, {100 * positions.size / last.size:.2f} % changed, "
            f"reward {note.reward:.2f}, {note.seconds:.1f} s"
        )
    about = About(
        name=name,
        about=start.about,
        rate=rate,
        seed=seed,
        names=names,
        shapes=[start.shapes[n] for n in names],
        steps=records,
    )
    (partial / "about.json").write_bytes(msgspec.json.format(msgspec.json.encode(about)))
    partial.rename(folder)


def make_missing(
    cache: Path, models: Sequence[str] = MODELS, rates: Sequence[float] = RATES, *, seed: int = 1, progress: Progress
) -> list[Path]:
    """The folders of these trajectories, made first where they are missing (minutes each).

    Raises `UsageError` for an unknown model, or where torch, transformers or a model's package is missing.
    """
    if unknown := set(models) - set(MODELS):
        raise UsageError(f"no model {sorted(unknown)[0]!r}; there are {', '.join(MODELS)}")
    cache.mkdir(parents=True, exist_ok=True)
    folders = []
    for model in models:
        subject = None
        for rate in rates:
            folder = cache / f"{model}-lr{rate:.0e}-seed{seed}"
            folders.append(folder)
            if (folder / "about.json").exists():
                continue
            try:
                from p2psync.bench import grpo
            except ImportError as error:
                raise UsageError(f"trajectories need pip install 'p2psync[bench]': {error}") from error
            subject = subject or grpo.SUBJECTS[model](cache, progress)
            run = grpo.Trajectory(subject, rate, seed)
            record(folder, model, run, rate=rate, seed=seed, steps=STEPS, progress=progress)
    return folders


def read_about(folder: Path) -> About:
    """Raises `UsageError` for a folder that holds no trajectory."""
    try:
        return msgspec.json.decode((folder / "about.json").read_bytes(), type=About)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{folder} holds no trajectory: {error}") from error


def replay(folder: Path, numbers: Sequence[int]) -> Iterator[ModelDelta]:
    """The deltas of these steps, in rising order, each with the history of the steps before it.

    A delta's arrays are reused for the next: measure it before going on.
    """
    about = read_about(folder)
    rows = [
        TableRow(TensorSpec(TensorKind.TENSOR, name, "BF16", tuple(shape)), True, True)
        for name, shape in zip(about.names, about.shapes, strict=True)
    ]
    cuts = np.cumsum([row.spec.count for row in rows])[:-1]
    old = np.load(folder / "start.npy")
    new = old.copy()
    history = ModelHistory.empty(old.size)
    for number in range(1, max(numbers) + 1):
        with np.load(folder / f"step-{number:04}.npz") as step:
            positions, moves = step["positions"], step["steps"]
        new[positions] += moves
        if number in numbers:
            yield ModelDelta(
                name=f"{about.name} lr {about.rate:g} step {number}",
                source=about.about,
                rows=rows,
                old_bits=np.split(old, cuts),
                new_bits=np.split(new, cuts),
                history=history,
                rate=about.rate,
                step=number,
            )
        if number == max(numbers):
            return
        history.add(number, positions, moves)
        old[positions] += moves


def _advance(last: Bits, units: Sequence[Bits]) -> tuple[NDArray[np.uint32], Bits]:
    """Positions and steps from `last` to `units`; `last` is moved on."""
    positions, moves, offset = [], [], 0
    for part in units:
        window = last[offset : offset + part.size]
        where = np.flatnonzero(window != part)
        moves.append(part[where] - window[where])
        positions.append((where + offset).astype(np.uint32))
        window[:] = part
        offset += part.size
    return np.concatenate(positions), np.concatenate(moves)
