"""Arithmetic that stands for generation; measures this machine's speed of it, and the time of a commit's writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numba
import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels.unit_loops import address, plain, scatter_at

#: Numbers that one round multiplies and adds to: they lie in the nearest cache.
_NUMBERS = 1024
#: Seconds of each try of a calibration, and how many there are: the best counts, for others may use the machine.
_TRY_SECONDS, _TRIES = 0.05, 5


class MachineSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """The calibration before the runs. rounds_per_second: of `burn`, on one core. write_seconds: for one element of a
    delta, scattered; copy_seconds: for one element of an anchor, copied."""

    rounds_per_second: float
    write_seconds: float
    copy_seconds: float


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _multiply_add(numbers: NDArray[np.float32], rounds: int) -> None:
    for _ in range(rounds):
        for i in range(numbers.size):
            numbers[i] = numbers[i] * np.float32(0.999) + np.float32(0.001)


class Burner:
    """Does arithmetic on a core, without the GIL."""

    def __init__(self) -> None:
        self._numbers = np.ones(_NUMBERS, np.float32)
        self._left = 0.0
        _multiply_add(self._numbers, 1)  # compiled

    def burn(self, rounds: float) -> None:
        """Burn so many rounds; the rest of a whole one is added to the next call."""
        whole, self._left = divmod(self._left + rounds, 1.0)
        _multiply_add(self._numbers, int(whole))


class Owed:
    """Seconds that an actor's generation still has to stand still for what its scaled machine did. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        """More of them."""
        with self._lock:
            self._seconds += seconds

    def take(self, most: float) -> float:
        """Takes up to `most` of the owed seconds; returns how many."""
        with self._lock:
            taken = min(self._seconds, most)
            self._seconds -= taken
            return taken


def measure_machine(elements: int, density: float) -> MachineSpeed:
    """Measure on one core. elements: of the model; density: share of them that a step changes."""
    burner = Burner()
    rate = 0.0
    for _ in range(_TRIES):
        begin, rounds = time.thread_time(), 0
        while (spent := time.thread_time() - begin) < _TRY_SECONDS:
            burner.burn(1000)
            rounds += 1000
        rate = max(rate, rounds / spent)
    units, new_bits = np.zeros(elements, np.uint16), np.ones(elements, np.uint16)
    rng = np.random.default_rng(0)
    where = plain(np.flatnonzero(rng.random(elements, np.float32) < density).astype(np.uint32))
    values = plain(new_bits[: where.size])
    written = _best(lambda: scatter_at(address(units), where, units.size, values)) / max(1, where.size)
    return MachineSpeed(
        rounds_per_second=rate, write_seconds=written, copy_seconds=_best(lambda: np.copyto(units, new_bits)) / elements
    )


def meter_staging(engine: Any, spend: Callable[[float], None]) -> None:
    """Calls `spend` with the processor seconds of each call that stages chunks in a `ModuleEngine`, or commits them.

    They are those of the calling thread: `limit_threads(1)` keeps the codec in it.
    """
    stage = engine.stage

    def metered(path: Any) -> Any:
        made = stage(path)
        made.put, made.commit = _metered(made.put, spend), _metered(made.commit, spend)
        return made

    engine.stage = metered


def _metered(call: Callable[..., Any], spend: Callable[[float], None]) -> Callable[..., Any]:
    def measured(*arguments: Any) -> Any:
        begin = time.thread_time()
        try:
            return call(*arguments)
        finally:
            spend(time.thread_time() - begin)

    return measured


def _best(call: Callable[[], object]) -> float:
    call()
    found = []
    for _ in range(_TRIES):
        begin = time.thread_time()
        call()
        found.append(time.thread_time() - begin)
    return min(found)
