"""Kills a real process at every relevant point: before each change that it makes to the file system.

A child is forked, runs an action, and kills itself (SIGKILL) before the n-th event. Events are the calls of the
operating system that change files, and whatever points the action itself reports through `event`.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType

CHANGES = frozenset(
    [
        *("pwrite", "write", "sendfile", "posix_fallocate", "truncate", "fsync", "open"),
        *("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "symlink"),
    ]
)


class Countdown:
    """Counts events, and kills this process before event number `limit` (counted from 0; None: never)."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.count = 0

    def event(self, _name: str = "") -> None:
        if self.count == self.limit:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def watch(self, _frame: FrameType, kind: str, argument: object) -> None:
        if kind == "c_call" and getattr(argument, "__name__", "") in CHANGES:
            self.event()


def run_in_child(action: Callable[[Callable[[str], None]], None], limit: int | None) -> int | None:
    """Run `action(event)` in a child; returns its number of events, or None if it was killed at event `limit`."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            countdown = Countdown(limit)
            sys.setprofile(countdown.watch)
            action(countdown.event)
            sys.setprofile(None)
            os.write(write, str(countdown.count).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as pipe:
        counted = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert os.WEXITSTATUS(status) == 0, "the action failed in the child; its traceback is on stderr"
    return int(counted)
