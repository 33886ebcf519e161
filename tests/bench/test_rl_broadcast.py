"""Full broadcasts that finish, the ideal one, and the arithmetic that stands for generation."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from p2psync.bench.rl.arithmetic import Burner, Owed, measure_machine, meter_staging  # noqa: E402
from p2psync.bench.rl.broadcast import FinishingBroadcast, WaitingVersions  # noqa: E402
from p2psync.bench.rl.generator import STRETCH, Generator  # noqa: E402
from p2psync.bench.rl.ideal import copy_seconds, ideal_step_seconds, ideal_tokens_per_second  # noqa: E402
from p2psync.bench.rl.scale import LoopOptions, topology  # noqa: E402
from p2psync.bench.rl.ways import Board  # noqa: E402

LIMIT = 20.0


def policy(value: float) -> torch.nn.Module:
    module = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(value)
    return module


def test_the_newest_waiting_version_is_next_and_older_ones_are_dropped() -> None:
    waiting = WaitingVersions(oldest_first=False)
    for version in (3, 4, 5):
        waiting.add(version, [])
    assert waiting.next() == (5, [])
    assert waiting.next() is None
    assert waiting.skipped == 2


def test_in_strict_order_no_version_is_dropped() -> None:
    waiting = WaitingVersions(oldest_first=True)
    for version in (3, 4):
        waiting.add(version, [])
    assert [waiting.next(), waiting.next(), waiting.next()] == [(3, []), (4, []), None]
    assert waiting.skipped == 0


def test_a_version_is_published_only_once_every_actor_runs_the_one_before(tmp_path: Path) -> None:
    boards = [Board(tmp_path / name) for name in "ab"]
    outbox = policy(0.0)
    published: list[tuple[int, float]] = []
    came = threading.Semaphore(0)

    def publish(version: int) -> None:
        published.append((version, outbox.weight[0, 0].item()))
        came.release()

    with FinishingBroadcast(outbox, boards, publish, oldest_first=False) as broadcast:
        broadcast.put(1, policy(1.0))
        assert came.acquire(timeout=LIMIT)
        boards[0].put_up(1)
        broadcast.put(2, policy(2.0))
        broadcast.put(3, policy(3.0))
        boards[1].put_up(1)
        assert came.acquire(timeout=LIMIT)
        assert broadcast.skipped == 1
    assert published == [(1, 1.0), (3, 3.0)]


def test_an_error_of_a_broadcast_is_raised_by_the_next_put(tmp_path: Path) -> None:
    failed = threading.Event()

    def publish(version: int) -> None:
        failed.set()
        raise OSError("no disk")

    with FinishingBroadcast(policy(0.0), [], publish, oldest_first=True) as broadcast:
        broadcast.put(1, policy(1.0))
        assert failed.wait(LIMIT)
        broadcast._thread.join(LIMIT)
        with pytest.raises(OSError, match="no disk"):
            broadcast.put(2, policy(2.0))


def test_an_ideal_broadcast_costs_nothing_while_a_copy_fits_beside_generation() -> None:
    options = LoopOptions(generation=60, learning=30, staleness=1)
    assert ideal_step_seconds(options, 20.0) == pytest.approx(60.0)
    # A version leaves every 100 s; steps last as long as copies do.
    assert ideal_step_seconds(options, 100.0) == pytest.approx(100.0)
    assert ideal_tokens_per_second(options, 8, 100.0) == pytest.approx(8 * 2560 * 0.6)


def test_an_ideal_broadcast_over_slow_links_sends_every_other_version() -> None:
    options = LoopOptions(generation=60, learning=30, staleness=1)
    # Two steps of generation, one of learning and a copy make two steps: shorter than a copy for each.
    assert ideal_step_seconds(options, 350.0) == pytest.approx((2 * 60 + 30 + 350) / 2)


def test_without_staleness_an_ideal_step_is_generation_learning_and_a_copy() -> None:
    assert ideal_step_seconds(LoopOptions(staleness=0), 88.0) == pytest.approx(60 + 30 + 88)


def test_an_ideal_copy_of_the_whole_model_takes_as_long_as_the_real_one_over_one_link() -> None:
    options = LoopOptions()
    took = copy_seconds(options, topology(options, 4, 1.0), options.model_bytes)
    assert took == pytest.approx(128.0, rel=0.05)


def test_an_actors_machine_is_slower_by_as_much_as_the_links() -> None:
    options = LoopOptions(cores=4, faster=5, model_bytes=80_000_000)
    assert options.machine_share == pytest.approx(4 * 5 / 200)
    assert options.burnt_share(actors=2, cores=2) == options.machine_share
    assert options.burnt_share(actors=20, cores=2) == pytest.approx(0.05)


def test_rounds_of_arithmetic_are_counted_to_the_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    burner = Burner()
    monkeypatch.setattr("p2psync.bench.rl.arithmetic._multiply_add", lambda numbers, rounds: done.append(rounds))
    for _ in range(4):
        burner.burn(2.25)
    assert sum(done) == 9


def test_late_arithmetic_is_blamed_on_the_actors_own_threads_and_for_the_rest_on_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = {"process_time": iter([1.0, 1.012]), "thread_time": iter([0.5, 0.502]), "monotonic": iter([10.05, 10.05])}
    for name, ticks in clocks.items():
        monkeypatch.setattr(f"p2psync.bench.rl.generator.time.{name}", lambda ticks=ticks: next(ticks))
    monkeypatch.setattr("p2psync.bench.rl.generator.time.sleep", lambda seconds: None)
    actor = object.__new__(Generator)
    burnt: list[float] = []
    actor._slots = [None, None]
    actor._task = SimpleNamespace(speed=100.0, rounds_per_token=3.0)  # type: ignore[assignment]
    actor._burner = SimpleNamespace(burn=burnt.append)  # type: ignore[assignment]
    monkeypatch.setattr(Generator, "_is_making", lambda self, i, queue, position: i == 0)
    assert actor._make_stretch(None, None, 10.02) == pytest.approx((0.01, 0.02))  # type: ignore[arg-type]
    assert burnt == [pytest.approx(100 * STRETCH * 3)]


def test_owed_seconds_are_taken_once_and_in_parts() -> None:
    owed = Owed()
    owed.add(0.05)
    assert [owed.take(0.02), owed.take(0.02), owed.take(0.02), owed.take(0.02)] == pytest.approx([0.02, 0.02, 0.01, 0])


def test_the_machines_speed_is_measured() -> None:
    speed = measure_machine(1 << 16, 0.01)
    assert speed.rounds_per_second > 1000
    assert 0 < speed.write_seconds < 1e-3
    assert 0 < speed.copy_seconds < speed.write_seconds


def test_processor_time_of_staging_is_reported_for_each_call() -> None:
    class Stage:
        def put(self, step: int, chunks: object) -> str:
            return f"{step} {chunks}"

        def commit(self) -> str:
            return "done"

    class Engine:
        def stage(self, path: object) -> Stage:
            return Stage()

    spent: list[float] = []
    engine = Engine()
    meter_staging(engine, spent.append)
    stage = engine.stage([])
    assert (stage.put(1, "x"), stage.commit()) == ("1 x", "done")
    assert len(spent) == 2
