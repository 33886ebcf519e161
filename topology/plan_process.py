"""A `HubPlanner` in its own process.

In a thread the planner would compete for the interpreter with the event loop that sends the chunks.

Protocol: each message is its length in 8 bytes, big-endian, and a msgpack body. The parent sends a task, or None to
warm the planner, on the child's standard input; the child replies with every member's part of the plan. Replies have a
pipe of their own, because anything may print to standard output when Python starts. The child ends at the end of its
input, or when its parent changes, since a fork of the parent may keep its input open.
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

#: The child's niceness: chunks take precedence over plans where there are few cores.
_NICE = 5
#: Environment of the child: one thread suffices for small programs, and leaves the other cores free.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: Bytes of a message's length.
_LENGTH_BYTES = 8
#: Seconds between checks of the child whether its parent is alive.
_PARENT_CHECK_SECONDS = 2.0


class PlanningError(P2PSyncError):
    """No plan could be made; the message says why."""


class PlanReply(msgspec.Struct, frozen=True):
    """The child's reply: every member's part of a plan (`PlanResult`), or the reason for its failure in `error`."""

    error: str = ""
    revision: int = 0
    diagnostics: dict[str, str] = {}
    parts: dict[str, msgspec.Raw] = {}

    def node_plan(self, node: str) -> NodePlan | None:
        """See `PlanResult`."""
        part = self.parts.get(node)
        return None if part is None else decode_msgpack(part, NodePlan)


class PlanProcess:
    """A `Planner` that works in another process. The first call starts it, and a later one restarts it if it
    has ended."""

    def __init__(self, first_revision: int = 1) -> None:
        """first_revision: see `HubPlanner`."""
        self._read_message = first_revision
        self._child: subprocess.Popen[bytes] | None = None
        #: The pipe of the child's replies.
        self._answers: IO[bytes] | None = None
        self._closed = False
        #: `_using` is held while the child is used, `_making` while it is started or ended.
        self._using, self._making = threading.Lock(), threading.Lock()

    @property
    def pid(self) -> int | None:
        """The child's process id, None without a child."""
        child = self._child
        return None if child is None else child.pid

    def warm(self) -> None:
        """See `Planner`. Raises as `plan` does."""
        self._request(None)

    def plan(self, task: PlanTask) -> PlanResult:
        """See `Planner`. Raises `PlanningError` if the planner raised anything, or its process ended."""
        plan_result = self._request(task)
        self._read_message = max(self._read_message, plan_result.revision + 1)
        return plan_result

    def close(self) -> None:
        """See `Planner`."""
        with self._making:
            self._closed = True
            child, self._child = self._child, None
            if child is not None:
                # The child has no state worth keeping; a call that waits for it fails at once.
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
                # A late reply to this request must not be taken for the reply to the next one.
                if answer is None:
                    self._discard(child)
            if answer is None:
                raise PlanningError("the planner's process has ended")
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
                    raise PlanningError(f"the planner's process cannot be started: {error}") from error
            return self._child

    def _discard(self, child: subprocess.Popen[bytes]) -> None:
        with self._making:
            if self._child is child:
                self._child = None
                child.kill()
                child.wait()
                self._shut(child)

    def _shut(self, child: subprocess.Popen[bytes] | None) -> None:
        """Closes the pipes of a child that has ended; unwritten data is lost."""
        answers, self._answers = self._answers, None
        for pipe in (answers, child.stdin if child is not None else None):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _start(first_revision: int) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Starts the child; returns it and the pipe of its replies."""
    # The child imports from the same places as this process, not from its working directory.
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path if isinstance(entry, str))
    env = {**os.environ, **_ONE_THREAD, "PYTHONPATH": path}
    answers, end = os.pipe()
    try:
        # Ctrl-C in a terminal reaches the parent only, which ends the child by closing its input.
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
    """Returns the next message; None at the end."""
    head = pipe.read(_LENGTH_BYTES)
    size = int.from_bytes(head)
    data = pipe.read(size)
    return data if len(head) == _LENGTH_BYTES and len(data) == size else None


def _serve(first_revision: int, answers: IO[bytes], parent: int) -> None:
    """Serves tasks until the input ends, or the parent changes from `parent`."""
    from p2psync.topology.hub_planner import HubPlanner  # imports scipy and numba, which the parent does not need

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
    try:
        _serve(int(sys.argv[1]), os.fdopen(int(sys.argv[2]), "wb"), int(sys.argv[3]))
    except ImportError as error:
        sys.exit(f"p2psync: the hub cannot plan: {error}; `pip install --force-reinstall {error.name}` mends it")
