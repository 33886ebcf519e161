"""The background scrub finds damage that no commit touches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from p2psync.actor.scrub import EngineScrubber
from p2psync.delta.digest import digest_bytes, digest_units
from p2psync.delta.tensors import TensorKind, TensorSpec
from p2psync.errors import FormatError
from p2psync.protocol.versions import Position

SPECS = [TensorSpec(int(TensorKind.TENSOR), name, "BF16", (100,)) for name in "abc"]


class Weights:
    """The part of an engine that a scrub uses."""

    def __init__(self) -> None:
        self.bits = {spec: np.arange(100, dtype=np.uint16) for spec in SPECS}
        self.move(0)

    def move(self, version: int) -> None:
        digest = digest_bytes(sum(digest_units(spec, bits) for spec, bits in self.bits.items()))
        self.position: Position | None = Position(run="0" * 32, epoch=1, version=version, digest=digest)

    def table(self) -> list[TensorSpec]:
        return SPECS

    def units(self, spec: TensorSpec) -> np.ndarray:
        return self.bits[spec]

    def scrub(self) -> bool:
        found = digest_bytes(sum(digest_units(spec, bits) for spec, bits in self.bits.items()))
        return self.position is not None and found == self.position.digest


async def at_once(call: Callable[[], int | None]) -> int | None:
    return call()


def scrubber(weights: object) -> EngineScrubber:
    return EngineScrubber(weights, at_once, 1.0, min_pause_seconds=0.0)  # type: ignore[arg-type]


async def test_the_scrub_passes_intact_weights_and_finds_a_flipped_bit() -> None:
    weights = Weights()
    assert await scrubber(weights).scrub_once() is True
    weights.bits[SPECS[1]][7] ^= 1
    assert await scrubber(weights).scrub_once() is False


async def test_the_scrub_has_no_result_without_a_version_or_after_a_commit() -> None:
    weights = Weights()
    calls = 0

    async def moving(call: Callable[[], int | None]) -> int | None:
        nonlocal calls
        calls += 1
        if calls == 2:
            weights.move(1)
        return call()

    assert await EngineScrubber(weights, moving, 1.0, min_pause_seconds=0.0).scrub_once() is None  # type: ignore[arg-type]
    weights.position = None
    assert await scrubber(weights).scrub_once() is None


async def test_unreadable_bits_count_as_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Weights()

    def gone(*args: object) -> np.ndarray:
        raise FormatError("the file is gone")

    monkeypatch.setattr(weights, "units", gone)
    monkeypatch.setattr(weights, "scrub", gone)
    assert await scrubber(weights).scrub_once() is False


async def test_damage_is_reported_once_until_a_version_counts_as_live_again() -> None:
    weights = Weights()
    told: asyncio.Queue[Position] = asyncio.Queue()
    vouched = weights.position

    def mark_damaged(position: Position) -> None:
        nonlocal vouched
        vouched = None
        told.put_nowait(position)

    running = asyncio.create_task(scrubber(weights).run(lambda: vouched, mark_damaged))
    weights.bits[SPECS[2]][0] ^= 1
    async with asyncio.timeout(10):
        assert await told.get() == weights.position
        for _ in range(100):
            await asyncio.sleep(0)
        assert told.empty(), "it is being mended"
        vouched = weights.position
        assert await told.get() == weights.position
    running.cancel()
