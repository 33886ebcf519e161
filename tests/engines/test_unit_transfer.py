"""A live module on a device is read and written many blocks at a time. Here the device is the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from engine_parts import Run, commit_path, digest_of, put_all
from module_parts import Policy, Version, anchor, bits, stepped, version_of, weights

from p2psync.engines.base import Position
from p2psync.engines.device import unit_transfer as unit_transfer
from p2psync.engines.device.unit_transfer import TensorSelection
from p2psync.engines.module import engine as module
from p2psync.engines.module import staging
from p2psync.engines.module.engine import ModuleEngine
from p2psync.engines.module.live_tensors import DeviceTensor
from p2psync.errors import EngineError


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.device]]:
    """Treats every tensor like one of a device; yields the list of devices that were waited for."""
    asked: list[torch.device] = []
    settle = unit_transfer.synchronize

    def counted(device: torch.device) -> None:
        asked.append(device)
        settle(device)

    monkeypatch.setattr(module, "live_tensor", DeviceTensor)
    monkeypatch.setattr(unit_transfer, "synchronize", counted)
    yield asked


def chain(count: int) -> tuple[Policy, Run, list[Version]]:
    live, run = Policy(1), Run()
    versions = [version_of(live)]
    for number in range(1, count):
        versions.append(stepped(versions[-1], number))
        run.delta_of(number - 1, number, versions[-2], versions[-1])
    return live, run, versions


def start(version: Version) -> Position:
    return Position(run="0" * 31 + "1", epoch=1, version=0, digest=digest_of(version))


def test_deltas_and_chains_and_roll_backs_are_exact(waits: list[torch.device]) -> None:
    live, run, versions = chain(4)
    engine = ModuleEngine(live, position=start(versions[0]))
    commit_path(run, engine, run.steps[0, 1], shuffle=1)
    commit_path(run, engine, run.steps[1, 2], run.steps[2, 3], shuffle=2)
    assert weights(versions[3]).items() <= bits(live).items()
    assert engine.scrub()
    engine.roll_back()
    assert weights(versions[1]).items() <= bits(live).items()


def test_an_anchor_is_written_in_groups(waits: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_transfer, "GROUP_BYTES", 5000)
    live, run = Policy(1), Run()
    other = version_of(Policy(2))
    engine = ModuleEngine(live)
    commit_path(run, engine, anchor(run, 3, other))
    assert weights(other).items() <= bits(live).items()


def test_a_commit_waits_for_the_device_once_for_each_group_and_not_for_each_block(
    waits: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    live, run = torch.nn.Linear(1024, 1100, bias=False, dtype=torch.bfloat16), Run()
    old = version_of(live)
    new = stepped(old, 1)
    step = run.delta_of(0, 1, old, new)
    engine = ModuleEngine(live, position=start(old))
    stage = engine.stage([step])
    put_all(run, stage, [step])
    assert not waits, "blocks are asked for together"
    stage.commit()
    blocks = len(engine._journal.changes) if engine._journal is not None else 0
    assert blocks > 2
    # The old bits; what will be written; and in the pause, that it is.
    assert len(waits) == 3
    assert weights(new).items() <= bits(live).items()


def test_old_bits_are_gathered_before_too_many_are_queued(
    waits: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_PENDING_UNITS", 1)
    live, run, versions = chain(2)
    engine = ModuleEngine(live, position=start(versions[0]))
    commit_path(run, engine, run.steps[0, 1])
    assert len(waits) > 5
    assert weights(versions[1]).items() <= bits(live).items()


def test_a_write_that_fails_is_undone(waits: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    live, run, versions = chain(2)
    before = bits(live)
    engine = ModuleEngine(live, position=start(versions[0]))
    stage = engine.stage([run.steps[0, 1]])
    put_all(run, stage, [run.steps[0, 1]])
    scatter, calls = unit_transfer.torch_scatter, [0]

    def failing(group: unit_transfer.SelectionGroup, values: torch.Tensor) -> object:
        write = scatter(group, values)
        calls[0] += 1
        if calls[0] != 4:
            return write

        def fail() -> None:
            raise RuntimeError("the device fell off")

        return fail

    monkeypatch.setattr(unit_transfer, "torch_scatter", failing)
    with pytest.raises(EngineError, match="are as they were"):
        stage.commit()
    assert calls[0] > 4, "others were written"
    assert bits(live) == before
    stage.commit()
    assert weights(versions[1]).items() <= bits(live).items()


def places(rng: np.random.Generator) -> tuple[list[TensorSelection], list[torch.Tensor]]:
    """Sparse and dense places of tensors of every width, strided and empty ones, and copies of the tensors."""
    found = []
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
        flat = torch.from_numpy(rng.integers(0, 255, 9000 * dtype.itemsize, np.uint8)).view(dtype)
        for tensor in (flat, flat.clone().view(90, 100).t()[1:]):
            few = np.sort(rng.choice(4000, 700, replace=False)).astype(np.uint32)
            found += [
                TensorSelection(tensor, 8, 4096, few),
                TensorSelection(tensor, 5000, 3000, None),
                TensorSelection(tensor, 4500, 9, few[:0]),
            ]
    whole = torch.from_numpy(rng.integers(0, 255, 999, np.uint8)).view(3, 333).t()
    found.append(TensorSelection(whole, 0, 999, None))
    return found, [place.bits.clone() for place in found]


@pytest.mark.parametrize("group_bytes", [1000, 1 << 20])
@pytest.mark.parametrize("device_bytes", [0, 1 << 30])
def test_written_units_are_gathered_and_no_others_change(
    group_bytes: int, device_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_transfer, "GROUP_BYTES", group_bytes)
    rng = np.random.default_rng(3)
    all_, before = places(rng)
    flats = [copy.reshape(-1).numpy() for copy in before]
    olds = unit_transfer.gather_units(all_)
    for place, flat, old in zip(all_, flats, olds, strict=True):
        where = np.arange(place.count) if place.positions is None else place.positions
        np.testing.assert_array_equal(old.view(flat.dtype), flat[place.start + where.astype(np.int64)])
        assert old.dtype.kind == "u"
    news = [rng.integers(0, 255, old.nbytes, np.uint8).view(old.dtype) for old in olds]
    scatter, uploaded = unit_transfer.torch_scatter, list[int]()

    def counted(group: unit_transfer.SelectionGroup, values: torch.Tensor) -> Callable[[], None]:
        uploaded.append(group.entries)
        return scatter(group, values)

    monkeypatch.setattr(unit_transfer, "torch_scatter", counted)
    writes = unit_transfer.prepare_unit_writes(all_, news, device_bytes=device_bytes)
    assert all(torch.equal(place.bits, copy) for place, copy in zip(all_, before, strict=True)), "only prepared"
    assert bool(uploaded) == bool(device_bytes), "beyond the limit everything stays on the host until then"
    for write in writes:
        write()
    for old, new, again in zip(olds, news, unit_transfer.gather_units(all_), strict=True):
        np.testing.assert_array_equal(again, new)
        assert old.size == new.size
    for write in unit_transfer.prepare_unit_writes(all_, olds, device_bytes=device_bytes):
        write()
    assert all(torch.equal(place.bits, copy) for place, copy in zip(all_, before, strict=True))
