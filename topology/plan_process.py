"""A `HubPlanner` in a process of its own.

In a thread it would take turns with the event loop that sends the chunks: while one version was on its way, eight plans
of a third of a second each held the interpreter a quarter of the time.

Through pipes go a task, or None to warm the planner, and back every member's part of the plan, as msgpack after 8 bytes
that tell its length. Answers have a pipe of their own: whatever prints at a Python's start is none. The child ends with
its input, or when it has another parent, for a fork of the parent may hold its input open.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import msgspec

from p2psync.errors import P2PSyncError
from p2psync.membership.planning import Planner, PlanResult, PlanTask
from p2psync.protocol.plan import NodePlan
from p2psync.protocol.wire import decode_msgpack, encode_msgpack

#: How much the child gives way to others: chunks go before plans where there are few cores.
_NICE = 5
#: One thread is enough for small programs, and leaves the other cores alone.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: Bytes of a length.
_LENGTH_BYTES = 8
#: How often the child sees whether its parent lives (seconds).
_PARENT_CHECK_SECONDS = 2.0


class PlanningError(P2PSyncError):
    """There is no plan; the message says why."""


class PlanReply(msgspec.Struct, frozen=True):
    """A plan as every member must know it (`PlanResult`); or what kept it from being made, in `error`."""

    error: str = ""
    revision: int = 0
    diagnostics: dict[str, str] = {}
    parts: dict[str, msgspec.Raw] = {}

    def node_plan(self, node: str) -> NodePlan | None:
        """See `PlanResult`."""
        part = self.parts.get(node)
        return None if part is None else decode_msgpack(part, NodePlan)


class PlanProcess:
    """A `Planner` whose work another process does. It is started by the first call, and again if it has ended."""

    def __init__(self, first_revision: int = 1) -> None:
        """first_revision: see `HubPlanner`."""
        self._read_message = first_revision
        self._child: subprocess.Popen[bytes] | None = None
        #: What it answers.
        self._answers: IO[bytes] | None = None
        self._closed = False
        #: Held while the child is used, and while it is made or put away.
        self._using, self._making = threading.Lock(), threading.Lock()

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one."""
        child = self._child
        return None if child is None else child.pid

    def warm(self) -> None:
        """See `Planner`. Raises as `plan` does."""
        self._request(None)

    def plan(self, task: PlanTask) -> PlanResult:
        """See `Planner`. Raises `PlanningError` where the planner raised anything, or its process ended."""
        plan_result = self._request(task)
        self._read_message = max(self._read_message, plan_result.revision + 1)
        return plan_result

    def close(self) -> None:
        """See `Planner`."""
        with self._making:
            self._closed = True
            child, self._child = self._child, None
            if child is not None:
                # It has nothing that is worth keeping; a call that waits for it ends at once.
                child.kill()
                child.wait()
        with self._using:
            self._shut(child)

    def _request(self, task: PlanTask | None) -> PlanReply:
        with self._using:
            child = self._started()
            assert child.stdin is not None and self._answers is not None
            answer = None
            try:
                _write_message(child.stdin, msgspec.msgpack.encode(task))
                answer = _read_message(self._answers)
            except OSError:
                pass
            finally:
                # Whatever kept the answer away, the next one must not be taken for it.
                if answer is None:
                    self._put_away(child)
            if answer is None:
                raise PlanningError("the process that plans has ended")
        found = msgspec.msgpack.decode(answer, type=PlanReply)
        if found.error:
            raise PlanningError(found.error)
        return found

    def _started(self) -> subprocess.Popen[bytes]:
        with self._making:
            if self._closed:
                raise PlanningError("the planner is closed")
            if self._child is None:
                try:
                    self._child, self._answers = _start(self._read_message)
                except (OSError, TypeError) as error:  # no interpreter is a TypeError
                    raise PlanningError(f"no process to plan in: {error}") from error
            return self._child

    def _put_away(self, child: subprocess.Popen[bytes]) -> None:
        with self._making:
            if self._child is child:
                self._child = None
                child.kill()
                child.wait()
                self._shut(child)

    def _shut(self, child: subprocess.Popen[bytes] | None) -> None:
        """Close the pipes of a child that has ended; what was left to write is nobody's loss."""
        answers, self._answers = self._answers, None
        for pipe in (answers, child.stdin if child is not None else None):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _start(first_revision: int) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """The process, and its answers."""
    # What this process imports is what the child shall import, not what happens to lie where it was started.
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path if isinstance(entry, str))
    env = {**os.environ, **_ONE_THREAD, "PYTHONPATH": path}
    answers, end = os.pipe()
    try:
        # A terminal's Ctrl-C is for the parent, which ends the child by its input.
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(first_revision), str(end), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=env,
            pass_fds=(end,),
            process_group=0,
        )
    except BaseException:
        os.close(answers)
        raise
    finally:
        os.close(end)
    return child, os.fdopen(answers, "rb")


def _write_message(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(_LENGTH_BYTES) + data)
    pipe.flush()


def _read_message(pipe: IO[bytes]) -> bytes | None:
    """What comes next; None at the end."""
    head = pipe.read(_LENGTH_BYTES)
    size = int.from_bytes(head)
    data = pipe.read(size)
    return data if len(head) == _LENGTH_BYTES and len(data) == size else None


def _serve(first_revision: int, answers: IO[bytes], parent: int) -> None:
    """Answer tasks until the input ends, or `parent` does."""
    from p2psync.topology.hub_planner import HubPlanner  # scipy and compiled loops, which the parent does without

    with contextlib.suppress(OSError):
        os.nice(_NICE)
    tasks = os.fdopen(0, "rb", closefd=False)
    planner = HubPlanner(first_revision)
    while True:
        while not select.select([tasks], [], [], _PARENT_CHECK_SECONDS)[0]:
            if os.getppid() != parent:
                return
        data = _read_message(tasks)
        if data is None:
            return
        try:
            _write_message(
                answers, msgspec.msgpack.encode(_answer(planner, msgspec.msgpack.decode(data, type=PlanTask | None)))
            )
        except BrokenPipeError:
            return


def _answer(planner: Planner, task: PlanTask | None) -> PlanReply:
    try:
        if task is None:
            planner.warm()
            return PlanReply()
        plan_result = planner.plan(task)
    except Exception as error:
        return PlanReply(f"{type(error).__name__}: {error}")
    names = [member.info.node for member in task.members]
    parts = {name: msgspec.Raw(encode_msgpack(part)) for name in names if (part := plan_result.node_plan(name))}
    return PlanReply("", plan_result.revision, dict(plan_result.diagnostics), parts)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), os.fdopen(int(sys.argv[2]), "wb"), int(sys.argv[3]))
