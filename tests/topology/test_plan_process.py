"""Planning in another process: the same plans, and no process left behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2psync.membership.planning import PlanTask
from p2psync.membership.records import Member, NodeInfo, NodeStatistics, PathStatistics
from p2psync.topology.hub_planner import HubPlanner
from p2psync.topology.plan_process import PlanningError, PlanProcess

PARENT = """
import os, signal, sys
from p2psync.topology.plan_process import PlanProcess
planner = PlanProcess()
planner.warm()
print(planner.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
FORKED = """
import os, signal
from p2psync.topology.plan_process import PlanProcess
planner = PlanProcess()
planner.warm()
fork = os.fork()
if not fork:
    signal.pause()
print(fork, planner.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def name(number: int) -> str:
    return f"{number:032x}"


def task(count: int = 6, slow: dict[int, float] | None = None, co_publishers: int | None = None) -> PlanTask:
    """All have measured each other, with 100 Mbit/s each by default."""
    ups = [(slow or {}).get(i, 100.0) for i in range(count)]
    roles = ["trainer"] + ["actor"] * (count - 1)
    infos = [NodeInfo(node=name(i), role=roles[i], region="eu", host="h", port=7) for i in range(count)]  # type: ignore[arg-type]
    reported = {
        name(i): NodeStatistics(
            ups[i], 1000.0, [PathStatistics(name(j), 0.01, ups[i], ups[j]) for j in range(count) if j != i]
        )
        for i in range(count)
    }
    sides = frozenset() if co_publishers is None else frozenset([name(co_publishers)])
    return PlanTask(name(0), [Member(info=info) for info in infos], reported, sides, payload=64 << 20)


@pytest.fixture
def planner() -> Iterator[PlanProcess]:
    made = PlanProcess(first_revision=50)
    yield made
    made.close()


def ended(pid: int) -> bool:
    """Returns whether this process ends within a minute."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 60)[0])
    finally:
        os.close(handle)


def test_the_process_makes_the_planners_plans_with_its_history(planner: PlanProcess) -> None:
    planner.warm()
    own = HubPlanner(first_revision=50)
    for given in (task(), task(), task(slow={2: 5.0}), task(8), task(8, co_publishers=3)):
        mine, theirs = own.plan(given), planner.plan(given)
        assert mine.revision == theirs.revision
        assert dict(mine.diagnostics) == dict(theirs.diagnostics)
        assert [mine.node_plan(name(i)) for i in range(9)] == [theirs.node_plan(name(i)) for i in range(9)]


def test_a_planners_error_is_reported_and_the_next_plan_is_made(planner: PlanProcess) -> None:
    unknown_trainer = PlanTask(name(99), task().members, {})
    with pytest.raises(PlanningError, match="FormatError"):
        planner.plan(unknown_trainer)
    assert planner.plan(task()).revision >= 50


def test_a_process_that_was_killed_fails_one_plan_and_is_replaced_by_one_whose_revisions_go_on(
    planner: PlanProcess,
) -> None:
    first = planner.plan(task())
    killed = planner.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    assert ended(killed)
    with pytest.raises(PlanningError, match="ended"):
        planner.plan(task())
    assert planner.plan(task(slow={1: 5.0})).revision > first.revision
    assert planner.pid not in (None, killed)


def test_ctrl_c_in_a_terminal_does_not_stop_it(planner: PlanProcess) -> None:
    planner.warm()
    assert planner.pid is not None
    assert os.getpgid(planner.pid) == planner.pid


def test_output_at_pythons_start_is_not_a_reply(
    planner: PlanProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('cos\\nsystem', flush=True)")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert planner.plan(task()).revision == 50


def test_it_imports_from_its_parents_path_not_from_its_working_directory(
    planner: PlanProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "topology").mkdir()
    (tmp_path / "topology" / "__init__.py").write_text("raise ImportError('another topology')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    assert planner.plan(task()).revision == 50


def test_closing_ends_it_and_pending_calls(planner: PlanProcess) -> None:
    planner.warm()
    pid = planner.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    raised: list[Exception] = []
    asked = threading.Event()

    def ask() -> None:
        asked.set()
        try:
            planner.plan(task())
        except PlanningError as error:
            raised.append(error)

    requester = threading.Thread(target=ask)
    requester.start()
    asked.wait()
    planner.close()
    requester.join(60)
    assert ended(pid) and not requester.is_alive() and len(raised) == 1
    with pytest.raises(PlanningError, match="closed"):
        planner.plan(task())


def test_it_does_not_outlive_its_parent_however_that_ends() -> None:
    parent = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, check=False)
    assert parent.returncode == -signal.SIGKILL
    assert ended(int(parent.stdout))


def test_a_fork_of_its_parent_does_not_keep_it() -> None:
    command = [sys.executable, "-c", FORKED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        fork, pid = map(int, parent.stdout.readline().split())
        try:
            assert parent.wait(60) == -signal.SIGKILL
            assert ended(pid)
        finally:
            os.kill(fork, signal.SIGKILL)


@pytest.mark.parametrize("python", ["/nowhere/python", "", None])
def test_a_process_that_cannot_start_is_reported(monkeypatch: pytest.MonkeyPatch, python: str | None) -> None:
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(PlanningError, match="cannot be started"):
        PlanProcess().plan(task())
