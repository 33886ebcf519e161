"""Versions are committed into fused parameters, exactly or not at all, by the thread that takes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from engine_parts import Run, commit_path, put_all
from fused_parts import Served, failing, parameters
from module_parts import Version, anchor, stepped
from test_module import start

from p2psync.delta.tensors import TensorKind
from p2psync.engines.vllm.rank_writer import RankWriter
from p2psync.errors import BaseMismatchError, EngineError, UnvouchedError


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def chain(served: Served, count: int) -> tuple[Run, list[Version]]:
    """Returns a run of deltas from the served version to later ones; the engine adopts the served one."""
    run, versions = Run(), [served.version]
    for number in range(1, count):
        versions.append(stepped(versions[-1], number, 0.05))
        run.delta_of(number - 1, number, versions[-2], versions[-1])
    assert served.engine.adopt(start(0, versions[0]))
    return run, versions


def test_every_commit_leaves_the_bits_of_a_fresh_load(served: Served) -> None:
    run, versions = chain(served, 5)
    for number in range(1, 5):
        commit_path(run, served.engine, run.steps[number - 1, number], shuffle=number)
        assert served.holds(versions[number])
        assert served.engine.position == start(number, versions[number])
        assert served.engine.scrub()
    assert served.pauses == 4
    for spec in versions[4]:
        assert served.engine.units(spec).tobytes() == versions[4][spec].tobytes()


def test_any_bits_are_written_and_rolled_back(served: Served) -> None:
    run, versions = chain(served, 1)
    nonfinite = {spec: units.copy() for spec, units in versions[0].items()}
    for spec, units in nonfinite.items():
        if spec.dtype == "BF16":
            units[::3] = np.resize(
                np.array([0x7FC1, 0xFFFF, 0x7F81, 0x8000, 0x0001, 0xFF80], np.uint16), units[::3].size
            )
    run.delta_of(0, 1, versions[0], nonfinite)
    commit_path(run, served.engine, run.steps[0, 1])
    assert served.holds(nonfinite)
    assert served.engine.roll_back() == start(0, versions[0])
    assert served.holds(versions[0])
    assert served.engine.scrub()


def test_a_chain_and_an_anchor_are_one_commit_each(served: Served) -> None:
    run, versions = chain(served, 4)
    commit_path(run, served.engine, *(run.steps[n, n + 1] for n in range(3)), shuffle=3)
    assert served.holds(versions[3])
    commit_path(run, served.engine, anchor(run, 9, versions[1]))
    assert served.holds(versions[1])
    assert served.pauses == 2
    assert served.engine.scrub()


def test_generation_is_not_stopped_before_everything_is_ready(served: Served) -> None:
    run, _ = chain(served, 2)
    stage = served.engine.stage([run.steps[0, 1]])
    put_all(run, stage, [run.steps[0, 1]])
    spec = next(spec for spec in served.version if spec.name == "norm")
    parameters(served.model)["norm"].view(torch.int16)[:] ^= 1
    with pytest.raises(EngineError, match="not those of the version"):
        stage.commit()
    assert served.pauses == 0
    assert served.refused, "wrong bits are not served"
    assert served.engine.units(spec).tobytes() != served.version[spec].tobytes()


def test_a_failed_write_is_undone_in_the_live_weights_and_the_mirror(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, versions = chain(served, 2)
    stage = served.engine.stage([run.steps[0, 1]])
    put_all(run, stage, [run.steps[0, 1]])
    prepare = RankWriter.prepare

    def breaking(writer: RankWriter, edits: list[object]) -> None:
        prepare(writer, edits)  # type: ignore[arg-type]
        writer._writes[-1] = failing(writer._writes[-1])

    monkeypatch.setattr(RankWriter, "prepare", breaking)
    with pytest.raises(EngineError, match="are as they were: the device fell off"):
        stage.commit()
    assert served.pauses == 1
    assert served.holds(versions[0])
    assert served.engine.scrub()
    assert not served.refused
    monkeypatch.undo()
    stage.commit()
    assert served.holds(versions[1])
    assert served.engine.scrub()


def test_weights_between_two_versions_are_never_served(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = chain(served, 2)
    stage = served.engine.stage([run.steps[0, 1]])
    put_all(run, stage, [run.steps[0, 1]])

    def lost(writer: RankWriter) -> None:
        raise ZeroDivisionError("half written, and not undone")

    monkeypatch.setattr(RankWriter, "write", lost)
    with pytest.raises(UnvouchedError, match="left between two versions"):
        stage.commit()
    assert len(served.refused) == 1


def test_a_flipped_live_bit_is_found_and_ends_the_serving(served: Served) -> None:
    chain(served, 1)
    assert served.engine.scrub()
    parameters(served.model)["qkv"].view(torch.int16)[9, 9] ^= 64
    assert not served.engine.scrub()
    assert served.refused


def test_a_waiting_commit_fails_when_the_engine_is_closed() -> None:
    served = Served()
    run, versions = chain(served, 2)
    served._stopped = True
    served._thread.join()
    stage = served.engine.stage([run.steps[0, 1]])
    put_all(run, stage, [run.steps[0, 1]])
    failed: list[Exception] = []

    def commit() -> None:
        try:
            stage.commit()
        except EngineError as error:
            failed.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    while served.handoff.version != 1:
        assert thread.is_alive()
    served.engine.close()
    thread.join()
    assert "is closed" in str(failed[0])
    assert served.holds(versions[0])
    assert served.engine.units(next(s for s in versions[0] if s.kind == TensorKind.TENSOR)).size


def test_a_wrong_base_is_refused(served: Served) -> None:
    run, _ = chain(served, 3)
    with pytest.raises(BaseMismatchError):
        served.engine.stage([run.steps[1, 2]])


def test_adopting_the_weights_as_a_version_notifies_the_conductor(served: Served) -> None:
    heard: list[int] = []
    served.handoff.on_offer = lambda: heard.append(1)
    assert not served.engine.adopt(start(0, stepped(served.version, 1, 0.05)))
    assert heard == []
    assert served.engine.adopt(start(0, served.version))
    assert heard == [1]
