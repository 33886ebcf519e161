"""A `HubPlanner` in a process of its own.

In a thread it would take turns with the event loop that sends the chunks: while one version was on its way, eight plans
of a third of a second each held the interpreter a quarter of the time, and what the trainer sent fell by as much.

Through pipes go a task, or None to warm the planner, as msgpack after 8 bytes that tell its length; and back, pickled,
an outcome or what was raised. The child ends with its input, and so never outlives the parent.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from typing import IO, Any

import msgspec

from p2psync.errors import P2PSyncError
from p2psync.membership.planning import PlanBook, PlanTask

#: How much the child gives way to others: chunks go before plans where there are few cores.
_NICE = 5
#: One thread is enough for small programs, and leaves the other cores alone.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: Bytes of the length of a task.
_LENGTH = 8
_PICKLE = pickle.HIGHEST_PROTOCOL


class PlanningError(P2PSyncError):
    """There is no plan; the message says why."""


class PlanProcess:
    """A `Planner` whose work another process does. It is started by the first call, and again if it has ended."""

    def __init__(self, first_revision: int = 1) -> None:
        """first_revision: see `HubPlanner`."""
        self._next = first_revision
        self._child: subprocess.Popen[bytes] | None = None
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
        self._ask(None)

    def plan(self, task: PlanTask) -> PlanBook:
        """See `Planner`. Raises `PlanningError` where the planner raised anything, or its process ended."""
        book: PlanBook = self._ask(task)
        self._next = max(self._next, book.revision + 1)
        return book

    def close(self) -> None:
        """See `Planner`."""
        with self._making:
            self._closed = True
            child, self._child = self._child, None
            if child is not None:
                # It has nothing that is worth keeping; a call that waits for it ends at once.
                child.kill()
                child.wait()
        if child is not None:
            with self._using:
                _shut(child)

    def _ask(self, task: PlanTask | None) -> Any:
        with self._using:
            child = self._started()
            assert child.stdin is not None and child.stdout is not None
            try:
                data = msgspec.msgpack.encode(task)
                child.stdin.write(len(data).to_bytes(_LENGTH) + data)
                child.stdin.flush()
                good, outcome = pickle.load(child.stdout)
            except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
                self._put_away(child)
                raise PlanningError("the process that plans has ended") from error
        if not good:
            raise PlanningError(outcome)
        return outcome

    def _started(self) -> subprocess.Popen[bytes]:
        with self._making:
            if self._closed:
                raise PlanningError("the planner is closed")
            if self._child is None:
                command = [sys.executable, "-m", __name__, str(self._next)]
                env = {**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
                try:
                    self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
                except OSError as error:
                    raise PlanningError(f"no process to plan in: {error}") from error
            return self._child

    def _put_away(self, child: subprocess.Popen[bytes]) -> None:
        with self._making:
            if self._child is child:
                self._child = None
                child.kill()
                child.wait()
                _shut(child)


def _shut(child: subprocess.Popen[bytes]) -> None:
    """Close the pipes of a child that has ended; what was left to write is nobody's loss."""
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _serve(first_revision: int) -> None:
    """Answer tasks until the input ends."""
    from topology.hub_planner import HubPlanner  # scipy and compiled loops, which the parent does without

    # What prints goes where errors go; what stops the parent's group of processes is the parent's to act on.
    tasks, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    planner = HubPlanner(first_revision)
    while (data := _next(tasks)) is not None:
        try:
            task = msgspec.msgpack.decode(data, type=PlanTask | None)
            book = None
            if task is None:
                planner.warm()
            else:
                book = planner.plan(task)
            answer = pickle.dumps((True, book), _PICKLE)
        except Exception as error:
            answer = pickle.dumps((False, f"{type(error).__name__}: {error}"), _PICKLE)
        answers.write(answer)
        answers.flush()


def _next(tasks: IO[bytes]) -> bytes | None:
    """What comes next; None at the end."""
    head = tasks.read(_LENGTH)
    size = int.from_bytes(head)
    data = tasks.read(size)
    return data if len(head) == _LENGTH and len(data) == size else None


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
